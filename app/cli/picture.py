"""What a person who is attached sees: first what is there now, then what comes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from shellback.cli.keystrokes import shown
from shellback.exec.core import limits
from shellback.exec.terminals.passing import Passing

if TYPE_CHECKING:
    from shellback.cli.raw_terminal import RawTerminal
    from shellback.exec.terminals.attaching import Attachment
    from shellback.exec.terminals.screen import Screen

BEHIND: Final = 1024 * 1024
"""Further behind, a person is shown what is there now instead of all that came before."""
PIECE: Final = 32 * 1024
TAIL: Final = 64 * 1024
_LONGEST: Final = 64
READ_FIRST_S: Final = 1.0
"""How long the line that says how to leave is shown by itself where the screen has no room for it."""


class Picture:
    """The output of one session on one terminal."""

    def __init__(self, attachment: Attachment, terminal: RawTerminal, detach_key: int, *, writable: bool) -> None:
        self._at = attachment
        self._terminal = terminal
        self._writable = writable
        self._key = shown(detach_key)
        self._passing = Passing(writable=writable)
        self._offset = 0
        self._err_offset = None if attachment.err is None else 0

    @property
    def alternate(self) -> bool:
        """Whether a full-screen program shows its own screen."""
        return self._passing.alternate

    async def begin(self) -> None:
        """Show what is there now, and how to leave."""
        self._terminal.if_killed(self.leave())
        if self._at.session.pty:
            await self._paint()
        else:
            await self._terminal.write(f"{self._greeting()}\n".encode())
            await self._last_lines()

    async def follow(self) -> None:
        """Show what comes, until the session has ended and all is shown.

        Raises:
            SupervisorUnreachable: Nobody can tell any more what comes.
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
        """What gives the terminal back, but for how it reads."""
        return (self._passing.leave() if self._at.session.pty else b"") + b"\r\n"

    async def _more(self, size: int) -> bool:
        more = size > self._offset
        if more:
            upto = min(size, self._offset + PIECE)
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
        """Show the screen of the session, and its modes. Where this terminal is smaller, the part with the cursor."""
        screen = await self._at.screen()
        size = self._terminal.size()
        rows = screen.rows if not self._writable and size.rows > screen.rows else None
        passing = Passing(writable=self._writable, rows=rows)
        for start in range(max(0, screen.upto - limits.LOG_BYTES), max(0, screen.upto - BEHIND), BEHIND):
            # A sequence that is cut in two is whole once more in the piece after it, which begins that much earlier.
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
            # What comes scrolls the one on the screen away, or draws over it: this one stays above.
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
