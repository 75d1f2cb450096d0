"""Where a shell is that nobody remembers: what the kernel says, or what the shell said last."""

from __future__ import annotations

import contextlib
import os
from typing import Final

from app.exec.model import Session
from app.exec.output import OutputLog
from app.exec.persistent.marks import ended
from app.exec.persistent.reading import last_mark

_GONE: Final = " (deleted)"


def place_of(session: Session, log: OutputLog) -> str:
    """The directory of a shell as it sees it, "" where nobody can tell.

    A process of a container has another number here, so there the last mark counts, which a command could have printed.
    """
    if session.backend == "podman":
        mark = last_mark(log, "E")
        with contextlib.suppress(ValueError):  # a command may print anything
            return ended(mark).cwd if mark is not None else ""
        return ""
    try:
        place = os.readlink(f"/proc/{session.pid}/cwd") if session.pid is not None and session.end is None else ""
    except OSError:
        return ""
    return "" if place.endswith(_GONE) else place
