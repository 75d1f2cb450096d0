"""The terminal of a chat: lines that a person types, and output that comes while they type."""

from __future__ import annotations

import contextlib
import importlib
import queue
import signal
import sys
import termios
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, cast

import click

if TYPE_CHECKING:
    import io

PROMPT: Final = "> "
_CLEAR: Final = "\r\x1b[K"


class Lines:
    """Lines of standard input without waiting for them; None is the end. One is read ahead, when told to."""

    def __init__(self, *, prompt: str | None) -> None:
        self._prompt = prompt
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._wanted = threading.Semaphore(0)
        self.reading = False
        # Text of any encoding is taken; what is not UTF-8 in it is marked, and never ends the thread.
        cast("io.TextIOWrapper[Any]", sys.stdin).reconfigure(errors="replace")
        threading.Thread(target=self._read, daemon=True).start()

    def want(self) -> None:
        """Begin to read the next line, unless that has begun; shows the prompt."""
        if not self.reading:
            self.reading = True
            self._wanted.release()

    def wait(self, seconds: float) -> bool:
        """Whether a line, or the end, has come within so many seconds; `taken` returns it."""
        try:
            self._line = self._lines.get(timeout=seconds)
        except queue.Empty:
            return False
        self.reading = False
        return True

    def taken(self) -> str | None:
        """The line that `wait` has found; None at the end."""
        return self._line

    def _read(self) -> None:
        while True:
            self._wanted.acquire()
            line = self._typed() if self._prompt is not None else sys.stdin.readline() or None
            self._lines.put(line)
            if line is None:
                return

    def _typed(self) -> str | None:
        try:
            return input(self._prompt)
        except (EOFError, OSError):
            return None


class Screen:
    """Prints above the line that is being typed and draws that line again below."""

    def __init__(self, lines: Lines, *, person: bool) -> None:
        self._lines = lines
        self._person = person
        self._midline = False
        self._hidden = False

    def piece(self, text: str) -> None:
        """Text that may go on in the same line."""
        self._hide()
        click.echo(text, nl=False)
        self._midline = not text.endswith("\n")

    def line(self, text: str) -> None:
        """A line of its own."""
        self._hide()
        self.end_line()
        click.echo(text)

    def end_line(self) -> None:
        """Go to the beginning of a line."""
        if self._midline:
            click.echo()
        self._midline = False

    def rest(self) -> None:
        """Nothing more for now: show what is being typed, or ask for a line."""
        if self._midline:
            return
        if self._hidden and self._lines.reading:
            click.echo(PROMPT + _being_typed(), nl=False)
        self._hidden = False
        self._lines.want()

    def _hide(self) -> None:
        if self._person and self._lines.reading and not self._hidden:
            click.echo(_CLEAR, nl=False)
            self._hidden = True


def _keep_keys() -> None:
    """Leave every key for the line that is read next: Ctrl-D in whole lines is gone when that line is edited."""
    modes = termios.tcgetattr(sys.stdin.fileno())
    modes[3] &= ~(termios.ICANON | termios.ECHOCTL)
    termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, modes)


def _being_typed() -> str:
    try:
        import readline
    except ImportError:
        return ""
    return readline.get_line_buffer()


class Interrupts:
    """Ctrl-C as a wish to look at. A second one, before the first was looked at, raises KeyboardInterrupt at once."""

    def __init__(self) -> None:
        self._wished = False

    def taken(self) -> bool:
        """Whether there was one since the last time."""
        wished, self._wished = self._wished, False
        return wished

    @contextlib.contextmanager
    def caught(self) -> Generator[None]:
        """Within the block Ctrl-C is taken down instead of raised."""

        def note(_number: int, _frame: object) -> None:
            if self._wished:
                raise KeyboardInterrupt
            self._wished = True

        before = signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def kept_terminal() -> Generator[None]:
    """Give the terminal back as it was, also when a line is being edited at the end."""
    before = termios.tcgetattr(sys.stdin.fileno())
    try:
        with contextlib.suppress(ImportError):
            importlib.import_module("readline")  # being there, it edits what `input` reads
            _keep_keys()
        yield
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)
        click.echo("\x1b[?2004l", nl=False)  # pasted text is no longer marked as such
