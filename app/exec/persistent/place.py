"""Where a shell is that nobody remembers: what the kernel says, or what the shell said last."""

from __future__ import annotations

import os
from typing import Final

from shellback.exec.core.model import Session
from shellback.exec.log.output import OutputLog
from shellback.exec.persistent.marks import ended
from shellback.exec.persistent.reading import last_mark

_GONE: Final = " (deleted)"


def place_of(session: Session, log: OutputLog, inside: int = 0) -> str:
    """The directory of a shell, or of the one `inside` it, as it sees it; "" where nobody can tell.

    A process of a container has another number here, so there the last mark counts, which a command could have printed.
    """
    if session.backend == "podman":
        mark = last_mark(log, "E")
        return ended(mark).cwd if mark is not None else ""
    try:
        if session.pid is None or session.end is not None:
            return ""
        link = f"/proc/{inside or session.pid}/cwd"
        place = os.readlink(link)
        removed = place.endswith(_GONE) and os.stat(link).st_nlink == 0
    except OSError:
        return ""
    return place.removesuffix(_GONE) if removed else place
