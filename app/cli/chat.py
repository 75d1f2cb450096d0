"""`shellback chat`: a client of the conversation. The agent runs in a worker; closing chat ends nothing of it."""

from __future__ import annotations

import getpass
import queue
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import click

from app.cli.children import a_worker
from app.cli.following import POLL_S, Events
from app.cli.shared import load_settings, opened, visible

if TYPE_CHECKING:
    from app.wiring import Place
    from app.work.stream import Event

PENDING: Final = 3


@click.command()
@click.option("--conversation", "-c", default="main", show_default=True, metavar="NAME", help="Which conversation.")
@click.option("--interrupt", is_flag=True, help="A message denies what waits for approval instead of waiting for it.")
def chat(conversation: str, interrupt: bool) -> None:
    """Talk to the agent: answers as they stream, approvals at the prompt, wakes as they come.

    With no worker alive it starts one as a child and stops it at the end; processes live on.
    Without a terminal it reads messages line by line and ends after the last answer, with
    exit code 3 if a call waits for approval then.
    """
    settings = load_settings()
    with opened(settings) as where, a_worker(where) as ours:
        if sys.stdin.isatty():
            click.echo(
                f"conversation {conversation}" + (", with a worker of its own" if ours else "") + "; Ctrl-D ends"
            )
            if not settings.enable_execute:
                click.echo("ENABLE_EXECUTE is not set: the agent has no shell tools")
        sys.exit(Chat(where, conversation, interrupt=interrupt).run())


class Chat:
    """One terminal, or one pipe, on one conversation."""

    def __init__(self, where: Place, conversation: str, *, interrupt: bool) -> None:
        from app.work import stream

        self._where = where
        self._conversation = conversation
        self._interrupt = interrupt
        self._events = Events(where, conversation, where.database.read_now(stream.last_number))
        self._asked: list[str] = self._pending()
        self._open = 0
        self._midline = False
        self._own: set[str] = set()
        self._person = sys.stdin.isatty()
        self._typed = _Typed()

    def run(self) -> int:
        """Follow and read until the input ends; returns the exit code."""
        ended = False
        self._prompt()
        while True:
            for event in self._events.new():
                self._show(event)
            if ended and (not self._open or self._asked):
                return PENDING if self._asked else 0
            line = self._typed.next() if self._person or not self._open else None
            if line is None:
                time.sleep(POLL_S)
            elif not line:
                ended = True
            elif line.strip():
                self._take(line.strip())
            else:
                self._prompt()

    def _take(self, line: str) -> None:
        if self._person and self._asked:
            self._decide(line)
            return
        from app import wiring
        from app.work import sending

        with wiring.enqueuing(self._where) as enqueuer:
            sent = self._where.database.write_now(
                sending.send,
                enqueuer,
                self._conversation,
                line.replace("\\n", "\n"),
                host_id=self._where.host_id,
                interrupt=self._interrupt,
                by=getpass.getuser(),
            )
        self._own.add(sent.item_id)
        self._open += 1

    def _decide(self, line: str) -> None:
        from app.cli.approvals import decide_at

        request_id = self._asked.pop(0)
        yes = line.lower() in {"y", "yes"}
        note = None if yes or line.lower() in {"n", "no"} else line
        decide_at(self._where, request_id, "approved" if yes else "denied", note=note, surface="chat")
        self._open += 1
        self._prompt()

    def _pending(self) -> list[str]:
        from app.work import approvals

        found = self._where.database.read_now(approvals.find, conversation_id=self._conversation, state="pending")
        return [request.id for request in found]

    def _show(self, event: Event) -> None:  # noqa: C901 - a table of kinds
        payload: dict[str, Any] = event.payload
        match event.kind:
            case "message" if event.turn_id not in self._own:
                self._line(f"{payload.get('by', 'somebody')}> {visible(payload['text'])}")
            case "text":
                self._piece(visible(payload["text"]))
            case "tool_call":
                self._line(f"  → {payload['tool']} {visible(str(payload['args'].get('command', payload['args'])))}")
            case "approval":
                self._asked.append(payload["id"])
                self._line(f"  ? {payload['tool']} wants to run, and waits for you ({payload['id']}):")
                for key, value in payload.items():
                    if key not in {"id", "tool"}:
                        self._line(f"      {key}: {visible(str(value))}")
            case "decision":
                self._asked = [request for request in self._asked if request != payload["id"]]
                self._line(f"  {payload['id']} {payload['decision']} by {payload['by']}")
            case "exit":
                self._line(f"  ! process {payload['session_id']} ended: {_end(payload)}")
            case "answer":
                self._finish(None)
            case "failed" | "alarm" | "blocked":
                self._finish(payload["text"])
            case _:
                pass
        if event.kind in {"approval", "answer", "failed", "alarm", "blocked"}:
            self._open = 0
            self._prompt()

    def _piece(self, text: str) -> None:
        click.echo(text, nl=False)
        self._midline = not text.endswith("\n")

    def _line(self, text: str) -> None:
        if self._midline:
            click.echo()
        click.echo(text)
        self._midline = False

    def _finish(self, text: str | None) -> None:
        if text is not None:
            self._line(visible(text))
        elif self._midline:
            click.echo()
        self._midline = False

    def _prompt(self) -> None:
        if self._person:
            click.echo(f"{self._asked[0]}: run it? [y / n / reason] " if self._asked else "> ", nl=False)


class _Typed:
    """Lines of standard input without waiting for them; an empty string is its end."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(line)
        self._lines.put("")

    def next(self) -> str | None:
        try:
            return self._lines.get_nowait()
        except queue.Empty:
            return None


def _end(payload: dict[str, Any]) -> str:
    if payload["exit_code"] is not None:
        return f"exit code {payload['exit_code']}"
    if payload["signal"] is not None:
        return f"signal {payload['signal']}"
    return f"{payload['state']} ({payload.get('evidence') or payload.get('errno')})"
