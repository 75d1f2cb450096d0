"""`python -m shellback` is `shellback`."""

import os
import sys

_OURS = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))

# What Python puts first for `-m` is the current directory: no module there stands in for one that we import.
if not sys.flags.safe_path and os.path.realpath(sys.path[0]) != _OURS:
    del sys.path[0]

from shellback.cli.main import main  # noqa: E402

main()
