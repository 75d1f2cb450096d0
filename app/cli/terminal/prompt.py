"""The seat of a person at a terminal that can draw: several lines to type in, history, completion, a status line.

`prompt_toolkit` reads keys in a thread of its own, so that a slow database does not delay what a person types.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import signal
import sys
import termios
import threading
from collections.abc import Coroutine, Iterable
from typing import Any, Final, Self, TypeVar, cast

import click
from prompt_toolkit.application import Application, run_in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus, is_done
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import ConditionalContainer, FormattedTextControl, HSplit, Window
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import PromptSession
from prompt_toolkit.styles import Style

from shellback.cli.output import painter
from shellback.cli.shared import columns
from shellback.cli.terminal.line_editor import LONGEST, Line
from shellback.cli.terminal.screen import MARGIN, PROMPT, Interrupts, Seat
from shellback.environment import plain_terminal
from shellback.exec.core.display import folded, visible

T = TypeVar("T")
_MAIN: Final = threading.main_thread().ident or 0
LIVE_ROWS: Final = 8
"""So many rows of an answer that is not complete are shown below those that are."""
LOOK_S: Final = 0.1
SWITCH_S: Final = 0.0005
"""What the caller loads meanwhile keeps a key from its echo for no longer."""
_STYLE: Final = Style.from_dict({"prompt": "bold", "growing": "ansiyellow", "status": "italic"})
_FENCE: Final = "```"


class Prompt(Seat):
    """See `Seat`. `words` are completed behind a slash; `history` are earlier lines, the oldest first."""

    def __init__(self, words: Iterable[str] = (), history: Iterable[str] = ()) -> None:
        super().__init__()
        self._lines: queue.SimpleQueue[Line | BaseException | None] = queue.SimpleQueue()
        self._presses: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._cleared = False
        self._interrupts = Interrupts()
        self._stack = contextlib.ExitStack()
        self._begun = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._partial = ""
        self._status = self._growing = ""
        self._question = 0
        self._by_keys = True
        self._pastes = False
        """Whether text was pasted into the line."""
        self._inserting = False
        self._before = ("", 0)
        self._session = self._made(words, history)

    def __enter__(self) -> Self:
        """See `Seat`."""
        self._stack.enter_context(self._interrupts.caught())
        self._modes = termios.tcgetattr(sys.stdin.fileno())
        self._stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()
        try:
            self._begun.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """See `Seat`. Lines that nobody has read are said."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, because the terminal is
            self._loop.call_soon_threadsafe(lambda: self._session.app.is_running and self._session.app.exit())
        self._thread.join()
        with contextlib.suppress(termios.error):  # the terminal may be closed
            # What was typed and not read is not for the shell behind us.
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSAFLUSH, self._modes)
        self._stack.close()
        while not self._lines.empty():
            if isinstance(line := self._lines.get_nowait(), Line) and line.text.strip():
                super()._print(f"not sent: {visible(line.text)}\n")

    def read(self, seconds: float) -> list[Line | None]:
        """See `Seat`."""
        try:
            found = self._lines.get(timeout=seconds)
        except queue.Empty:
            return []
        if isinstance(found, BaseException):
            raise found
        return [found]

    def interrupted(self) -> bool:
        """See `Seat`."""
        with contextlib.suppress(queue.Empty):
            self._cleared = self._presses.get_nowait()
            self._interrupts.taken()  # the signal of a press is not another press
            return True
        self._cleared = False
        return self._interrupts.taken()

    def asked(self) -> int:
        """See `Seat`."""

        async def ask() -> int:
            # Keys that were pressed before the question is drawn are taken before it is.
            self._session.app.key_processor.feed_multiple(self._session.app.input.read_keys())
            self._session.app.key_processor.process_keys()
            self._question += 1
            self._by_keys = not self._buffer.text
            return self._question

        return self._in_loop(ask(), self._question)

    def clear(self) -> bool:
        """See `Seat`. In this one, the key has cleared the line already."""
        return self._cleared

    def prefill(self, text: str) -> None:
        """See `Seat`."""

        async def fill() -> None:
            self._buffer.document = Document(text)

        self._in_loop(fill(), None)

    def status(self, text: str) -> None:
        """See `Seat`."""
        self._changed_to("_status", text)

    def growing(self, text: str) -> None:
        """See `Seat`."""
        self._changed_to("_growing", text)

    def piece(self, text: str) -> None:
        """See `Screen`. What is complete is printed as Markdown; the rest is shown above the line that is typed."""
        self._partial += text
        done, end, rest = self._partial.rpartition("\n\n")
        if end and done.count(_FENCE) % 2 == 0:
            self._partial = rest
            self._print(self._markdown(done) + "\n")
        self._session.app.invalidate()

    def said(self, text: str) -> None:
        """See `Screen`."""
        self.end_line()
        self._print(self._behind_the_margin(f"{text}\n"))

    def end_line(self) -> None:
        """See `Screen`."""
        text, self._partial = self._partial, ""
        if text.strip():
            self._print(self._markdown(text))
        super().end_line()

    def _markdown(self, text: str) -> str:
        from shellback.cli.terminal.markdown import rendered

        return rendered(text, columns() or 80, MARGIN)

    def _print(self, text: str) -> None:
        if not text:
            return
        if not self._thread.is_alive():
            super()._print(text)
            return

        async def above() -> None:
            await run_in_terminal(lambda: click.echo(text, nl=False))

        self._in_loop(above(), None)

    def _changed_to(self, name: str, text: str) -> None:
        if getattr(self, name) != text:
            setattr(self, name, text)
            self._session.app.invalidate()

    def _in_loop(self, work: Coroutine[Any, Any, T], otherwise: T) -> T:
        """What `work` returns; `otherwise` if the prompt has ended, as with its terminal."""
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            return otherwise
        while self._thread.is_alive():
            with contextlib.suppress(TimeoutError):
                return future.result(LOOK_S)
        return future.result() if future.done() else otherwise

    @property
    def _buffer(self) -> Buffer:
        return self._session.default_buffer

    def _run(self) -> None:
        app = self._session.app
        try:
            # Who waits for the prompt has it before the caller loads what only a message needs.
            app.after_render += self._drawn
            self._loop.run_until_complete(app.run_async(handle_sigint=False, set_exception_handler=False))
        except EOFError:
            self._lines.put(None)
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._lines.put(error)
        finally:
            self._begun.set()
            self._loop.close()

    def _drawn(self, _: Application[str]) -> None:
        self._begun.set()

    def _made(self, words: Iterable[str], history: Iterable[str]) -> PromptSession[str]:
        out = painter()
        output = Vt100_Output.from_pty(out, term=None)
        # Without it nothing is asked of the terminal, and nothing waits for its answer.
        output.enable_cpr = False
        session: PromptSession[str] = PromptSession(
            self._above,
            multiline=True,
            completer=_Words(words),
            complete_while_typing=Condition(lambda: self._buffer.text.startswith("/")),
            prompt_continuation=MARGIN,
            history=InMemoryHistory([*history]),
            input_processors=[_Unseen()],
            key_bindings=self._keys(),
            enable_suspend=True,
            erase_when_done=True,
            reserve_space_for_menu=6,
            style=_STYLE,
            include_default_pygments_style=False,
            color_depth=_no_colours() if plain_terminal() else None,
            input=create_input(sys.stdin),
            output=output,
        )
        status = Window(FormattedTextControl(self._below), height=1, dont_extend_height=True, wrap_lines=False)
        cast("HSplit", session.layout.container).children.append(ConditionalContainer(status, ~is_done))
        session.default_buffer.on_text_changed += self._changed
        return session

    def _above(self) -> StyleAndTextTuples:
        """What is shown above and before the line that is typed."""
        width = (columns() or 80) - 1
        rows = folded([f"{MARGIN}{row}" for row in visible(self._partial).expandtabs(4).split("\n")], width)
        tail = [f"{row}\n" for row in rows[-LIVE_ROWS:]] if self._partial.strip() else []
        found: StyleAndTextTuples = [("", "".join(tail))]
        if self._growing:
            found.append(("class:growing", f"{MARGIN}{self._growing}"[:width] + "\n"))
        return [*found, ("class:prompt", PROMPT)]

    def _below(self) -> StyleAndTextTuples:
        return [("class:status", f"{MARGIN}{self._status}"[: (columns() or 80) - 1])]

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        for names, does in (
            (("c-m",), self._enter),
            (("c-j",), self._enter),
            (("escape", "c-m"), _new_line),
            (("escape", "c-j"), _new_line),
            ((Keys.Any,), self._typed),
            ((Keys.BracketedPaste,), self._paste),
            (("c-c",), self._interrupt),
            (("c-d",), self._end),
        ):
            keys.add(*names, filter=has_focus(DEFAULT_BUFFER))(does)
        return keys

    def _paste(self, event: KeyPressEvent) -> None:
        self._pastes = True
        event.current_buffer.insert_text(event.data.replace("\r\n", "\n").replace("\r", "\n"))

    def _enter(self, event: KeyPressEvent) -> None:
        if _text_follows(event):
            # A terminal that does not mark a paste gives it in one piece, and nobody types so fast.
            self._pastes = True
            _new_line(event)
            return
        line = Line(event.current_buffer.text, self._question if self._by_keys else None, self._pastes)
        self._empty(event.current_buffer)
        self._lines.put(line)

    def _typed(self, event: KeyPressEvent) -> None:
        self._inserting = True
        event.current_buffer.insert_text(event.data * event.arg)
        self._inserting = False

    def _interrupt(self, event: KeyPressEvent) -> None:
        if not self._presses.empty():
            # Nobody has taken the last press: the thread that should waits for something, which a signal ends.
            signal.pthread_kill(_MAIN, signal.SIGINT)
        self._presses.put(bool(event.current_buffer.text))
        self._empty(event.current_buffer, kept=False)

    def _empty(self, buffer: Buffer, *, kept: bool = True) -> None:
        """Begin an empty line, which tells nobody that the text has changed."""
        buffer.reset(append_to_history=kept)
        self._by_keys, self._pastes = True, False
        self._before = "", buffer.working_index

    def _end(self, event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.delete()
        else:
            self._lines.put(None)

    def _changed(self, buffer: Buffer) -> None:
        """Note whether each character of the line was typed; only then can it be an answer."""
        text, place = buffer.text, buffer.working_index
        was, at = self._before
        if len(text) > LONGEST:
            buffer.text = text[:LONGEST]
            return
        if not text:
            self._by_keys = True
        elif not self._inserting and not (place == at and _cut_from(text, was)):
            self._by_keys = False
        self._before = text, place


class _Words(Completer):
    """Completes the first word of a line that begins with a slash."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = sorted(words)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002
        """See `Completer`."""
        typed = document.text_before_cursor
        if typed.startswith("/"):
            yield from (Completion(word, -len(typed)) for word in self._words if word.startswith(typed))


class _Unseen(Processor):
    """Shows a character that nobody would see, or that misleads, as one that is seen."""

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        """See `Processor`."""
        fragments: StyleAndTextTuples = [
            (one[0], "".join(char if visible(char) == char else "\N{REPLACEMENT CHARACTER}" for char in one[1]))
            for one in transformation_input.fragments
        ]
        return Transformation(fragments)


def _new_line(event: KeyPressEvent) -> None:
    event.current_buffer.insert_text("\n")


def _text_follows(event: KeyPressEvent) -> bool:
    """Whether text came in the same read, behind this key."""
    return any(len(press.data) == 1 and press.data.isprintable() for press in event.key_processor.input_queue)


def _cut_from(text: str, before: str) -> bool:
    """Whether `text` is `before` without some characters in one place."""
    gone = len(before) - len(text)
    alike = next((at for at, pair in enumerate(zip(text, before, strict=False)) if pair[0] != pair[1]), len(text))
    return gone > 0 and text[alike:] == before[alike + gone :]


def _no_colours() -> Any:
    from prompt_toolkit.output.color_depth import ColorDepth

    return ColorDepth.DEPTH_1_BIT
