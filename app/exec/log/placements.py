"""Which supervisor has a session: the host's, or that of a container, by a symlink that is made before the start.

`<state>/sessions/<id>` is a directory of the host's supervisor, or a symlink to
`../containers/<name>/sessions/<id>`: whoever reads a session's files finds them by the same path. A session is placed
once. Its directory in the container's home is made before the symlink, so that a symlink to nothing says that the
records were removed, and not that there were none yet.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shellback.exec.supervisor.records.records import ABANDONED
from shellback.exec.wire import layout
from shellback.exec.wire.fields import SESSION_ID

CONTAINERS: Final = "containers"
"""Below the state directory."""
_UP: Final = f"../{CONTAINERS}"


class Placements:
    """The sessions of one state directory. Everything here blocks, for a few system calls."""

    def __init__(self, state: Path) -> None:
        self._sessions = state / layout.SESSIONS
        self._containers = state / CONTAINERS

    def home_of(self, session_id: str) -> Path | None:
        """The home that a session was placed in, which may be gone; None where it is the host's, or nobody's yet."""
        try:
            up, _, rest = os.readlink(self._sessions / session_id).rpartition(f"{_UP}/")
        except OSError:
            return None
        name, _, inner = rest.partition("/")
        ours = not up and _plain(name) and inner == f"{layout.SESSIONS}/{session_id}"
        return self._containers / name if ours else None

    def place(self, session_id: str, home: Path) -> Path | None:
        """Place a session in a home, unless it has been placed before; where it is then, None for the host.

        Raises:
            ValueError: The home is none of this state directory's.
            OSError: The home is gone, or has no room.
        """
        if home.parent != self._containers or not _plain(home.name) or not SESSION_ID.match(session_id):
            raise ValueError(f"{home} is not in {self._containers}, or {session_id!r} is no session's id")
        link = self._sessions / session_id
        if not os.path.lexists(link):
            self._sessions.mkdir(mode=0o700, exist_ok=True)
            inner = home / layout.SESSIONS
            if home.is_dir():
                inner.mkdir(mode=0o700, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                (inner / session_id).mkdir(mode=0o700)
            with contextlib.suppress(FileExistsError):
                link.symlink_to(f"{_UP}/{home.name}/{layout.SESSIONS}/{session_id}")
        return self.home_of(session_id)

    def homes(self) -> list[Path]:
        """The homes of containers that are there, by name."""
        try:
            with os.scandir(self._containers) as found:
                return sorted(
                    Path(one.path)
                    for one in found
                    if _plain(one.name) and os.path.isdir(os.path.join(one.path, layout.SUPERVISOR))
                )
        except FileNotFoundError:
            return []

    def owes(self, home: Path) -> bool:
        """Whether a session of the home was started and nobody has acknowledged its end.

        One that a loss of power has left without its symlink is linked again.
        """
        found = False
        for name in _owed(home / layout.SESSIONS):
            found = True
            if not os.path.lexists(self._sessions / name):
                self.place(name, home)
        return found

    def host_owes(self) -> bool:
        """The same of the host's supervisor."""
        return any(True for _ in _owed(self._sessions))

    def at_host(self, session_id: str) -> bool:
        """Whether the host's supervisor has a record of the session."""
        path = self._sessions / session_id
        return path.is_dir() and not path.is_symlink()


def _owed(sessions: Path) -> Iterator[str]:
    try:
        names = os.listdir(sessions)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        directory = sessions / name
        if not SESSION_ID.match(name) or os.path.lexists(directory / layout.ACKED) or directory.is_symlink():
            continue
        with contextlib.suppress(OSError):
            if (directory / layout.STARTED).read_bytes() != ABANDONED:
                yield name


def _plain(name: str) -> bool:
    return bool(name) and not name.startswith(".") and "/" not in name
