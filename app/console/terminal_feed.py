"""One terminal that is watched: one reader whatever the number of viewers, and at most one who has the keyboard.

A viewer takes what is new when the connection has room. Who is far behind is skipped ahead to the newest output, and
told how much that was. So a slow viewer costs nobody anything, and memory is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import TYPE_CHECKING, Any, Final

from shellback.client.output import Collected, SessionLog
from shellback.client.processes import find_end, how
from shellback.exec.core import limits
from shellback.exec.core.errors import (
    ExecError,
    InputUnknown,
    LimitReached,
    SessionNotFound,
    SupervisorUnreachable,
    TaskCompleted,
)
from shellback.exec.core.model import Session, WindowSize
from shellback.exec.core.ports import SupervisorPort
from shellback.exec.core.threads import cancelled
from shellback.exec.supervisor.records.times import sizes
from shellback.exec.terminals.attaching import Attachment, Passing
from shellback.exec.terminals.screen import usual_size
from shellback.exec.wire import layout
from shellback.exec.wire.ring import Ring
from shellback.storage.errors import StorageError
from shellback.work.approvals.typed import Typing
from shellback.work.errors import InvalidRequest, NoInput, SessionOver

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place

log = logging.getLogger(__name__)

FIRST: Final = 256 * 1024
"""So many bytes of the output before a reader begins are read."""
NEWEST: Final = 64 * 1024
"""If there is more at once, the reader goes on with the last so many bytes."""
PIECE: Final = 8 * 1024
KEPT: Final = 256 * 1024
"""Characters that are kept for viewers who come or are slow."""
TAIL: Final = 16 * 1024
"""A viewer who is skipped ahead gets so many of them."""
REST_S: Final = 0.1
"""The reader rests so long after much output. A viewer who was skipped ahead rests longer, the more there are."""
MUCH: Final = 16 * 1024
PING_S: Final = 15.0
VIEWERS: Final = 200
"""Viewers of one terminal at once."""
TYPED: Final = 64 * 1024
"""Bytes of one request that types."""
READ_S: Final = 10.0
"""The program has so long to read what is typed."""

Told = dict[str, Any]


@dataclass(eq=False, slots=True)
class Viewer:
    """One page that shows the terminal. `id` proves to the server that a request is of this page."""

    name: str
    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    seen: int | None = None
    """How much of the feed was sent to it."""


@dataclass(eq=False, slots=True)
class _Keyboard:
    """Who types, and the size that the terminal had before."""

    viewer: Viewer
    typing: Typing
    counting: asyncio.Task[None]
    before: WindowSize
    given: WindowSize | None = None


class Feed:
    """The terminal of one session, for viewers. Its reader runs while there is a viewer."""

    def __init__(self, where: Place, port: SupervisorPort, session: Session) -> None:
        self.session = session
        self._where = where
        self._at = Attachment(port, session, where.home)
        self._log = SessionLog(where, session, err=False)
        self._text = Collected()
        self._passing = Passing(writable=True)  # a viewer may take the keyboard at any time
        self._offset = 0
        self._chunks: deque[tuple[int, str]] = deque()
        self._begins = self._ends = 0
        """The place of the kept chunks in all that could have been shown."""
        self._entered = self._modes = ""
        """What a terminal is given before and after the kept chunks."""
        self._begun = False
        self._size = usual_size(session)
        self._over: Told | None = None
        self._rung = Ring()
        self._viewers: dict[str, Viewer] = {}
        self._keyboard: _Keyboard | None = None
        self._turn = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._tidying = set[asyncio.Task[None]]()
        self.gone = False
        """Whether the last viewer has left, or it cannot be read: the next viewer needs a feed of its own."""

    # -- viewers ----------------------------------------------------------------------------------

    async def view(self, name: str) -> AsyncGenerator[tuple[str, Told]]:
        """What one page of this account is told, until the session has ended.

        Raises InvalidRequest if there are too many viewers.
        """
        if len(self._viewers) >= VIEWERS:
            raise InvalidRequest(f"{VIEWERS} pages show this terminal: close one of them")
        viewer = Viewer(name)
        self._viewers[viewer.id] = viewer
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        try:
            yield "hello", {"viewer": viewer.id}
            state: Told = {}
            while True:
                rung = self._rung.next
                if (now := self._state(viewer)) != state:
                    state = now
                    yield "state", state
                if (found := self._new(viewer)) is not None:
                    yield found
                    if found[1].get("skipped"):
                        await asyncio.sleep(2 * REST_S * (1 + len(self._viewers) / 10))
                elif self._over is not None:
                    yield "end", self._over
                    return
                elif not await _set(rung):
                    yield "ping", {}
        finally:
            del self._viewers[viewer.id]
            self.gone = not self._viewers
            tidying = asyncio.ensure_future(self._left(viewer))
            self._tidying.add(tidying)
            tidying.add_done_callback(self._tidying.discard)

    def _state(self, viewer: Viewer) -> Told:
        held = None if self._keyboard is None else self._keyboard.viewer
        return {
            "rows": self._size.rows,
            "cols": self._size.cols,
            "viewers": len(self._viewers),
            "typing": None if held is None else held.name,
            "mine": held is viewer,
        }

    def _new(self, viewer: Viewer) -> tuple[str, Told] | None:
        """What a viewer has not seen: all of it, or the newest if that is too much; None if there is nothing."""
        if not self._begun:
            return None
        seen, viewer.seen = viewer.seen, self._ends
        if seen is None or seen < self._begins or self._ends - seen > 2 * TAIL:
            chunks = self._since(self._ends - (KEPT if seen is None else TAIL))
            skipped = 0 if seen is None else (chunks[0][0] if chunks else self._ends) - seen
            shown = "".join(text for _, text in chunks)
            return "fresh", {"text": f"{self._entered}{shown}{self._modes}", "skipped": skipped}
        text = "".join(text for _, text in self._since(seen))
        return ("output", {"text": text}) if text else None

    def _since(self, place: int) -> list[tuple[int, str]]:
        return [*dropwhile(lambda one: one[0] < place, self._chunks)]

    async def _left(self, viewer: Viewer) -> None:
        try:
            async with self._turn:
                if self._has_keyboard(viewer):
                    await self._give_back()
        finally:
            if not self._viewers and self._reader is not None:
                await cancelled([self._reader])
            self._rung.ring()

    async def close(self) -> None:
        """Give back the keyboard, and end the reader."""
        async with self._turn:
            await self._give_back()
        await asyncio.gather(*self._tidying)
        await cancelled([] if self._reader is None else [self._reader])

    # -- output -----------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            size = await asyncio.to_thread(self._log.size)
            self._show(await asyncio.to_thread(self._taken, size, FIRST))
            self._begun = True
            while True:
                self._rung.ring()
                grown = await self._at.grown(self._offset, None)
                if (more := grown.size - self._offset) > 0:
                    self._show(await asyncio.to_thread(self._taken, grown.size, NEWEST))
                elif grown.ended:
                    break
                if more > MUCH:
                    self._rung.ring()
                    await asyncio.sleep(REST_S)
            end = await find_end(self._where, self._at)
            self._over = {"said": "ended" if end is None else f"ended: {how(end)}", "again": False}
        except (ExecError, StorageError, OSError) as error:
            self._over, self.gone = {"said": str(error), "again": True}, True
        finally:
            self._begun = True
            self._rung.ring()

    def _taken(self, size: int, most: int) -> tuple[int, list[str]]:
        """How much output was left out, and what follows up to `size`: the newest `most` bytes. Blocks."""
        begins = self._skip(size - most) if size - self._offset > most else self._offset
        skipped = begins - self._offset
        offset = self._log.copy(begins, self._text, size - begins)
        self._offset = max(offset, size)  # beyond it, if the log has gone
        data = self._text.take()
        texts = [self._passing.feed(data[at : at + PIECE]).decode() for at in range(0, len(data), PIECE)]
        self._entered, self._modes = self._passing.enter().decode(), self._passing.modes().decode()
        known = sizes(self._log.path + layout.TIMES)
        if known and known[-1].rows and known[-1].cols:
            self._size = WindowSize(known[-1].rows, known[-1].cols)
        return skipped, texts

    def _skip(self, upto: int) -> int:
        """The place of a line or sequence soon after `upto`; of what comes before, only the modes count."""
        start = max(self._offset, upto - limits.LOG_BYTES)
        with contextlib.suppress(FileNotFoundError), open(self._log.path, "rb") as file:
            file.seek(start)
            while start < upto and (data := file.read(min(1 << 20, upto - start))):
                self._passing.skip_all(data)
                start += len(data)
            near = file.read(PIECE // 2)
            upto += min((place for place in (near.find(b"\n") + 1, near.find(b"\x1b")) if place > 0), default=0)
        return upto

    def _show(self, taken: tuple[int, list[str]]) -> None:
        skipped, texts = taken
        if skipped:
            self._chunks.clear()
            self._ends += skipped
        for text in filter(None, texts):
            self._chunks.append((self._ends, text))
            self._ends += len(text)
        while self._chunks and self._ends - self._chunks[0][0] > KEPT:
            self._chunks.popleft()
        self._begins = self._chunks[0][0] if self._chunks else self._ends

    # -- the keyboard -----------------------------------------------------------------------------

    def _viewer(self, viewer_id: str, name: str) -> Viewer:
        viewer = self._viewers.get(viewer_id)
        if viewer is None or viewer.name != name:
            raise InvalidRequest("this page does not show the terminal any more: load it again")
        return viewer

    async def take(self, viewer_id: str, name: str) -> None:
        """Give a page the keyboard, also if another one has it: that one is told.

        Raises:
            InvalidRequest: The page does not show the terminal.
            SessionOver: It has ended.
            NoInput: It takes no input.
        """
        self._viewer(viewer_id, name)
        if self._over is not None or not self.session.live:
            raise SessionOver(f"session {self.session.id} has ended. Nothing was typed")
        if not self.session.stdin_open:
            raise NoInput(f"session {self.session.id} takes no input")
        async with self._turn:
            await self._give_back()
            viewer = self._viewer(viewer_id, name)  # it may have left meanwhile
            typing = Typing(self._where.database, self.session, name, "console")
            counting: asyncio.Task[None] = asyncio.create_task(typing.run())
            self._keyboard = _Keyboard(viewer, typing, counting, self._size)
        self._rung.ring()

    async def give_back(self, viewer_id: str, name: str) -> None:
        """Take the keyboard from the page that has it; nothing if another one has it."""
        viewer = self._viewer(viewer_id, name)
        async with self._turn:
            if self._has_keyboard(viewer):
                await self._give_back()
        self._rung.ring()

    def _has_keyboard(self, viewer: Viewer) -> bool:
        return self._keyboard is not None and self._keyboard.viewer is viewer

    async def _give_back(self) -> None:
        held, self._keyboard = self._keyboard, None
        if held is None:
            return
        await cancelled([held.counting])
        with contextlib.suppress(ExecError, TimeoutError):
            async with asyncio.timeout(READ_S):
                # Somebody who attached meanwhile may have set another size.
                if held.given is not None and held.given == self._size != held.before:
                    await self._resize(held.before)
        try:
            await held.typing.close()
        except StorageError as error:
            log.warning("that a person has stopped typing is not noted: %s", error)

    def _holds(self, viewer_id: str, name: str) -> _Keyboard:
        viewer = self._viewer(viewer_id, name)
        if self._keyboard is None or not self._has_keyboard(viewer):
            raise InvalidRequest("another page has the keyboard. Nothing was typed: take it first")
        return self._keyboard

    async def type(self, viewer_id: str, name: str, data: bytes) -> None:
        """Type for the page that has the keyboard. The agent is told how many bytes; they are not stored.

        Raises:
            InvalidRequest: The page does not have it, or types too much at once.
            SessionOver: The session has ended.
            InputUnknown: The program did not read everything within 10 s.
            StorageError: The note that a person types cannot be stored; nothing was typed.
        """
        if len(data) > TYPED:
            raise InvalidRequest(f"one request types at most {TYPED} bytes. Nothing was typed: paste less at once")
        async with self._turn:
            held = self._holds(viewer_id, name)
            await held.typing.count(len(data))
            try:
                async with asyncio.timeout(READ_S):
                    await self._at.write(data)
            except (TimeoutError, LimitReached):
                raise InputUnknown("the program does not read: a part of what was typed may have arrived") from None
            except (SessionNotFound, TaskCompleted):
                raise SessionOver(f"session {self.session.id} has ended") from None

    async def resize(self, viewer_id: str, name: str, size: WindowSize) -> None:
        """Set the size of the terminal for the page that has the keyboard; it is set back when that gives it back.

        Raises InvalidRequest if the page does not have it.
        """
        rows, cols = limits.PTY_ROWS_RANGE, limits.PTY_COLS_RANGE
        async with self._turn:
            held = self._holds(viewer_id, name)
            held.given = WindowSize(min(max(size.rows, rows[0]), rows[-1]), min(max(size.cols, cols[0]), cols[-1]))
            await self._resize(held.given)
        self._rung.ring()

    async def _resize(self, size: WindowSize) -> None:
        with contextlib.suppress(SessionNotFound, TaskCompleted, SupervisorUnreachable):
            await self._at.resize(size)
            self._size = size


async def _set(event: asyncio.Event) -> bool:
    """Whether it was set before it was time for a sign of life."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PING_S):
            return await event.wait()
    return False
