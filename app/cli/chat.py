"""`shellback chat`: a client of a conversation. The agent runs in a worker; closing chat does not end its turns."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import deque
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from shellback.cli.approvals import wanted
from shellback.cli.children import WorkerChild, a_worker, make_default
from shellback.cli.findings import news, open_line
from shellback.cli.options import workspace_option
from shellback.cli.shared import OF_A_FATE, PENDING, Refused, columns, handled, lasting_settings, opened
from shellback.cli.terminal.line_editor import Line, LineEditor
from shellback.cli.terminal.screen import PROMPT, Interrupts, Keyboard, Lines, Screen
from shellback.client.caller import me
from shellback.client.following import Events, Position
from shellback.client.freshness import home_of, waits, worker_lives
from shellback.client.messages import Waiting
from shellback.exec.core.display import folded, shown, shown_line
from shellback.wiring.choice import check_workspace
from shellback.work.errors import WorkError

if TYPE_CHECKING:
    from shellback.settings import Settings
    from shellback.wiring.wiring import Place
    from shellback.work.approvals.approvals import Decision, Request, Scope
    from shellback.work.approvals.sending import Sent
    from shellback.work.queue.mailbox import Workspace
    from shellback.work.queue.queues import Enqueuer
    from shellback.work.queue.stream import Event

LOOK_S: Final = 0.1
WORKER_LOOK_S: Final = 5.0
READ_S: Final = 0.7
"""The time between a request and its question, so that a key meant for something else is not an answer."""
AGAIN_S: Final = 5.0
"""A second Ctrl-C within this time leaves."""
HOW: Final = "y runs exactly this, once; n, or n and a reason, denies it; other text is sent after you decide"
HOW_SESSION: Final = "s allows this and all further input, without asking, until the process ends"
HOW_HOST: Final = "s allows this and all further connections of this conversation to it, without asking"
UNASKED: Final = "not an answer: it was pasted, or typed before the question was shown. Type it again to decide"
HELP: Final = (
    "a line is a message to the agent; a paste is one message, sent with Enter; Alt-Enter begins a new line in it",
    "while a call waits, type y, n or n REASON to decide it (s if it is offered); a pasted answer does not count",
    "Ctrl-C stops the running turn; Ctrl-C twice in five seconds, exit, quit or Ctrl-D leaves; processes keep running",
)


@click.command()
@click.option(
    "--conversation", "-c", default="main", show_default=True, metavar="NAME", help="Name of the conversation."
)
@workspace_option
@click.option("--interrupt", is_flag=True, help="Each message denies the calls that wait for approval.")
def chat(conversation: str, workspace: str | None, interrupt: bool) -> None:
    """Talk to the agent: streamed answers, approvals at the prompt, wakes.

    If no worker is alive, chat starts one as a child and stops it at the end. Processes keep running.

    A paste is one message and never an answer; Alt-Enter begins a new line in a message. Ctrl-C stops the running
    turn. A second Ctrl-C, exit, quit or Ctrl-D leaves. help repeats this.

    Without a terminal, chat reads one message per line, waits for each answer and asks nothing. Use `send -` for a
    message of several lines. The exit code is then the highest of: 0 answered, 3 a call waits for approval, 4 set
    aside, 5 failed, 6 stopped, 7 a call was denied, 8 out of budget.

    \b
      ENABLE_EXECUTE=true shellback chat
      shellback chat -c shop -w web         begin a conversation in the workspace web
      echo 'What runs?' | shellback chat -c build
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.wiring import wiring
    from shellback.wiring.spaces import bound
    from shellback.work.approvals.sending import require_name
    from shellback.work.queue.mailbox import workspace_of

    require_name(conversation)
    settings = lasting_settings()
    with handled(_leave, signal.SIGTERM, signal.SIGHUP), opened(settings) as where:
        if not worker_lives(where):
            make_default(settings)
            check_workspace(settings)
        wanted = known = where.database.read_now(workspace_of, conversation)
        if workspace is not None:
            wanted = bound(settings, workspace).of(conversation)
        if known not in {None, wanted}:
            raise Refused(
                f"conversation {conversation} works in workspace {known} since its start, not in {wanted}: leave"
                " --workspace out, or give another name with --conversation"
            )
        with a_worker(where) as ours, wiring.enqueuing(where) as enqueuer:
            person = sys.stdin.isatty() and sys.stdout.isatty()
            if person:
                _greet(conversation, settings, wanted, ours=ours is not None)
            if ours is not None and ours.on_the_host and settings.enable_execute:
                click.echo(f"commands run on the host, without a sandbox: {ours.on_the_host}", err=not person)
            talk = Talk(where, enqueuer, conversation, by=me(), interrupt=interrupt, child=ours, workspace=wanted)
            code = talk.with_a_person() if person else talk.with_a_pipe()
            if person and ours is not None:
                click.echo("stopping the worker; a running turn ends first, processes keep running")
    sys.exit(code)


def _greet(conversation: str, settings: Settings, workspace: Workspace | None, *, ours: bool) -> None:
    worker = "its own worker" if ours else "the running worker"
    answers = f"agent {settings.agent}" if settings.agent else f"model {settings.model}"
    click.echo(f"conversation {conversation}, {worker}, {answers}; Ctrl-D leaves")
    if settings.enable_execute:
        but = "" if settings.auto_approve == "off" else ", except read-only ones in a sandbox"
        place = workspace if workspace is not None and workspace.path else settings.workspace_root
        click.echo(f"commands run in {place}; each needs approval{but}")
    else:
        click.echo("ENABLE_EXECUTE is not set: the agent has no tools that run commands")


def _leave(number: int, _frame: object) -> None:
    """End the program in order after SIGTERM or a closed terminal, so that its worker is stopped."""
    sys.exit(128 + number)


@dataclass
class Talk:
    """Sends messages, asks for decisions and shows events. Ending it does not end a turn of the conversation."""

    where: Place
    enqueuer: Enqueuer
    conversation: str
    _: KW_ONLY
    by: str
    interrupt: bool
    child: WorkerChild | None
    workspace: Workspace | None = None

    def __post_init__(self) -> None:
        from shellback.work.queue import stream

        self._events = Events(
            self.where.database, self.conversation, Position(self.where.database.read_now(stream.last_number))
        )
        self._own: set[str] = set()
        self._asked: str | None = None
        self._seen = ""
        self._offer = ""
        self._question: int | None = None
        self._ask_at = 0.0
        self._pressed = -AGAIN_S
        self._editor = LineEditor()
        self._ended: deque[Line | None] = deque()
        self._alone = False
        self._looked = time.monotonic()

    def with_a_person(self) -> int:
        """Talk until Ctrl-D, `exit` or `quit`; returns 0, or 3 while calls wait for approval.

        Ctrl-C stops the running turn; a second one, or two when no turn runs, raises KeyboardInterrupt.
        """
        interrupts = Interrupts()
        with Keyboard() as keys, interrupts.caught():
            self._screen = Screen(self._editor)
            if (said := open_line(self.where)) is not None:
                self._screen.said(said)
            self._ask_next()
            while True:
                self._show_news()
                self._ask(keys)
                self._screen.rest()
                self._look_for_the_worker()
                if interrupts.taken():
                    self._interrupted()
                if not self._ended:
                    data = keys.read(LOOK_S)
                    self._ended += [None] if data is None else self._editor.feed(data)
                while self._ended:
                    line = self._ended.popleft()
                    if line is None or self._take(line):
                        self._screen.end_line()
                        return self._left_open()

    def with_a_pipe(self) -> int:
        """Talk until the input ends and its last message is answered or waits; returns the highest exit code."""
        lines = Lines()
        self._screen = Screen()
        if (said := open_line(self.where)) is not None:
            click.echo(said, err=True)
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
                code = max(code, self._answer_to(self._send(line.strip())))

    def _interrupted(self) -> None:
        from shellback.work.turn import stopping

        database = self.where.database
        again, self._pressed = time.monotonic() - self._pressed < AGAIN_S, time.monotonic()
        if database.read_now(stopping.stoppable, self.conversation):
            found = database.write_now(stopping.stop, self.enqueuer, self.conversation, by=self.by)
            if found.reach is not None:
                self._screen.line("stopping at the next step; Ctrl-C again leaves")
                return
        if again:
            raise KeyboardInterrupt
        self._editor.clear()
        self._screen.line("no turn runs; Ctrl-C again leaves")

    def _take(self, line: Line) -> bool:
        """Carry out a line; True if it leaves."""
        self._screen.entered(line.text)
        self._pressed = -AGAIN_S
        text = line.text.strip()
        command = text.lower() if line.question is not None else ""
        if command in {"exit", "quit"}:
            return True
        try:
            if command in {"help", "?"}:
                self._screen.line("\n".join(HELP))
            elif text:
                self._hear(text, answers=self._question is not None and line.question == self._question)
        except WorkError as error:
            self._screen.said(str(error))
        return False

    def _hear(self, text: str, *, answers: bool) -> None:
        """Take a line as the decision about the shown call, or as a message."""
        word, _, reason = text.partition(" ")
        asked, word, reason = self._asked, word.lower(), reason.strip()
        denies = word in {"n", "no"}
        approves = not reason and word in ({"y", "yes", "s"} if self._offer else {"y", "yes"})
        if asked and answers and approves:
            self._decide(asked, "approved", None, scope="session" if word == "s" else "once")
        elif asked and answers and denies:
            self._decide(asked, "denied", reason or None)
        elif asked and not reason and (approves or denies):
            self._screen.line(UNASKED)
        else:
            self._send(text)
            if asked and not self.interrupt and self._offer != HOW_HOST:
                self._screen.line("stored; the agent gets it after your y or n")

    def _send(self, line: str) -> Sent:
        from shellback.work.approvals import sending

        sent = sending.deliver(
            self.where.database,
            self.enqueuer,
            self.conversation,
            line,
            host_id=self.where.host_id,
            interrupt=self.interrupt,
            by=self.by,
            workspace=self.workspace,
        )
        self._own.add(sent.item_id)
        return sent

    def _answer_to(self, sent: Sent) -> int:
        waiting = Waiting(self.where.database, sent)
        while (fate := waiting.look()) is None:
            self._show_news()
            self._look_for_the_worker()
            time.sleep(LOOK_S)
        self._show_news()
        return OF_A_FATE.get(fate, 0)

    def _decide(self, request_id: str, decision: Decision, note: str | None, scope: Scope = "once") -> None:
        from shellback.work.approvals import approvals

        how: dict[str, Any] = {"by": self.by, "surface": "chat", "note": note, "scope": scope, "digest": self._seen}
        try:
            approvals.settle(self.where.database, self.enqueuer, request_id, decision, **how)
        finally:
            self._ask_next()

    def _ask_next(self) -> None:
        """Show the next waiting call: one at a time, so that a `y` is always about the call shown last."""
        from shellback.work.approvals import approvals

        waiting = self._pending()
        self._asked = waiting[0].id if waiting else None
        self._question = None
        self._ask_at = time.monotonic() + READ_S
        if waiting:
            # The row, not the event: an event may be cut, and a person must see everything that they approve.
            self._seen = waiting[0].digest
            wider = HOW_SESSION if waiting[0].of_call else HOW_HOST
            self._offer = "" if approvals.why_not_for_session(waiting[0]) else wider
            for line in folded(wanted(waiting[0]), columns()):
                self._screen.line(line)

    def _ask(self, keys: Keyboard) -> None:
        """Ask about the shown call. Text typed before the question is drawn does not answer it."""
        if self._asked is None or self._question is not None or time.monotonic() < self._ask_at:
            return
        # Read just before drawing: reading after it would take an answer for text typed earlier.
        self._ended += self._editor.feed(keys.typed())
        self._question = self._editor.asked()
        self._screen.line(f"{HOW}\n{self._offer}" if self._offer else HOW)

    def _pending(self) -> list[Request]:
        from shellback.work.approvals import approvals

        return self.where.database.read_now(approvals.find, conversation_id=self.conversation, state="pending")

    def _left_open(self) -> int:
        waiting = self._pending()
        if waiting:
            click.echo(f"{len(waiting)} call(s) still wait for approval: see `shellback approvals list`")
        return PENDING if waiting else 0

    def _look_for_the_worker(self) -> None:
        if time.monotonic() - self._looked < WORKER_LOOK_S:
            return
        self._looked = time.monotonic()
        if self.child is not None and self.child.process.poll() is not None:
            raise Refused(
                f"the worker of this chat has ended (see {self.where.home / 'worker.log'}). Nothing is lost: start chat"
                " again"
            )
        lives = worker_lives(self.where)
        home = home_of(self.where, self.conversation)
        lives = lives if home is None else not home.silent
        if not lives and not self._alone and (said := waits(self.conversation, home)):
            self._screen.said(said)
        elif not lives and not self._alone:
            self._screen.line("no worker runs: messages are stored until you start one (shellback worker)")
        self._alone = not lives

    def _show_news(self) -> None:
        for event, _ in self._events.new():
            self._show(event)

    def _show(self, event: Event) -> None:  # noqa: C901, PLR0912 - a table of kinds
        from shellback.exec.reports.callback_text import watch_line

        payload: dict[str, Any] = event.payload
        match event.kind:
            case "message" if event.turn_id not in self._own:
                self._screen.said(f"{shown_line(str(payload.get('by', 'somebody')))}{PROMPT}{payload['text']}")
            case "text":
                self._screen.piece(payload["text"])
            case "tool_call":
                for line in folded(_called(payload), columns()):
                    self._screen.line(line)
            case "approval" if self._asked is None:
                self._ask_next()
            case "decision":
                if payload["by"] != self.by or payload["decision"] == "superseded":
                    self._screen.said(f"{payload['id']} {payload['decision']} by {payload['by']}")
                if payload["id"] == self._asked:
                    self._ask_next()
            case "exit":
                self._screen.said(f"! process {payload['session_id']} ended: {_end(payload)}")
            case "typed":
                self._screen.said(f"! {payload['by']}: {payload['text']}")
            case "watch":
                self._screen.said(f"! {watch_line(payload)}")
            case "answer":
                self._screen.end_line()
            case "stopping" if payload["by"] != self.by:
                self._screen.said(f"{payload['by']} stops the turn")
            case "finding":
                self._screen.said(news(payload))
            case "failed" | "stopped" | "alarm" | "blocked":
                self._screen.said(payload["text"])
            case _:
                pass


def _called(payload: dict[str, Any]) -> list[str]:
    args: dict[str, Any] = payload["args"]
    command = args.get("command")
    first, *more = shown(command if isinstance(command, str) else json.dumps(args)).split("\n")
    return [f"  → {shown_line(str(payload['tool']))} {first}", *(f"      {line}" for line in more)]


def _end(payload: dict[str, Any]) -> str:
    if payload["exit_code"] is not None:
        return f"exit code {payload['exit_code']}"
    if payload["signal"] is not None:
        return f"signal {payload['signal']}"
    return f"{payload['state']} ({payload.get('evidence') or payload.get('errno')})"
