"""Shellback as it is elsewhere. The first argument is the version of another release, or `+3600`, which sets its clock.

The words of a command follow; without any it is a worker.
"""

import sys
import time

import shellback.work.worker.worker
from shellback.cli.main import main

its, wall = sys.argv[1], time.time
if its[0] in "+-":
    time.time = lambda: wall() + float(its)
else:
    shellback.work.worker.worker.application_version = lambda: its
main(sys.argv[2:] or ["worker"])
