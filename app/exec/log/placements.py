"""Which home a session is placed in, the host's or a container's, by a symlink made before the start.

`<state>/sessions/<id>` is a directory of the host's supervisor, or a symlink to `../containers/<name>/sessions/<id>`;
a session's files have the same path either way. A session is placed once. Its directory in the container's home is
made before the symlink, so a dangling symlink means that the records were removed.
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
_UP: Final = f"../{CONTAINERS}"


class Placements:
    """The placements of one state directory. All methods block for a few system calls."""

    def __init__(self, state: Path) -> None:
        self._sessions = state / layout.SESSIONS
        self._containers = state / CONTAINERS

    def home_of(self, session_id: str) -> Path | None:
        """The container's home of a session, which may be gone; None for the host, and if it is not placed yet."""
        try:
            up, _, rest = os.readlink(self._sessions / session_id).rpartition(f"{_UP}/")
        except OSError:
            return None
        name, _, inner = rest.partition("/")
        ours = not up and _plain(name) and inner == f"{layout.SESSIONS}/{session_id}"
        return self._containers / name if ours else None

    def place(self, session_id: str, home: Path) -> Path | None:
        """Place a session in a home unless it is placed already; its home, None for the host.

        Raises ValueError if the home is not in this state directory, OSError if it is gone or has no room.
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
        """The existing homes of containers, by name."""
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
        """Whether the home has a started session whose end is not acknowledged.

        Restores symlinks that were lost in a power failure.
        """
        found = False
        for name in _owed(home / layout.SESSIONS):
            found = True
            if not os.path.lexists(self._sessions / name):
                self.place(name, home)
        return found

    def host_owes(self) -> bool:
        """The same for the host's supervisor."""
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
