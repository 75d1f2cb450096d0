"""An attachment: output goes to the person's terminal, keys and sizes go to the session."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from shellback.cli.terminal.raw_terminal import RawTerminal, is_terminal
from shellback.exec.core import limits
from shellback.exec.core.errors import (
    ExecError,
    InputUnknown,
    InvalidCommand,
    LimitReached,
    SessionNotFound,
    SupervisorUnreachable,
    TaskCompleted,
)
from shellback.exec.core.model import SessionEnd, WindowSize
from shellback.exec.core.threads import cancelled

if TYPE_CHECKING:
    from shellback.exec.terminals.attaching import Attachment
    from shellback.exec.terminals.screen import Screen
    from shellback.work.approvals.typed import Typing

KEPT: Final = 256 * 1024
"""The most typed bytes that wait for a program which does not read; further ones are dropped, and the bell rings."""
PIECE: Final = 8 * 1024
END_S: Final = 10.0
"""How long to wait for the exit record."""
TWICE_S: Final = 0.5
"""A second press within this time sends the key."""
_LOOK_S: Final = 0.1
_LEAVE_S: Final = 5.0
_REDRAW_S: Final = 0.05
_INTERRUPT: Final = 0x03


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Why the attachment ended: the session `ended` (with its `end`, if known), a `signal`, or the person left."""

    ended: bool = False
    end: SessionEnd | None = None
    signal: int | None = None


class Attached:
    """One person attached to one session; without `typing`, read-only."""

    def __init__(
        self,
        attachment: Attachment,
        typing: Typing | None,
        detach_key: int,
        find_end: Callable[[], Awaitable[SessionEnd | None]],
    ) -> None:
        self._at = attachment
        self._typing = typing
        self._find_end = find_end
        self._pty = attachment.session.pty
        mode = "deaf" if not is_terminal(sys.stdin) else "raw" if self._pty else "lines"
        self._terminal = RawTerminal(mode, detach_key)
        self._picture = Picture(attachment, self._terminal, detach_key, writable=typing is not None)
        self._keys = Keystrokes(detach_key)
        self._typed = bytearray()
        self._eof = False
        self._something = asyncio.Event()
        self._resized = asyncio.Event()
        self._original: WindowSize | None = None
        self._given: WindowSize | None = None
        self._left: asyncio.Future[Left]

    async def stay(self) -> Left:
        """Attach until the end; then the terminal and the session's size are restored.

        Raises:
            SupervisorUnreachable: No supervisor tells the state of the session.
            StorageError: The note that a person types cannot be stored.
        """
        loop = asyncio.get_running_loop()
        self._left = loop.create_future()
        with self._caught(loop):
            try:
                with self._terminal:
                    try:
                        return await self._until_left()
                    except OSError:
                        if not self._terminal.gone():
                            raise
                        return Left(signal=signal.SIGHUP)
                    finally:
                        self._terminal.deafen()
                        await self._terminal.write_last(self._picture.leave())
            finally:
                await self._tidy()

    async def _until_left(self) -> Left:
        if self._pty and self._typing is not None:
            self._original = await self._at.size()
            await self._follow_size()
        await self._picture.begin()
        self._terminal.listen(self._heard)
        tasks: list[asyncio.Future[Left]] = [asyncio.ensure_future(self._ended())]
        if self._typing is not None:
            others: list[Coroutine[Any, Any, Left]] = [self._type(), self._typing.run(), self._sizes()]
            tasks += [asyncio.ensure_future(one) for one in others]
        try:
            done, _ = await asyncio.wait({self._left, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            return self._left.result() if self._left in done else next(iter(done)).result()
        finally:
            await cancelled(tasks)

    async def _tidy(self) -> None:
        with contextlib.suppress(ExecError, TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                # A person who attached later may have set the size for their terminal.
                if self._given is not None and self._original and await self._at.size() == self._given:
                    await self._at.resize(self._original)
        if self._typing is not None:
            await self._typing.close()

    def _leave(self, left: Left) -> None:
        if not self._left.done():
            self._left.set_result(left)

    @contextlib.contextmanager
    def _caught(self, loop: asyncio.AbstractEventLoop) -> Generator[None]:
        wishes = {signal.SIGINT: Left(), **{one: Left(signal=one) for one in (signal.SIGTERM, signal.SIGHUP)}}
        if not self._pty:
            wishes[signal.SIGQUIT] = Left()  # the detach key sends it in the mode `lines`
        for number, left in wishes.items():
            loop.add_signal_handler(number, self._leave, left)
        loop.add_signal_handler(signal.SIGWINCH, self._resized.set)
        stopping = signal.signal(signal.SIGTSTP, signal.SIG_IGN) if self._pty else None
        try:
            yield
        finally:
            for number in (*wishes, signal.SIGWINCH):
                loop.remove_signal_handler(number)
            if stopping is not None:
                signal.signal(signal.SIGTSTP, stopping)

    async def _ended(self) -> Left:
        await self._picture.follow()
        until = time.monotonic() + END_S
        # A worker may be taking the record over now, and it does not notify us.
        while (end := await self._find_end()) is None and time.monotonic() < until:  # noqa: ASYNC110 - see above
            await asyncio.sleep(_LOOK_S)
        return Left(ended=True, end=end)

    def _heard(self, data: bytes | None) -> None:
        """Take typed bytes; without `typing`, only the keys that leave have an effect."""
        if data is None:
            self._leave(Left(signal=signal.SIGHUP))
            return
        if not self._pty:
            self._eof = self._eof or not data
            self._take(data)
            return
        sent, leaves = self._keys.feed(data)
        if self._typing is None:
            leaves = leaves or self._keys.pressed or _INTERRUPT in sent
        elif self._keys.pressed:
            asyncio.get_running_loop().call_later(TWICE_S, self._leave_if_pressed)
        if leaves:
            self._leave(Left())
        self._take(sent)

    def _leave_if_pressed(self) -> None:
        if self._keys.pressed:
            self._leave(Left())

    def _take(self, data: bytes) -> None:
        if self._typing is None:
            return
        if len(self._typed) + len(data) > KEPT:
            self._terminal.ring()
            return
        self._typed += data
        self._something.set()

    async def _type(self) -> NoReturn:
        assert self._typing is not None
        while True:
            await self._something.wait()
            self._something.clear()
            while self._typed:
                data = bytes(self._typed[:PIECE])
                del self._typed[: len(data)]
                await self._typing.count(len(data))
                await self._sent(self._at.write(data))
            if self._eof:
                await self._sent(self._at.close_input())
                self._eof = False

    async def _sent(self, writing: Awaitable[None]) -> None:
        try:
            await writing
        except (InputUnknown, InvalidCommand, LimitReached, SessionNotFound, SupervisorUnreachable, TaskCompleted):
            # The session has ended or is ending, which `follow` reports; or the input is lost, which the person sees.
            self._terminal.ring()

    async def _sizes(self) -> NoReturn:
        if self._pty and self._given == self._original and self._picture.alternate:
            await self._redraw()
        while True:
            await self._resized.wait()
            self._resized.clear()
            if self._pty:
                await self._follow_size()

    async def _follow_size(self) -> None:
        size = self._terminal.size()
        rows, cols = limits.PTY_ROWS_RANGE, limits.PTY_COLS_RANGE
        self._given = WindowSize(min(max(size.rows, rows[0]), rows[-1]), min(max(size.cols, cols[0]), cols[-1]))
        with contextlib.suppress(SessionNotFound, TaskCompleted):
            await self._at.resize(self._given)

    async def _redraw(self) -> None:
        """Make a full-screen program redraw itself, with colours, by changing the size for a moment."""
        assert self._given is not None
        with contextlib.suppress(SessionNotFound, TaskCompleted):
            await self._at.resize(WindowSize(self._given.rows - 1, self._given.cols))
            await asyncio.sleep(_REDRAW_S)
            await self._at.resize(self._given)


class Keystrokes:
    """Finds the detach key among typed bytes. Pressed once it leaves; pressed twice it is sent once."""

    def __init__(self, key: int) -> None:
        self._key = key
        self.pressed = False
        """Whether the detach key was the last byte typed."""

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """The bytes to send, and whether the person leaves; bytes after the key are then dropped."""
        sent = bytearray()
        for byte in data:
            if self.pressed and byte != self._key:
                return bytes(sent), True
            if byte != self._key or self.pressed:
                sent.append(byte)
                self.pressed = False
            else:
                self.pressed = True
        return bytes(sent), False


BEHIND: Final = 1024 * 1024
"""A person who is further behind is shown the present screen instead of all output."""
SHOWN_BYTES: Final = 32 * 1024
TAIL: Final = 64 * 1024
_LONGEST: Final = 64
READ_FIRST_S: Final = 1.0
"""How long the greeting is shown alone if the screen has no room for it."""


class Picture:
    """The output of one session on one terminal."""

    def __init__(self, attachment: Attachment, terminal: RawTerminal, detach_key: int, *, writable: bool) -> None:
        from shellback.exec.terminals.attaching import Passing

        self._at = attachment
        self._terminal = terminal
        self._writable = writable
        self._key = f"C-{chr(detach_key + ord('@')).lower()}"
        self._passing = Passing(writable=writable)
        self._offset = 0
        self._err_offset = None if attachment.err is None else 0

    @property
    def alternate(self) -> bool:
        """Whether a full-screen program uses the alternate screen."""
        return self._passing.alternate

    async def begin(self) -> None:
        """Show the present output, and how to leave."""
        self._terminal.if_killed(self.leave())
        if self._at.session.pty:
            await self._paint()
        else:
            await self._terminal.write(f"{self._greeting()}\n".encode())
            await self._last_lines()

    async def follow(self) -> None:
        """Show new output, until the session has ended and all its output is shown.

        Raises:
            SupervisorUnreachable: No supervisor tells the state of the session any more.
        """
        while True:
            grown = await self._at.grown(self._offset, self._err_offset)
            if grown.size - self._offset > BEHIND:
                await (self._paint() if self._at.session.pty else self._last_lines())
                continue
            more = await self._more(grown.size)
            if grown.ended and not more:
                return

    def leave(self) -> bytes:
        """The bytes that restore the terminal's display."""
        return (self._passing.leave() if self._at.session.pty else b"") + b"\r\n"

    async def _more(self, size: int) -> bool:
        more = size > self._offset
        if more:
            upto = min(size, self._offset + SHOWN_BYTES)
            shown = self._passing.feed(await self._at.out.raw(self._offset, upto))
            self._terminal.if_killed(self.leave())
            await self._terminal.write(shown)
            self._offset = upto
        err, seen = self._at.err, self._err_offset
        if err is not None and seen is not None and (end := err.size()) > seen:
            await self._terminal.write(self._passing.feed(await err.raw(max(seen, end - TAIL), end)))
            self._err_offset, more = end, True
        return more

    async def _last_lines(self) -> None:
        end = self._at.out.size()
        data = await self._at.out.raw(max(self._offset, end - TAIL), end)
        lines = data.split(b"\n")[-self._terminal.size().rows :]
        await self._terminal.write(self._passing.feed(b"\n".join(lines)))
        self._offset = end

    async def _paint(self) -> None:
        """Show the screen and modes of the session; on a smaller terminal, the part with the cursor."""
        from shellback.exec.terminals.attaching import Passing

        screen = await self._at.screen()
        size = self._terminal.size()
        rows = screen.rows if not self._writable and size.rows > screen.rows else None
        passing = Passing(writable=self._writable, rows=rows)
        for start in range(max(0, screen.upto - limits.LOG_BYTES), max(0, screen.upto - BEHIND), BEHIND):
            # Pieces overlap by `_LONGEST`, so that a sequence cut by one piece is whole in the next.
            passing.skip_all(await self._at.out.raw(max(0, start - _LONGEST), start + BEHIND))
        passing.skip(await self._at.out.raw(max(0, screen.upto - BEHIND), screen.upto))
        greeting = self._greeting(screen)[: size.cols - 1]
        first = max(0, screen.cursor[0] - size.rows)
        lines = screen.lines[first : first + size.rows]
        while lines and not lines[-1]:
            lines = lines[:-1]
        room = len(lines) < size.rows
        before = "" if self._passing.alternate or passing.alternate else "\r\n" * size.rows
        if not self._offset:
            # Later output scrolls or draws over the greeting on the screen; this copy stays above it.
            await self._terminal.write(f"{greeting}\r\n".encode())
            if not room:
                await asyncio.sleep(READ_FIRST_S)
        drawn = [f"\x1b[{number};1H{line}" for number, line in enumerate(lines, 1) if line]
        if room and not self._offset:
            drawn.append(f"\x1b[{size.rows};1H\x1b[2m{greeting}\x1b[m")
        place = f"\x1b[{screen.cursor[0] - first};{screen.cursor[1]}H"
        whole = f"\x1b[?7l{''.join(drawn)}\x1b[?7h{place}"
        again = passing.modes()
        self._passing = passing
        self._terminal.if_killed(self.leave())
        await self._terminal.write(before.encode() + passing.enter() + whole.encode() + again)
        self._offset = screen.upto

    def _greeting(self, screen: Screen | None = None) -> str:
        session = self._at.session
        if screen is None:
            how = "lines are sent, Ctrl-D ends its input" if self._writable else "read-only"
            return f"[attached to {session.id}, {how}; Ctrl-C or {self._key} leaves]"
        if self._writable:
            return f"[attached to {session.id}; {self._key} leaves, twice sends it]"
        size, whole = self._terminal.size(), f"{screen.rows}x{screen.cols}"
        if size.rows < screen.rows or size.cols < screen.cols:
            return f"[attached to {session.id}; {self._key} leaves; made for {whole}, this terminal is smaller]"
        return f"[attached to {session.id}, read-only; {self._key} leaves]"
