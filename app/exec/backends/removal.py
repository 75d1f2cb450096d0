"""Removes trees that commands have made."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import Final

_REMOVAL_S: Final = 60.0


def removed(path: str, *, below: int | None = None) -> bool:
    """Remove a tree of any depth and any modes, following no symlink in it; whether it has gone.

    A relative path is one in the directory that the descriptor `below` holds.
    """
    cwd = None if below is None else f"/proc/self/fd/{below}"
    for words in (("rm", "-rf", "--one-file-system"), ("chmod", "-R", "u+rwX"), ("rm", "-rf", "--one-file-system")):
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([*words, "--", path], stderr=subprocess.DEVNULL, check=False, timeout=_REMOVAL_S, cwd=cwd)
        try:
            os.stat(path, dir_fd=below, follow_symlinks=False)
        except FileNotFoundError:
            return True
    return False
