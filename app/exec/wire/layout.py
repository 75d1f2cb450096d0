"""Where the state directory keeps what: the one place both sides of the socket take names from.

SHELLBACK_HOME/                0700
version.N                    empty; N is the version of what is in here
host_id                      random, made once
supervisor/                  socket, locks and log of the host's supervisor and keeper
sessions/<session_id>/
started                    created O_EXCL before fork, or to abandon: whoever creates it decides;
                           then pid, start time, boot id, limits: what a new supervisor needs
running.json               the same where it changed since: somebody began to end the process
laid.json                  what its sandbox puts into the workspace, until that is taken out again
log, err                   output; err only where the streams are apart
holes.json                 ranges that were dropped, with their newlines
holes.json.last            a symlink whose target says the same of the last one, until there is room for that
log.times, err.times       when what was printed, to the second
exit.json                  exit record: written aside, then renamed
acked.json                 the same after the worker acknowledged it
"""

from __future__ import annotations

import os
from typing import Final

from shellback.exec.wire.protocol import VERSION

SESSIONS: Final = "sessions"
SUPERVISOR: Final = "supervisor"
SOCKET: Final = "sock"
SUPERVISOR_LOCK: Final = "supervisor.lock"
KEEPER_LOCK: Final = "keeper.lock"
DIARY: Final = "supervisor.log"
STUBS: Final = "stubs.json"
"""What sandboxes have put into workspaces and is still to be removed."""

CONTAINER: Final = "container.json"
"""What the container of this state directory was made of, where it is one's."""

STARTED: Final = "started"
RUNNING: Final = "running.json"
LAID: Final = "laid.json"
LOG: Final = "log"
ERR: Final = "err"
HOLES: Final = "holes.json"
ERR_HOLES: Final = "err.holes.json"
TIMES: Final = ".times"
"""Added to the name of a log."""
EXIT: Final = "exit.json"
ACKED: Final = "acked.json"

MARKER: Final = "SHELLBACK_SESSION"
"""Environment variable in every child, by which strays are found: `SESSION_ID@HOME`.

HOME names the state directory by device and inode: a copied one has the same session ids, and its
supervisor must not take our processes for its own."""
FIRST: Final = "init."
"""Comes before the session's id in the marker of the first process of a PID namespace."""

FOREIGN: Final = (
    "the state directory {home} is one of another version of Shellback: finish what is under way with that version, "
    "then name a new one (SHELLBACK_HOME)"
)


def foreign(home: str | os.PathLike[str]) -> bool:
    """Whether another version has used this state directory; one that nobody has used is ours from here on.

    Raises:
        OSError: It cannot be read or written.
    """
    # In this order: what another process of ours makes comes after its mark.
    used = any(os.path.exists(os.path.join(home, name)) for name in ("host_id", f"{SUPERVISOR}/{KEEPER_LOCK}"))
    mark = os.path.join(home, f"version.{VERSION}")
    if not used:
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    return not os.path.exists(mark)
