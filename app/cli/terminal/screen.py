"""The terminal of a chat: single keys, and output while a person types.

Shellback's own lines begin in the first column. Text of the agent, people and commands has a margin in every row of the
screen, so that it cannot look like a question of Shellback.
"""

from __future__ import annotations

import contextlib
import io
import os
import queue
import select
import signal
import sys
import termios
import threading
import unicodedata
from types import FrameType
from typing import Any, Final, Self, cast

import click

from shellback.cli.output import drawn, fitted
from shellback.cli.shared import columns, handled
from shellback.cli.terminal.line_editor import Line, LineEditor
from shellback.exec.core.display import visible

PROMPT: Final = "> "
MARGIN: Final = "  "
_READ: Final = 64 * 1024
_TAB: Final = "    "


class Keyboard:
    """Standard input's terminal in a `with` block: it reads single keys, and pastes are marked.

    Unread bytes are dropped at the end, so that the shell does not get them.
    """

    def __init__(self, *, echo: bool = False) -> None:
        self._fd = sys.stdin.fileno()
        self._echo = echo
        self._before: list[Any] = []
        self._resumed: Any = None
        self._stopped = False

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._fd)
        self._resumed = signal.signal(signal.SIGCONT, self._resume)
        self._set()
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGCONT, self._resumed)
        with contextlib.suppress(OSError):
            click.echo(drawn("\x1b[?2004l"), nl=False)
        with contextlib.suppress(termios.error):  # the terminal may be closed
            termios.tcsetattr(self._fd, termios.TCSAFLUSH, self._before)

    def read(self, seconds: float) -> bytes | None:
        """The bytes typed within `seconds`, b"" if none; None if the terminal is closed."""
        if self._stopped:
            self._set()
        ready, _, _ = select.select([self._fd], [], [], seconds)
        try:
            return (os.read(self._fd, _READ) or None) if ready else b""
        except OSError:
            return None

    def typed(self) -> bytes:
        """The typed bytes that are not read yet."""
        data = b""
        while more := self.read(0):
            data += more
        return data

    def _resume(self, _number: int, _frame: FrameType | None) -> None:
        self._stopped = True  # another program may have changed the modes meanwhile

    def _set(self) -> None:
        from shellback.environment import plain_terminal

        self._stopped = False
        modes = termios.tcgetattr(self._fd)
        modes[3] &= ~(termios.ICANON | termios.IEXTEN | (0 if self._echo else termios.ECHO))
        modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
        # TCSADRAIN keeps bytes that were typed before we started.
        termios.tcsetattr(self._fd, termios.TCSADRAIN, modes)
        if not plain_terminal(by_kind=True):
            click.echo(drawn("\x1b[?2004h"), nl=False)


def confirmed(question: str, *, default: bool = False) -> bool:
    """Ask on standard error. Only text typed after the question was drawn answers; a paste does not.

    Raises:
        Abort: The person ends the input.
    """
    if not sys.stdin.isatty():
        return click.confirm(question, default=default, err=True)
    answers = {"y": True, "yes": True, "n": False, "no": False, "": default}
    with Keyboard(echo=True) as keys:
        editor = LineEditor()
        while True:
            editor.feed(keys.typed())
            editor.clear()
            asked = editor.asked()
            click.echo(f"{question} [{'Y/n' if default else 'y/N'}]: ", err=True, nl=False)
            ended = editor.feed(b"")
            while not ended:
                data = keys.read(60.0)
                ended = [None] if data is None else editor.feed(data)
            line = ended[0]
            if line is None:
                raise click.Abort
            if line.question == asked and line.text.strip().lower() in answers:
                return answers[line.text.strip().lower()]


def answered(question: str, default: str) -> str:
    """Ask for one line on standard error; Enter alone answers `default`.

    Raises:
        Abort: The person ends the input.
    """
    found: str = click.prompt(question, default=default, err=True)
    return found.strip()


class Lines:
    """Lines of a pipe, read without blocking, one at a time when told to; None is the end."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._wanted = threading.Semaphore(0)
        self._reading = False
        # Bytes that are not UTF-8 are replaced, so that they do not end the thread.
        cast("io.TextIOWrapper[Any]", sys.stdin).reconfigure(errors="replace")
        threading.Thread(target=self._read, daemon=True).start()

    def want(self) -> None:
        """Begin to read the next line, unless the thread already does."""
        if not self._reading:
            self._reading = True
            self._wanted.release()

    def wait(self, seconds: float) -> bool:
        """Whether a line, or the end, comes within `seconds`; `taken` returns it."""
        try:
            self._line = self._lines.get(timeout=seconds)
        except queue.Empty:
            return False
        self._reading = False
        return True

    def taken(self) -> str | None:
        """The line that `wait` has found; None at the end."""
        return self._line

    def _read(self) -> None:
        while True:
            self._wanted.acquire()
            line = sys.stdin.readline() or None
            self._lines.put(line)
            if line is None:
                return


class Screen:
    """Prints what is said; with `margin`, what Shellback does not say itself is behind one."""

    def __init__(self, *, margin: bool = False) -> None:
        self._margin = margin
        self._column = 0

    def piece(self, text: str) -> None:
        """Print text of the agent, which may continue the same line."""
        self._print(self._behind_the_margin(text))

    def said(self, text: str) -> None:
        """Print lines that contain text from elsewhere."""
        self.end_line()
        self.piece(f"{text}\n")

    def line(self, text: str) -> None:
        """Print lines of Shellback's own in the first column, in rows that fit; quoted text must be visible already."""
        self.end_line()
        self._print("".join(f"{row}\n" for line in text.split("\n") for row in fitted(line, columns())))

    def end_line(self) -> None:
        """Go to the beginning of a line."""
        self._print("\n" if self._column else "")
        self._column = 0

    def entered(self, text: str) -> None:
        """Print the whole typed text."""
        self.end_line()
        self._column = len(PROMPT)
        self._print(PROMPT + self._behind_the_margin(f"{text}\n"))

    def _print(self, text: str) -> None:
        click.echo(text, nl=False)

    def _behind_the_margin(self, text: str) -> str:
        """The text with a margin in every row of the terminal, also where it would wrap."""
        if not self._margin:
            self._column = 0 if text.endswith("\n") else 1
            return text
        width = max(columns() or 80, len(MARGIN) + 2)
        parts: list[str] = []
        for char in visible(text).replace("\t", _TAB):
            if char == "\n":
                parts.append(char)
                self._column = 0
                continue
            # Ambiguous characters count as wide: wrapping a column early does no harm.
            taken = 1 if char.isascii() or unicodedata.east_asian_width(char) not in "WFA" else 2
            if self._column + taken > width:
                parts.append("\n")
                self._column = 0
            if not self._column:
                parts.append(MARGIN)
                self._column = len(MARGIN)
            parts.append(char)
            self._column += taken
        return "".join(parts)


class Seat(Screen):
    """A person's terminal in a `with` block: prints above what is typed, and returns the lines that are entered."""

    def __init__(self) -> None:
        super().__init__(margin=True)

    def __enter__(self) -> Self:
        """Begin to read keys."""
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        """Give the terminal back."""
        raise NotImplementedError

    def read(self, seconds: float) -> list[Line | None]:
        """The lines entered within `seconds`; None stands for the end of input."""
        raise NotImplementedError

    def interrupted(self) -> bool:
        """Whether Ctrl-C was pressed since the last call; a second one in between raises KeyboardInterrupt."""
        raise NotImplementedError

    def asked(self) -> int:
        """Note that a question is drawn now; returns its number. No key pressed earlier answers it."""
        raise NotImplementedError

    def clear(self) -> bool:
        """Drop the text being typed; True if there was any."""
        raise NotImplementedError

    def prefill(self, text: str) -> None:
        """Put text where a person types, to be edited."""
        raise NotImplementedError

    def status(self, text: str) -> None:
        """Show facts of Shellback, in one line of visible text, where there is a place for them."""

    def growing(self, text: str) -> None:
        """Show what goes on now, in one line of visible text, where there is a place for it."""


class PlainSeat(Seat):
    """A terminal that can do nothing but print (TERM=dumb): one row to type in, drawn again below what is printed."""

    def __init__(self) -> None:
        super().__init__()
        self._editor = LineEditor()
        self._keys = Keyboard()
        self._interrupts = Interrupts()
        self._stack = contextlib.ExitStack()
        self._ended: list[Line | None] = []
        self._shown: tuple[str, int] | None = None

    def __enter__(self) -> Self:
        """See `Seat`."""
        self._stack.enter_context(self._keys)
        self._stack.enter_context(self._interrupts.caught())
        return self

    def __exit__(self, *_: object) -> None:
        """See `Seat`."""
        self._stack.close()

    def read(self, seconds: float) -> list[Line | None]:
        """See `Seat`."""
        self._rest()
        if not self._ended:
            data = self._keys.read(seconds)
            self._ended = [None] if data is None else self._editor.feed(data)
        ended, self._ended = self._ended, []
        return ended

    def interrupted(self) -> bool:
        """See `Seat`."""
        return self._interrupts.taken()

    def asked(self) -> int:
        """See `Seat`."""
        # Read just before drawing: reading after it would take an answer for text typed earlier.
        self._ended += self._editor.feed(self._keys.typed())
        return self._editor.asked()

    def clear(self) -> bool:
        """See `Seat`."""
        return self._editor.clear()

    def prefill(self, text: str) -> None:
        """See `Seat`."""
        self._editor.prefill(text)

    def _print(self, text: str) -> None:
        if self._shown is not None:
            click.echo(drawn("\r\x1b[K"), nl=False)
            self._shown = None
        super()._print(text)

    def _rest(self) -> None:
        """Draw the line being typed, if it has changed."""
        if self._column:
            return
        row, back = shown = self._editor.row((columns() or 80) - len(PROMPT) - 1)
        if shown == self._shown:
            return
        place = drawn(f"\x1b[{back}D") if back else ""
        click.echo(drawn("\r") + PROMPT + row + drawn("\x1b[K") + place, nl=False)
        self._shown = shown


class Interrupts:
    """Notes Ctrl-C. A second Ctrl-C before the first is taken raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._wished = False

    def taken(self) -> bool:
        """Whether Ctrl-C was pressed since the last call."""
        wished, self._wished = self._wished, False
        return wished

    def caught(self) -> contextlib.AbstractContextManager[None]:
        """Within the block, Ctrl-C is noted instead of raised."""

        def note(_number: int, _frame: object) -> None:
            if self._wished:
                raise KeyboardInterrupt
            self._wished = True

        return handled(note, signal.SIGINT)
