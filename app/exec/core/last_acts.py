"""What is to happen when an object has gone or the interpreter ends."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

from shellback.exec.wire import linux


def at_the_end(owner: object, act: Callable[..., object], *args: object) -> weakref.finalize[[], Any]:
    """Have `act(*args)` called when `owner` has gone or the interpreter ends; not by a process that is forked from it.

    What a forked process has is a copy: what it names is still in use. Any thread may collect what has gone, one that
    handles files as another user too: `act` handles them as the process does.
    """
    pid = os.getpid()

    def acted() -> None:
        if os.getpid() == pid:
            with linux.own_file_identity():
                act(*args)

    return weakref.finalize(owner, acted)
