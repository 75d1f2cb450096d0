"""The end of a descriptor, and paths by one.

Loads no ctypes: each search in files starts a process that loads this. Nor pathlib: the supervisor needs none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@contextlib.contextmanager
def closing(descriptor: int) -> Generator[int]:
    """Close a descriptor at the end."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def short(directory: Path) -> Generator[str]:
    """A short path of a directory within the block: a socket's path has at most 108 bytes (unix(7))."""
    with closing(os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        yield f"/proc/self/fd/{descriptor}"


@contextlib.contextmanager
def kept(descriptor: int) -> Generator[int]:
    """Close the descriptor if an exception occurs."""
    try:
        yield descriptor
    except BaseException:
        os.close(descriptor)
        raise
