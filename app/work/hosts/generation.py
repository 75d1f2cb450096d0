"""Finds a restored database or state directory: both keep one count, and neither may be behind.

The directory stores the next count as attempted, the database counts in a transaction, then the directory commits it.
A crash between these steps leaves counts that differ from those after a restore.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeGuard, cast

import sqlalchemy as sa

from shellback.exec.wire import linux
from shellback.storage import rows
from shellback.storage.db import Database
from shellback.storage.errors import HomeUnusable
from shellback.storage.tables import hosts

log = logging.getLogger(__name__)

FILE: Final = "generation"
_LOCK: Final = "generation.lock"
_LOCK_S: Final = 10.0
"""A process that holds the lock longer is paused. The count is then skipped; the next start counts."""
_BOUND: Final = 2**53
Older = Literal["database", "directory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The counts of the state directory: `committed` is in the database, `attempted` may be.

    `older` is what was found to be behind and is not settled; `database`, `directory` and `since` are of that moment.
    """

    committed: int = 0
    attempted: int = 0
    older: Older | None = None
    database: int = 0
    directory: int = 0
    since: float = 0.0


_FIELDS: Final = tuple(field.name for field in fields(Count))


def older(in_database: int | None, count: Count) -> Older | None:
    """Which of the two is behind; None if neither is, or if the database has no count of this host."""
    if in_database is None:
        return None
    if in_database < count.committed:
        return "database"
    return "directory" if in_database > count.attempted else None


def read(home: Path) -> Count:
    """The counts of this state directory; zeros if it has none yet.

    Raises:
        HomeUnusable: The file cannot be read, or is damaged.
    """
    path = home / FILE
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return Count()
    except OSError as error:
        raise HomeUnusable(f"{path} cannot be read ({error.strerror}): check its owner and the disk") from error
    except ValueError:
        raise HomeUnusable(f"{path} {_DAMAGED}") from None
    if not _whole(found):
        raise HomeUnusable(f"{path} {_DAMAGED}")
    return Count(**found)


_DAMAGED: Final = (
    "is damaged: restore it, or remove it; without it the state directory counts as older than the database, and "
    "you have to settle each session that it does not know"
)


def _whole(found: object) -> TypeGuard[dict[str, Any]]:
    if not isinstance(found, dict) or not found.keys() <= set(_FIELDS):
        return False
    one = cast("dict[str, Any]", found)
    counts = [one.get(name, 0) for name in ("committed", "attempted", "database", "directory")]
    return (
        all(type(count) is int and 0 <= count < _BOUND for count in counts)
        and counts[0] <= counts[1]
        and one.get("older") in (None, "database", "directory")
        and type(one.get("since", 0.0)) in {int, float}
        and 0 <= one.get("since", 0.0) < _BOUND
    )


def compared(in_database: int | None, count: Count) -> tuple[Count, Older | None]:
    """The count with what was found behind just now, and what is behind."""
    behind = older(in_database, count)
    if behind is not None:
        found = {"database": in_database or 0, "directory": count.committed, "since": time.time()}
        count = replace(count, older=behind, **found)
    return count, behind


def absence_tells(home: Path, created_at: float) -> bool:
    """Whether a session of that age that the state directory does not know has really ended.

    Raises:
        HomeUnusable: The counts of the directory cannot be read.
    """
    count = read(home)
    return count.older != "directory" or created_at >= count.since


def cause(count: Count) -> str:
    """The text that says what was found to be behind."""
    moment = f"the database counts {count.database}, the state directory {count.directory}"
    if count.older == "database":
        return f"the database is older than the state directory, or another one ({moment})"
    return f"the state directory is older than the database ({moment})"


def remedy(count: Count) -> str:
    """The text that says what a person has to settle, and with which commands."""
    if count.older == "database":
        return (
            "processes that it does not know keep running, and no agent is told of their end: `shellback ps --unknown` "
            "lists them, `shellback adopt process` or `shellback kill` settles each"
        )
    return (
        "sessions whose processes it does not know stay as they are: put the newer directory back, or "
        "`shellback kill ID` settles each as lost (`shellback doctor` lists them)"
    )


class Generation:
    """Counts starts and stops of this host's workers, in the database and in the state directory."""

    def __init__(self, home: Path, host_id: str, database: Database) -> None:
        self._home = home
        self._host_id = host_id
        self._db = database

    def count(self, within: Callable[[sa.Connection], object] = lambda _: None) -> Older | None:
        """Raise both counts by one and run `within` in the same transaction; returns what was found behind. Blocks.

        If the state directory cannot be written, `within` is committed and nothing is counted.

        Raises:
            StorageError: The database failed; the next call settles the attempted count.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._locked())
                self._require_ours()
                count, behind = self._noted()
            except OSError as error:
                log.warning("the count in the state directory %s was not changed: %s", self._home, error.strerror)
                self._db.write_now(within)
                return None
            self._db.write_now(_raised, self._host_id, count.attempted, within)
            with contextlib.suppress(OSError):  # the next start handles an unconfirmed count
                write(self._home, replace(count, committed=count.attempted))
        if behind is not None:
            log.error("a backup was restored, or the database is another one: %s; %s", cause(count), remedy(count))
        return behind

    def _noted(self) -> tuple[Count, Older | None]:
        """Compare both counts, and write the result and the attempted count to disk."""
        known = self._db.read_now(in_database, self._host_id)
        count, behind = compared(known, read(self._home))
        count = replace(count, committed=known or 0, attempted=max(known or 0, count.attempted) + 1)
        write(self._home, count)
        return count, behind

    def settled(self) -> None:
        """Forget what was found behind, because all of it is settled. Blocks. A failed write keeps it."""
        try:
            with self._locked():
                kept = read(self._home)
                if kept.older is not None:
                    write(self._home, Count(committed=kept.committed, attempted=kept.attempted))
        except OSError as error:
            log.warning("the count in the state directory %s was not changed: %s", self._home, error.strerror)

    def _require_ours(self) -> None:
        """Raise `OSError` if the directory now belongs to another host, because it was removed and created again."""
        if (self._home / "host_id").read_text(errors="replace").strip() != self._host_id:
            raise OSError(errno.ESTALE, "it was removed, and the directory there is another host's now")

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        with linux.opened(self._home / _LOCK, os.O_RDWR | os.O_CREAT) as fd:
            _lock(fd)
            yield


def _lock(fd: int) -> None:
    until = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise TimeoutError(errno.ETIMEDOUT, f"another process holds {_LOCK}") from None
            time.sleep(0.02)
        else:
            return


def in_database(conn: sa.Connection, host_id: str) -> int | None:
    """The count of a host in the database; None if the host has no row."""
    return conn.execute(sa.select(hosts.c.generation).where(hosts.c.host_id == host_id)).scalar_one_or_none()


def _raised(conn: sa.Connection, host_id: str, number: int, within: Callable[[sa.Connection], object]) -> None:
    within(conn)
    rows.change(conn, hosts, host_id, generation=number)


def write(home: Path, count: Count) -> None:
    """Write a count durably and atomically."""
    draft = home / f".{FILE}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(json.dumps(asdict(count)).encode())
        file.flush()
        os.fsync(fd)
    os.replace(draft, home / FILE)
    with linux.opened(home, os.O_RDONLY | os.O_DIRECTORY) as folder:
        os.fsync(folder)
