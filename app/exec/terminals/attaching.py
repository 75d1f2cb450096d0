"""Attaches a person's terminal to a running session: its screen, its output, and the person's input."""

from __future__ import annotations

import asyncio
import codecs
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, cast

from shellback.exec.core.answers import Grown
from shellback.exec.core.errors import SessionNotFound, SupervisorUnreachable, TaskCompleted
from shellback.exec.core.model import Session, SessionEnd, WindowSize
from shellback.exec.core.ports import SupervisorPort
from shellback.exec.link.supervised import Supervised
from shellback.exec.log.output import OutputLog
from shellback.exec.terminals.screen import Screen, Screens
from shellback.exec.wire import layout

if TYPE_CHECKING:
    from shellback.exec.engine.engine import Engine


T = TypeVar("T")
AWAY_S: Final = 30.0
"""How long to wait for a supervisor that is being replaced."""
_AGAIN_S: Final = 0.5
_ASK_S: Final = 30.0


class Attachment:
    """One session through its supervisor, without an engine: records, acknowledges and starts nothing.

    Input is sent once. `host_id`, `supervised`, `output` and `streams` are the parts of an engine that `Screens` uses.
    """

    def __init__(self, port: SupervisorPort, session: Session, home: Path) -> None:
        self.session = session
        self.host_id = session.host_id
        self.supervised = Supervised(port)
        self._sessions = home / layout.SESSIONS
        self._screens = Screens(cast("Engine", self))
        self.out, self.err = self.streams(session)

    def output(self, session: Session, *, err: bool = False) -> OutputLog:
        return OutputLog(self._sessions / session.id, session.id, err=err)

    def streams(self, session: Session) -> tuple[OutputLog, OutputLog | None]:
        """Its log, and that of standard error if it is separate."""
        return self.output(session), self.output(session, err=True) if session.separate_stderr else None

    async def screen(self) -> Screen:
        """The screen of its terminal. Raises what `Screens.of` does."""
        return await self._screens.of(self.session)

    async def size(self) -> WindowSize | None:
        """The size of its terminal, or None if unknown."""
        look = await self.supervised.port.look(self.session.id)
        found = None if look is None else look.terminal
        return None if found is None else WindowSize(found.rows, found.cols)

    async def grown(self, beyond: int, err_beyond: int | None) -> Grown:
        """Wait until there is more output, or the session has ended.

        Raises SupervisorUnreachable if there is no supervisor for 30 s.
        """
        try:
            return await _once_there(
                lambda: self.supervised.port.grown(
                    self.session.id, beyond, err_beyond=err_beyond, rest_s=0.0, timeout_s=_ASK_S
                )
            )
        except SessionNotFound:
            return Grown(size=self.out.size(), err_size=0 if self.err is None else self.err.size(), ended=True)

    async def write(self, data: bytes) -> None:
        """Type `data`, waiting while the program does not read; a cancellation may leave a part typed.

        Raises TaskCompleted if the session has ended or closed its input, and InputUnknown if the supervisor went away:
        it is unknown how much arrived.
        """
        while data:
            # Without a key: the supervisor remembers few keys, and they are for calls of the agent.
            told = await self.supervised.port.write(self.session.id, data)
            if told["closed"]:
                raise TaskCompleted(self.session.id, "it reads no more input")
            data = data[told["accepted"] :]

    async def close_input(self) -> None:
        """Close the input of the program. Raises as `write`."""
        await self.supervised.port.write(self.session.id, b"", eof=True)

    async def resize(self, size: WindowSize) -> None:
        """Change the size of its terminal.

        Raises SessionNotFound or TaskCompleted if the session has ended, SupervisorUnreachable as `grown`.
        """
        await _once_there(lambda: self.supervised.port.resize(self.session.id, size.rows, size.cols))

    async def end(self) -> SessionEnd | None:
        """Its end, if the supervisor still has it."""
        try:
            seen = await self.supervised.status(self.session.id)
        except SupervisorUnreachable:
            return None
        return None if seen is None else seen.end


async def _once_there(asking: Callable[[], Awaitable[T]]) -> T:
    """Ask the supervisor, again if it is being replaced; only for requests that may be repeated."""
    since = time.monotonic()
    while True:
        try:
            return await asking()
        except SupervisorUnreachable:
            if time.monotonic() - since > AWAY_S:
                raise
            await asyncio.sleep(_AGAIN_S)


_LONGEST: Final = 4096
"""Maximum length of a sequence or title; longer ones are dropped."""
_DRAWING: Final = frozenset("@ABCDEFGHIKLMPSXZ`abdefmrs")
"""The final characters of control sequences that move, write, delete or colour."""
_MODES: Final = frozenset({"1", "5", "6", "7", "12", "25", "47", "66", "69", "1047", "1048", "1049", "2026"})
_INPUT_MODES: Final = frozenset({"9", "1000", "1002", "1003", "1005", "1006", "1015", "2004"})
"""Mouse and bracketed paste: only for a person who may type."""
_ALTERNATE: Final = frozenset({"1049", "1047", "47"})
_APART: Final = _ALTERNATE | {"6", "69", "1048", "2026"}
"""Modes that `modes` does not switch on: they belong to what the program draws next."""
_USUAL: Final = frozenset({"7", "25"})
"""Modes that are on by default."""
_ESCAPES: Final = frozenset("78=>DEM")
_TITLES: Final = frozenset({"0", "1", "2"})

_TOKEN: Final = re.compile(
    r"\x1b\[(?P<params>[\x00-\x17\x19\x1c-\x3f]*)(?P<final>[@-~])"
    r"|\x1b(?P<string>[\]PX^_k])"
    r"|\x1b(?P<between>[ -/]*)(?P<end>[0-Z\\-~])"
    r"|\x1b\[?[\x00-\x17\x19\x1c-\x3f]*"
    r"|[\x00-\x06\x10-\x1a\x1c-\x1f\x7f-\x9f]+"
)
_UNFINISHED: Final = re.compile(r"\x1b(\[[\x00-\x17\x19\x1c-\x3f]*|[ -/]*)\Z")
_SWITCHES: Final = re.compile(rb"\x1b(?:\[\?[0-9;]{1,60}[hl]|[=>c])")
_STRING_END: Final = re.compile(r"[\x07\x18\x1a\x1b\x9c]")
_STRICT: Final = re.compile(r"([?]?)([0-9;:]*)([ !]?)\Z")

RESET: Final = (
    "\x1b[m\x1b(B\x0f\x1b[4l\x1b[?1l\x1b>\x1b[?2026l\x1b[?5l\x1b[?6l\x1b[?7h\x1b[?69l\x1b7\x1b[r\x1b8\x1b[?25h\x1b[0 q"
)
"""Resets how a terminal draws and sends; the cursor stays where it is."""
INPUT_OFF: Final = "".join(f"\x1b[?{mode}l" for mode in sorted(_INPUT_MODES, key=int))
_PUSH: Final = "\x1b[22;0t"
_POP: Final = "\x1b[23;0t"


class Passing:
    """Filters a program's output for the terminal of a person, piece by piece.

    Removed are sequences that make a terminal answer (the answer would be typed into the session, or later into the
    person's shell), write the clipboard, read files, print or resize, or change how keys are sent (the key to detach
    must stay recognisable). Only the sequences listed above pass. A split sequence waits for its other half, so between
    two pieces the terminal is never within a sequence.

    `writable`: the person may type, so mouse modes pass. `rows`: the program's number of rows, if the terminal has
    more; scrolling is limited to them.
    """

    def __init__(self, *, writable: bool, rows: int | None = None) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._modes = _MODES | _INPUT_MODES if writable else _MODES
        self._margins = "\x1b[r" if rows is None else f"\x1b[1;{rows}r"
        self._held = ""
        self._string: str | None = None  # the kind of an unfinished string
        self._text = ""
        self._now = dict[str, bool]()
        self._keypad = False
        self._titled = False
        self._reset = RESET.replace("\x1b[r", self._margins)

    def feed(self, data: bytes) -> bytes:
        """The output that may be shown, from `data` and the waiting part."""
        text = self._held + self._decoder.decode(data)
        self._held = ""
        out: list[str] = []
        at = 0
        while at < len(text):
            at = self._in_string(text, at, out) if self._string is not None else self._drawn(text, at, out)
        return "".join(out).encode()

    def skip(self, data: bytes) -> None:
        """Process earlier output, which is not shown."""
        self.feed(data)
        self._titled = False

    def skip_all(self, data: bytes) -> None:
        """Process much earlier output, of which only the modes count; much faster."""
        self.skip(b"".join(found[0] for found in _SWITCHES.finditer(data)))

    def enter(self) -> bytes:
        """The sequences that give a terminal a clear screen, the alternate one if the program shows that."""
        alternate = "\x1b[?1049h" if self.alternate else ""
        return f"{alternate}{self._reset}\x1b[H\x1b[2J".encode()

    def modes(self) -> bytes:
        """The sequences that switch a terminal to the program's modes, except the screen."""
        changed = {mode: on for mode, on in self._now.items() if on != (mode in _USUAL)}
        text = "".join(f"\x1b[?{mode}{'h' if on else 'l'}" for mode, on in changed.items() if mode not in _APART)
        return f"{text}{chr(27) + '=' if self._keypad else ''}".encode()

    def leave(self) -> bytes:
        """The sequences that restore the terminal; the cursor is below the shown text, or where it was before."""
        place = "\x1b[?1049l" if self.alternate else "\x1b[999;1H"
        return f"{RESET}{INPUT_OFF}{place}{_POP if self._titled else ''}".encode()

    @property
    def alternate(self) -> bool:
        """Whether the program shows the alternate screen."""
        return any(self._now.get(mode, False) for mode in _ALTERNATE)

    def _drawn(self, text: str, at: int, out: list[str]) -> int:
        """Filter from `at` to the end or the begin of a string; returns where to go on."""
        for found in _TOKEN.finditer(text, at):
            out.append(text[at : found.start()])
            at = found.end()
            if found["string"]:
                self._string, self._text = found["string"], ""
                return at
            if at == len(text) and _UNFINISHED.match(found[0]):
                self._held = found[0] if len(found[0]) <= _LONGEST else ""
                return at
            if found["final"]:
                out.append(self._control(found["params"], found["final"]))
            elif found["end"]:
                out.append(self._escape(found["between"], found["end"]))
        out.append(text[at:])
        return len(text)

    def _in_string(self, text: str, at: int, out: list[str]) -> int:
        end = _STRING_END.search(text, at)
        if len(self._text) <= _LONGEST:
            self._text += text[at : end.start() if end else len(text)][: _LONGEST + 1]
        if end is None:
            return len(text)
        if end[0] == "\x1b" and end.end() == len(text):
            self._held = "\x1b"  # the next piece tells whether this ends the string
            return len(text)
        terminated = end[0] in "\x07\x9c" or text[end.end() : end.end() + 1] == "\\"
        if terminated and self._string == "]":
            out.append(self._command(self._text))
        self._string = None
        return end.start() if end[0] == "\x1b" else end.end()

    def _control(self, params: str, final: str) -> str:
        strict = _STRICT.match(params)
        if strict is None or len(params) > _LONGEST:
            return ""
        private, numbers, between = strict.groups()
        if private:
            return self._mode(numbers, final) if final in "hl" and not between else ""
        match between + final:
            case "r" if not numbers.strip("0;"):
                return self._margins
            case "!p":
                return self._reset
            case kind:
                return f"\x1b[{params}{final}" if _draws(kind, numbers) else ""

    def _mode(self, numbers: str, final: str) -> str:
        passed = [number for number in (one.lstrip("0") for one in numbers.split(";")) if number in self._modes]
        self._now.update((number, final == "h") for number in passed)
        return f"\x1b[?{';'.join(passed)}{final}" if passed else ""

    def _escape(self, between: str, end: str) -> str:
        if not between and end == "c":
            left = "\x1b[?1049l" if self.alternate else ""
            self._now, self._keypad = {}, False
            return f"{left}{self._reset}{INPUT_OFF}\x1b[2J\x1b[H"
        if not between and end in _ESCAPES:
            self._keypad = end == "=" or (self._keypad and end != ">")
            return f"\x1b{end}"
        return f"\x1b{between}{end}" if between in {"(", ")"} or (between, end) == ("#", "8") else ""

    def _command(self, text: str) -> str:
        number, _, title = text.partition(";")
        if len(text) > _LONGEST or number not in _TITLES:
            return ""
        before, self._titled = "" if self._titled else _PUSH, True
        return f"{before}\x1b]{number};{''.join(filter(str.isprintable, title))}\x1b\\"


def _draws(kind: str, numbers: str) -> bool:
    """Whether a control sequence without a private mark only draws."""
    match kind:
        case "h" | "l":
            return numbers == "4"  # insert mode; the others change keys
        case "J":
            return "3" not in numbers  # 3 would delete the person's scrollback
        case "T":
            return ";" not in numbers  # more numbers track the mouse
        case "u":
            return not numbers  # with numbers it changes keys
        case _:
            return kind in _DRAWING or kind == " q"
