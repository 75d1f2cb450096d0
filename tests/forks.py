"""A fork of the process that runs tests."""

from __future__ import annotations

import ctypes
from typing import Final

_python: Final = ctypes.PyDLL(None, use_errno=True)


def fork() -> int:
    """As `os.fork`, without what libraries hook into that: an exporter of traces begins a thread in each child."""
    pid: int = _python.fork()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "fork")
    return pid
