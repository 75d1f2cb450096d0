"""Named points at which a test can stop or kill a process of ours.

A test arms a point by writing `<directory>/<point>`. The first process that reaches the point removes the file and
obeys its lines: `kill self`, `stop self`, `kill PID`, `stop PID` or `error ERRNO`. Without a directory, as in
production, reaching a point is one comparison.
"""

from __future__ import annotations

import os
import signal
import threading

_directory: str | None = None


def arm_from(directory: str | None) -> None:
    """Look for armed points in `directory` from now on; None switches them off."""
    global _directory  # noqa: PLW0603 - one switch per process, set once at its start
    _directory = directory


def reach(point: str) -> None:
    """Obey the file for `point`, if there is one; raises OSError for a line `error ERRNO`."""
    if _directory is not None:
        _fire(_directory, point)


def _fire(directory: str, point: str) -> None:
    path = os.path.join(directory, point)
    try:
        with open(path, encoding="ascii") as file:
            orders = file.read().split("\n")
        os.unlink(path)
    except FileNotFoundError:
        return
    own: int | None = None
    for order in filter(None, orders):
        verb, _, target = order.partition(" ")
        if verb == "error":
            raise OSError(int(target), f"crash point {point}")
        number = signal.SIGKILL if verb == "kill" else signal.SIGSTOP
        if target == "self":
            own = number
        else:
            os.kill(int(target), number)
    if own is not None:
        # To this thread: through another one the signal would come after the point.
        signal.pthread_kill(threading.get_ident(), own)
