"""The screens of sessions: what a person would see on their terminals now, made from their logs."""

from __future__ import annotations

import asyncio
import bisect
import itertools
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from shellback.exec.core import limits
from shellback.exec.core.end_text import how_it_ended
from shellback.exec.core.errors import PtyError
from shellback.exec.core.model import SHELL, Session, SessionId, WindowSize
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.following import Follower
from shellback.exec.engine.sessions import Sessions
from shellback.exec.log.mask import Mask, Span, united
from shellback.exec.log.output import OutputLog
from shellback.exec.log.plain_text import harmless
from shellback.exec.terminals.keys import ALTERNATE_SCREEN, CURSOR_HIDDEN, Modes

if TYPE_CHECKING:
    from shellback.exec.terminals.emulator import Emulator

WINDOW: Final = 1024 * 1024
"""How many bytes of output a screen is made from; text drawn only before them is missing."""
KEPT: Final = 16
"""How many terminals are remembered, so that only new output has to be drawn."""
KEPT_CELLS: Final = 1_000_000
BUDGET_S: Final = 2.0
"""Seconds of processor time for drawing once; of hostile output that is slow to draw, a part is skipped then."""
REST_S: Final = 0.1
LONGEST_S: Final = 1.0
"""A program has finished drawing after `REST_S` without output; wait `LONGEST_S` for that at most."""
_PIECE: Final = 8 * 1024
_TAIL: Final = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """The rows of a terminal as plain text without trailing blanks; `cursor` is (row, column), from 1.

    `partial`: some output was dropped from the log, or was too much to draw. It is made from the first `upto` bytes.
    """

    rows: int
    cols: int
    lines: tuple[str, ...]
    cursor: tuple[int, int]
    title: str = ""
    modes: frozenset[str] = frozenset()
    partial: bool = False
    upto: int = 0

    @property
    def text(self) -> str:
        """All rows up to the last one that is not empty."""
        return "\n".join(self.lines).rstrip("\n")


@dataclass(slots=True)
class _View:
    """One terminal, and how much of the log it has processed. `modes` may be ahead of the emulator."""

    size: WindowSize
    modes: Modes = field(default_factory=Modes)
    scanned: int = 0
    emulator: Emulator | None = None
    drawn: int = 0
    partial: bool = False
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)


class Screens:
    """The screens of an engine's sessions. A bounded number is remembered; others are made again from the log."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._views: OrderedDict[SessionId, _View] = OrderedDict()

    async def of(self, session: Session) -> Screen:
        """What a person would see now, or at the end of an ended session. Cancelling leaves nothing behind.

        All output is drawn in the present size of the terminal, except output drawn by an earlier call.

        Raises:
            PtyError: The session has no terminal.
            InvalidCommand: Its log is on another host, or was pruned.
        """
        log, view = self._opened(session)
        async with view.busy:
            size = await self._size(session, view)
            end = log.size()
            view.scanned = await _fed(view.modes, log, view.scanned, end)
            await self._draw(view, log, size, end)
            return _shown(view, log.mask)

    async def at_rest(self, session: Session) -> Screen:
        """The screen after a moment without output, or after a second of output. Raises what `of` does."""
        log, _ = self._opened(session)
        follower = Follower(self._engine, session)
        until, size, ended = time.monotonic() + LONGEST_S, log.size(), not session.live
        while not ended and (left := until - time.monotonic()) > 0:
            grown = await follower.grown(size, timeout_s=min(REST_S, left))
            if grown.size == size:
                break
            size, ended = grown.size, grown.ended
        return await self.of(session)

    async def modes(self, session: Session) -> frozenset[str]:
        """The modes of its terminal. Raises what `of` does."""
        log, view = self._opened(session)
        async with view.busy:
            view.scanned = await _fed(view.modes, log, view.scanned, log.size())
            return view.modes.names

    def resized(self, session: Session, size: WindowSize) -> None:
        """Note the new size of the terminal, for when the kernel cannot be asked."""
        self._opened(session)[1].size = size

    def _opened(self, session: Session) -> tuple[OutputLog, _View]:
        if not session.pty:
            raise PtyError(f"session {session.id} has no terminal; process_log shows what it printed")
        log = Sessions(self._engine, None).readable(session)
        view = self._views.setdefault(session.id, _View(usual_size(session)))
        self._views.move_to_end(session.id)
        while len(self._views) > KEPT or (len(self._views) > 1 and self._cells() > KEPT_CELLS):
            self._views.popitem(last=False)
        return log, view

    def _cells(self) -> int:
        return sum(view.size.rows * view.size.cols for view in self._views.values())

    async def _size(self, session: Session, view: _View) -> WindowSize:
        if session.live:
            look = await self._engine.supervised.port.look(session.id)
            if look is not None and look.terminal is not None and look.terminal.rows and look.terminal.cols:
                return WindowSize(look.terminal.rows, look.terminal.cols)
        return view.size

    async def _draw(self, view: _View, log: OutputLog, size: WindowSize, end: int) -> None:
        if view.emulator is None or end - view.drawn > WINDOW:
            view.drawn = max(0, end - WINDOW)
            before = Modes()
            await _fed(before, log, 0, view.drawn)
            view.emulator = await asyncio.to_thread(_emulator, size, before.names)
            view.partial = view.drawn > 0
        elif size != view.size:
            view.emulator.fit(size.rows, size.cols)
        view.size = size
        data = await log.raw(view.drawn, end)
        whole = await asyncio.to_thread(drawn, view.emulator, data)
        view.partial = view.partial or not whole or len(data) < end - view.drawn
        view.drawn = end


def screen_text(screen: Screen, session: Session) -> str:
    """The screen for the model: its rows, then one line about it."""
    words = [f"screen of {screen.rows} rows and {screen.cols} columns"]
    words.append(f"cursor in row {screen.cursor[0]}, column {screen.cursor[1]}")
    words += [f"title {screen.title!r}"] if screen.title else []
    words += ["a full-screen program"] if ALTERNATE_SCREEN in screen.modes else []
    words += ["some of its output is missing or was too much to draw"] if screen.partial else []
    words.append(f"session {session.id}: {how_it_ended(session.end) if session.end else session.state.value}")
    return "\n".join([*([screen.text] if screen.text else []), f"[{', '.join(words)}]"])


def usual_size(session: Session) -> WindowSize:
    """The size that its terminal began with, unless the call said another."""
    return WindowSize(24, 80) if session.kind == SHELL else WindowSize(limits.PTY_ROWS, limits.PTY_COLS)


async def _fed(modes: Modes, log: OutputLog, start: int, end: int) -> int:
    # Bounded: a log without a cap may have any size, so earlier switches are not known.
    for position in range(max(start, end - limits.LOG_BYTES), end, WINDOW):
        modes.feed(await log.raw(position, min(position + WINDOW, end)))
    return end


def _emulator(size: WindowSize, before: frozenset[str]) -> Emulator:
    # Imported here: loading takes longer than that of all tools, and most conversations need no screen.
    from shellback.exec.terminals.emulator import Emulator

    emulator = Emulator(size.rows, size.cols)
    emulator.feed(b"\x1b[?1049h" if ALTERNATE_SCREEN in before else b"")
    emulator.feed(b"\x1b[?25l" if CURSOR_HIDDEN in before else b"")
    return emulator


def drawn(emulator: Emulator, data: bytes) -> bool:
    """Draw `data`; whether all of it was drawn."""
    began = time.thread_time()
    position, whole = 0, True
    while position < len(data):
        if time.thread_time() - began > BUDGET_S and position < len(data) - _TAIL:
            position, whole = len(data) - _TAIL, False
        emulator.feed(data[position : position + _PIECE])
        position += _PIECE
    return whole


def _hidden(rows: list[str], cols: int, mask: Mask) -> tuple[str, ...]:
    """The rows without secrets; one may go on in the next row where its first one is full, or have lines of its own."""
    from shellback.exec.terminals.emulator import cells

    if mask.mode != "mask":
        return tuple(rows)
    lines = [row.encode("utf-8", "replace") for row in rows]
    # A wide character that does not fit leaves the last cell empty.
    full = [cells(row) + cells(after[:1]) > cols for row, after in itertools.pairwise((*rows, ""))]
    found = [*_spans(lines, [b"" if one else b"\n" for one in full], mask)]
    found += _spans(lines, [b"\n" for _ in lines], mask) if any(full) else []
    return tuple(line.decode("utf-8", "replace") for line in _without(lines, united(found)))


def _spans(lines: list[bytes], ends: list[bytes], mask: Mask) -> Iterator[Span]:
    """The secrets in a text of these lines, by their offsets in the lines alone.

    The first line may go on from one that has scrolled away, and the last one may not be all.
    """
    whole = [line + end for line, end in zip(lines, ends, strict=True)]
    data = b"".join(whole).rstrip()
    begins = [0, *itertools.accumulate(map(len, whole))]
    added = [0, *itertools.accumulate(map(len, ends))]
    for one in mask.spans(data, torn=True):
        first, last = (bisect.bisect_right(begins, at) - 1 for at in (one.start, one.end - 1))
        yield Span(one.start - added[first], one.end - added[last], one.name)


def _without(lines: list[bytes], found: Sequence[Span]) -> list[bytes]:
    """The lines with each of these spans, which are in order, replaced in the line where it begins."""
    ends = [one.end for one in found]
    shown: list[bytes] = []
    begin = 0
    for line in lines:
        end, at, parts = begin + len(line), begin, list[bytes]()
        for one in itertools.takewhile(lambda one: one.start < end, found[bisect.bisect_right(ends, begin) :]):  # noqa: B023 - used at once
            if begin <= one.start:
                parts += [line[at - begin : one.start - begin], b"[secret %s]" % one.name.encode()]
            at = min(one.end, end)
        shown.append(b"".join([*parts, line[at - begin :]]))
        begin = end
    return shown


def _shown(view: _View, mask: Mask) -> Screen:
    emulator = view.emulator
    assert emulator is not None
    cursor = (min(emulator.cursor.y, view.size.rows - 1) + 1, min(emulator.cursor.x, view.size.cols - 1) + 1)
    return Screen(
        rows=view.size.rows,
        cols=view.size.cols,
        lines=tuple(map(harmless, _hidden(emulator.lines_of_text(), view.size.cols, mask))),
        cursor=cursor,
        title=harmless(mask.hide_text(emulator.title)),
        modes=view.modes.names,
        partial=view.partial,
        upto=view.drawn,
    )
