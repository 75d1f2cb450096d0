"""One terminal, or one pipe, on one conversation: what is said goes in, what happens is shown."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

import click

from app.cli.children import worker_lives
from app.cli.elsewhere import home_of, waits
from app.cli.following import Events
from app.cli.requests import wanted
from app.cli.shared import PENDING, SET_ASIDE, Refused, columns
from app.cli.terminal import PROMPT, Interrupts, Lines, Screen, kept_terminal
from app.cli.waiting import Waiting
from app.exec.display import folded, shown, visible
from app.work import approvals, sending, stopping, stream
from app.work.errors import WorkError

if TYPE_CHECKING:
    from app.cli.children import WorkerChild
    from app.wiring import Place
    from app.work.approvals import Decision, Request, Scope
    from app.work.queues import Enqueuer
    from app.work.sending import Sent
    from app.work.stream import Event

LOOK_S: Final = 0.1
WORKER_LOOK_S: Final = 5.0
HOW: Final = "  y runs exactly this, once; n, or n and a reason, denies it; anything else is a message that waits"
HOW_SESSION: Final = "  s lets this and all further input through, unasked, until the process ends"


class Talk:
    """Sends, asks and shows. Whatever it is doing, ending it ends nothing of the conversation."""

    def __init__(
        self,
        where: Place,
        enqueuer: Enqueuer,
        conversation: str,
        *,
        by: str,
        interrupt: bool,
        child: WorkerChild | None,
    ) -> None:
        self._where = where
        self._enqueuer = enqueuer
        self._conversation = conversation
        self._by = by
        self._interrupt = interrupt
        self._child = child
        self._events = Events(where, conversation, where.database.read_now(stream.last_number))
        self._own: set[str] = set()
        self._asked: str | None = None
        self._seen = ""
        self._for_session = False
        self._person = False
        self._alone = False
        self._looked = time.monotonic()

    def with_a_person(self) -> int:
        """Until Ctrl-D; returns 0, or 3 while calls wait for approval.

        Ctrl-C stops the turn that runs; when none runs, or when it is being stopped, it ends the program.
        """
        self._person = True
        interrupts = Interrupts()
        with kept_terminal(), interrupts.caught():
            lines = Lines(prompt=PROMPT)
            self._screen = Screen(lines, person=True)
            self._ask_next()
            while True:
                self._show_news()
                self._screen.rest()
                self._look_for_the_worker()
                if interrupts.taken():
                    self._stop()
                if lines.wait(LOOK_S):
                    line = lines.taken()
                    if line is None:
                        click.echo()
                        return self._left_open()
                    self._take(line.strip())

    def with_a_pipe(self) -> int:
        """Until the input ends and its last message is answered or waits; returns the exit code."""
        lines = Lines(prompt=None)
        self._screen = Screen(lines, person=False)
        code = 0
        while True:
            lines.want()
            while not lines.wait(LOOK_S):
                self._show_news()
            line = lines.taken()
            if line is None:
                self._show_news()
                return code
            if line.strip():
                code = self._answer_to(self._send(line.strip()))

    def _stop(self) -> None:
        database = self._where.database
        if not database.read_now(stopping.stoppable, self._conversation):
            raise KeyboardInterrupt
        found = database.write_now(stopping.stop, self._enqueuer, self._conversation, by=self._by)
        if found.reach is None:
            raise KeyboardInterrupt  # it has ended by itself meanwhile
        self._screen.line("  stopping at the next step; Ctrl-C again leaves")

    def _take(self, line: str) -> None:
        word, _, reason = line.partition(" ")
        try:
            if self._asked and line.lower() in {"y", "yes"}:
                self._decide(self._asked, "approved", None)
            elif self._asked and self._for_session and line.lower() == "s":
                self._decide(self._asked, "approved", None, scope="session")
            elif self._asked and word.lower() in {"n", "no"}:
                self._decide(self._asked, "denied", reason.strip() or None)
            elif line:
                self._send(line)
                if self._asked and not self._interrupt:
                    self._screen.line("  kept; it is heard after your y or n")
        except WorkError as error:
            self._screen.line(f"  {error}")

    def _send(self, line: str) -> Sent:
        sent = sending.deliver(
            self._where.database,
            self._enqueuer,
            self._conversation,
            line.replace("\\n", "\n"),
            host_id=self._where.host_id,
            interrupt=self._interrupt,
            by=self._by,
        )
        self._own.add(sent.item_id)
        return sent

    def _answer_to(self, sent: Sent) -> int:
        waiting = Waiting(self._where.database, sent)
        while (fate := waiting.look()) is None:
            self._show_news()
            self._look_for_the_worker()
            time.sleep(LOOK_S)
        self._show_news()
        return {"pending_approval": PENDING, "set_aside": SET_ASIDE}.get(fate, 0)

    def _decide(self, request_id: str, decision: Decision, note: str | None, scope: Scope = "once") -> None:
        how: dict[str, Any] = {"by": self._by, "surface": "chat", "note": note, "scope": scope, "digest": self._seen}
        try:
            approvals.settle(self._where.database, self._enqueuer, request_id, decision, **how)
        finally:
            self._ask_next()

    def _ask_next(self) -> None:
        """Ask for one call at a time, so that a `y` is always about the one that was shown last."""
        waiting = self._pending()
        self._asked = waiting[0].id if waiting else None
        if waiting:
            # The row, not the event: an event is cut, and nobody approves what they cannot see.
            self._seen = waiting[0].digest
            self._for_session = approvals.why_not_for_session(waiting[0]) is None
            for line in folded((f"  {line}" for line in wanted(waiting[0])), columns()):
                self._screen.line(line)
            if self._person:
                self._screen.line(f"  {HOW}")
                if self._for_session:
                    self._screen.line(f"  {HOW_SESSION}")

    def _pending(self) -> list[Request]:
        return self._where.database.read_now(approvals.find, conversation_id=self._conversation, state="pending")

    def _left_open(self) -> int:
        waiting = self._pending()
        if waiting:
            click.echo(f"{len(waiting)} call(s) still wait for approval: shellback approvals list")
        return PENDING if waiting else 0

    def _look_for_the_worker(self) -> None:
        if time.monotonic() - self._looked < WORKER_LOOK_S:
            return
        self._looked = time.monotonic()
        if self._child is not None and self._child.process.poll() is not None:
            raise Refused(f"the worker of this chat has ended; see {self._where.home / 'worker.log'}. Nothing is lost")
        lives = worker_lives(self._where)
        home = home_of(self._where, self._conversation)
        lives = lives if home is None else not home.silent
        if not lives and not self._alone and (said := waits(self._conversation, home)):
            self._screen.line(f"  {said}")
        elif not lives and not self._alone:
            self._screen.line("  no worker runs: messages are kept until one does (shellback worker)")
        self._alone = not lives

    def _show_news(self) -> None:
        for event in self._events.new():
            self._show(event)

    def _show(self, event: Event) -> None:  # noqa: C901, PLR0912 - a table of kinds
        payload: dict[str, Any] = event.payload
        match event.kind:
            case "message" if event.turn_id not in self._own:
                self._screen.line(f"{visible(str(payload.get('by', 'somebody')))}{PROMPT}{visible(payload['text'])}")
            case "text":
                self._screen.piece(visible(payload["text"]))
            case "tool_call":
                for line in folded(_called(payload), columns()):
                    self._screen.line(line)
            case "approval" if self._asked is None:
                self._ask_next()
            case "decision":
                if payload["by"] != self._by or payload["decision"] == "superseded":
                    self._screen.line(f"  {payload['id']} {payload['decision']} by {visible(str(payload['by']))}")
                if payload["id"] == self._asked:
                    self._ask_next()
            case "exit":
                self._screen.line(f"  ! process {payload['session_id']} ended: {_end(payload)}")
            case "typed":
                self._screen.line(f"  ! {visible(str(payload['by']))}: {payload['text']}")
            case "watch":
                from app.exec.watch_text import watch_text

                self._screen.line(f"  ! {visible(watch_text(payload).split(chr(10))[1])}")
            case "answer":
                self._screen.end_line()
            case "stopping" if payload["by"] != self._by:
                self._screen.line(f"  {visible(str(payload['by']))} stops the turn")
            case "failed" | "stopped" | "alarm" | "blocked":
                self._screen.line(visible(payload["text"]))
            case _:
                pass


def _called(payload: dict[str, Any]) -> list[str]:
    args: dict[str, Any] = payload["args"]
    command = args.get("command")
    first, *more = shown(command if isinstance(command, str) else json.dumps(args)).split("\n")
    return [f"  → {visible(str(payload['tool']))} {first}", *(f"      {line}" for line in more)]


def _end(payload: dict[str, Any]) -> str:
    if payload["exit_code"] is not None:
        return f"exit code {payload['exit_code']}"
    if payload["signal"] is not None:
        return f"signal {payload['signal']}"
    return f"{payload['state']} ({payload.get('evidence') or payload.get('errno')})"
