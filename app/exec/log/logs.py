"""Prunes logs by age, and the oldest ones by size; never one that may still be needed.

By age, the session's whole directory is removed. By size, the log is emptied: all of it becomes one hole, so readers
say how much there was.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from shellback.exec.core import limits
from shellback.exec.core.model import Delivery, SessionId
from shellback.exec.core.ports import SessionStore
from shellback.exec.log.links import LogLinks
from shellback.exec.log.output import extent, newlines_in
from shellback.exec.log.placements import Placements
from shellback.exec.wire import gaps, layout, linux
from shellback.exec.wire.descriptors import closing
from shellback.exec.wire.gaps import Hole

log = logging.getLogger(__name__)

STILL_S: Final = 60.0
"""A log written, or a session ended, within this time is not emptied: it is probably about to be read."""
_STREAMS: Final = ((layout.LOG, layout.HOLES), (layout.ERR, layout.ERR_HOLES))


class Kept(NamedTuple):
    """A session's directory: the time of its exit record, or of its start; allocated bytes."""

    session_id: SessionId
    at: float
    log_bytes: int
    all_bytes: int


async def cleanup_exec_logs(
    store: SessionStore,
    links: LogLinks,
    *,
    max_age_hours: float = limits.LOG_AGE_HOURS,
    conversation_bytes: int = 0,
    total_bytes: int = 0,
    undelivered: Collection[str] = (),
    now: float | None = None,
) -> list[str]:
    """Delete the logs of sessions that ended more than `max_age_hours` ago, then empty the oldest beyond the bounds.

    First logs of conversations with more than `conversation_bytes`, then all beyond `total_bytes`; for the total, a
    conversation counts with `conversation_bytes` at most, so that its output does not displace logs of another.

    Returns the session ids. The log stays if its session may still run, or if its end is awaited or not yet delivered
    (`undelivered`). Sessions stay in the store. 0 is no bound; allocated blocks are counted. Failures are logged. The
    cost depends on the existing directories only. After a cancel, some logs are done and the others untouched.
    """
    at = time.time() if now is None else now
    before = at - max_age_hours * 3600
    kept = await asyncio.to_thread(kept_logs, links.sessions)
    gone: list[str] = []
    for one in kept:
        goes = one.at < before and await _goes(store, one, before, undelivered)
        if goes and await asyncio.to_thread(remove_session, links, one.session_id):
            gone.append(one.session_id)
    left = [one for one in kept if one.session_id not in gone]
    room = await _room(store, left, conversation_bytes, total_bytes)
    for excess in (room.of_its_own, room.of_all):
        for one in left:
            if not one.log_bytes or one.session_id in gone or excess(one) <= 0:
                continue
            goes = await _goes(store, one, at - STILL_S, undelivered)
            if goes and await asyncio.to_thread(_emptied, links.sessions / one.session_id, at - STILL_S):
                gone.append(one.session_id)
                room.given_back(one)
    return gone


@dataclass(slots=True)
class _Room:
    """Bytes on disk by conversation, and the bounds; 0 is none."""

    whose: Mapping[str, str]
    used: Counter[str]
    each: int
    most: int

    def of_its_own(self, one: Kept) -> int:
        """The bytes of a session's conversation beyond its bound."""
        return self.used[self.whose[one.session_id]] - self.each if self.each else 0

    def of_all(self, one: Kept) -> int:  # noqa: ARG002 - the oldest goes, whichever it is
        """The bytes of all conversations, each up to its own bound, beyond the total bound."""
        return sum(min(used, self.each or used) for used in self.used.values()) - self.most if self.most else 0

    def given_back(self, one: Kept) -> None:
        """Subtract an emptied log: the size measured before, since some file systems update block counts late."""
        self.used[self.whose[one.session_id]] -= one.log_bytes


async def _room(store: SessionStore, kept: Sequence[Kept], each: int, most: int) -> _Room:
    whose: dict[str, str] = {}
    bounds = [bound for bound in (each, most) if bound]
    within = not bounds or sum(one.all_bytes for one in kept) <= min(bounds)
    for one in kept:
        session = None if within else await store.get(one.session_id)
        whose[one.session_id] = one.session_id if session is None else session.conversation_id
    used: Counter[str] = Counter()
    for one in kept:
        used[whose[one.session_id]] += one.all_bytes
    return _Room(whose, used, each, most)


def _emptied(directory: Path, before: float) -> bool:
    try:
        return empty_logs(directory, before)
    except OSError as error:
        log.warning("the log in %s stays, it cannot be emptied: %s", directory, error.strerror)
        return False


async def _goes(store: SessionStore, kept: Kept, before: float, undelivered: Collection[str]) -> bool:
    """Whether the session's log is not needed any more."""
    session = await store.get(kept.session_id)
    return (
        session is not None
        and session.end is not None
        and session.end.ended_at < before
        and session.delivery is not Delivery.INLINE
        and session.id not in undelivered
    )


def kept_logs(sessions: Path) -> list[Kept]:
    """All sessions' directories, oldest first; unreadable ones are logged and left out."""
    found: list[Kept] = []
    places = Placements(sessions.parent)
    with contextlib.suppress(FileNotFoundError), os.scandir(sessions) as directories:
        for directory in directories:
            try:
                placed = directory.is_symlink() and places.home_of(directory.name) is not None
                if directory.is_dir(follow_symlinks=placed):
                    found.append(_kept(directory))
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("%s cannot be read and is left alone: %s", directory.path, error.strerror)
    return sorted(found, key=lambda one: one.at)


def _kept(directory: os.DirEntry[str]) -> Kept:
    status = directory.stat()
    at, log_bytes, all_bytes = status.st_mtime, 0, status.st_blocks * 512
    with os.scandir(directory.path) as files:
        for file in files:
            status = file.stat(follow_symlinks=False)
            all_bytes += status.st_blocks * 512
            if file.name in {layout.LOG, layout.ERR}:
                log_bytes += status.st_blocks * 512
            elif file.name in {layout.ACKED, layout.EXIT}:
                at = status.st_mtime
    return Kept(SessionId(directory.name), at, log_bytes, all_bytes)


def remove_session(links: LogLinks, session_id: str) -> bool:
    """Remove the files of an ended session; whether all are gone.

    The directory stays while its exit record is not acknowledged: without it the supervisor would tell the end of a
    forgotten session. Failures are logged.
    """
    directory = links.sessions / session_id
    try:
        if (directory / layout.EXIT).exists():
            return False
        home = Placements(links.sessions.parent).home_of(session_id)
        with contextlib.suppress(FileNotFoundError):  # removed before, or by another worker of this host
            shutil.rmtree(directory if home is None else home / layout.SESSIONS / session_id)
        if home is not None:
            directory.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s cannot be removed and is left alone: %s", directory, error.strerror or error)
        return False
    links.remove(session_id)
    return not os.path.lexists(directory)


def empty_logs(directory: Path, before: float) -> bool:
    """Free the blocks of logs not written since `before`; whether a log of the session is empty now."""
    emptied = False
    for name, table in _STREAMS:
        try:
            fd = os.open(directory / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        with closing(fd):
            status = os.fstat(fd)
            if status.st_blocks and status.st_mtime >= before:
                continue
            if status.st_blocks:
                _note_dropped(fd, directory / table)
                try:
                    linux.punch_hole(fd, 0, status.st_size)
                except OSError:  # a file system without holes in files
                    os.ftruncate(fd, 0)
                    os.ftruncate(fd, status.st_size)
            emptied = True
    return emptied


def _note_dropped(fd: int, table: Path) -> None:
    """Record the whole log as one hole, before its bytes are dropped."""
    size, holes = extent(fd, str(table))
    newlines = newlines_in(fd, 0, size, holes)
    whole = Hole(0, size, newlines, 0, any(hole.uncounted for hole in holes))
    draft = table.with_name(table.name + ".emptied")  # the supervisor may write its own draft
    try:
        draft.touch(mode=0o600)
        draft.write_text(json.dumps([gaps.row_of(whole)]))
        draft.replace(table)
    except OSError:
        # On a full disk: emptying is what makes room.
        draft.unlink(missing_ok=True)
        gaps.write_last(str(table), whole)
    else:
        gaps.remove_last(str(table))
