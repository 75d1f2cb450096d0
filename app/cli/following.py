"""Following: the log of a process, the events of a conversation."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from app.exec.model import Session
    from app.wiring import Place
    from app.work.stream import Event

from app.exec.supervisor import layout

POLL_S: Final = 0.1
CHUNK: Final = 64 * 1024
Write = Callable[[bytes], None]


def last_part(where: Place, session: Session, lines: int, write: Write) -> int:
    """Write the last `lines` lines of a log and return the offset after them."""
    from app.exec.output import OutputLog

    log = OutputLog(_directory(where, session), session.id)
    size = log.size()
    write(asyncio.run(log.lines(-lines, lines)).text.encode())
    return size


def _directory(where: Place, session: Session) -> str:
    return f"{where.home}/{layout.SESSIONS}/{session.id}"


def follow_log(where: Place, session: Session, offset: int, write: Write) -> None:
    """Write what a process prints from `offset` until it has ended and all of it is written."""
    from app.storage import sessions

    while True:
        current = where.database.read_now(sessions.get, session.id)
        ended = current is None or not current.live
        offset = _copy(f"{_directory(where, session)}/{layout.LOG}", offset, write)
        if ended:
            return
        time.sleep(POLL_S)


def _copy(path: str, offset: int, write: Write) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return offset
    try:
        while data := os.pread(fd, CHUNK, offset):
            write(data)
            offset += len(data)
    finally:
        os.close(fd)
    return offset


class Events:
    """The events of one conversation after a number, without the tail of executions that were repeated."""

    def __init__(self, where: Place, conversation_id: str | None, after: int) -> None:
        self._database = where.database
        self._conversation_id = conversation_id
        self._number = after
        self._epochs: dict[str, int] = {}

    def new(self) -> Iterator[Event]:
        """What has come since the last call."""
        from app.work import stream

        found: list[Any] = self._database.read_now(stream.after, self._conversation_id, self._number)
        for event in found:
            self._number = event.id
            if event.epoch:
                if event.epoch < self._epochs.get(event.turn_id, 0):
                    continue
                self._epochs[event.turn_id] = event.epoch
            yield event
