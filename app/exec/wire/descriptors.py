"""The end of a descriptor. Loads no ctypes: each search in files starts a process that loads this."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator


@contextlib.contextmanager
def closing(descriptor: int) -> Generator[int]:
    """Close a descriptor at the end."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def kept(descriptor: int) -> Generator[int]:
    """Close the descriptor if an exception occurs."""
    try:
        yield descriptor
    except BaseException:
        os.close(descriptor)
        raise
