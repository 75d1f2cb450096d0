"""`shellback chat`: a client of a conversation. The agent runs in a worker; closing chat does not end its turns."""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import signal
import sys
import time
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from shellback import environment
from shellback.cli.asking import of_a_worker
from shellback.cli.cards import wrapped
from shellback.cli.children import WorkerChild, a_worker, make_default
from shellback.cli.findings import news, open_line
from shellback.cli.options import workspace_option
from shellback.cli.overview import Overview, seen_in
from shellback.cli.shared import OF_A_FATE, PENDING, Refused, columns, handled, lasting_settings, opened
from shellback.cli.terminal.history import History
from shellback.cli.terminal.line_editor import Line
from shellback.cli.terminal.screen import PROMPT, Lines, PlainSeat, Screen, Seat
from shellback.client.caller import me
from shellback.client.following import Events, Position
from shellback.client.freshness import home_of, waits, worker_lives
from shellback.client.messages import Waiting
from shellback.environment import plain_terminal, variables
from shellback.exec.core.display import folded, shown, shown_line
from shellback.exec.core.errors import ExecError
from shellback.work.errors import WorkError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shellback.cli.deciding import Asked
    from shellback.wiring.wiring import Place
    from shellback.work.approvals.approvals import Request
    from shellback.work.approvals.sending import Sent
    from shellback.work.queue.mailbox import Workspace
    from shellback.work.queue.queues import Enqueuer
    from shellback.work.queue.stream import Event

LOOK_S: Final = 0.1
WORKER_LOOK_S: Final = 5.0
GONE: Final = "the worker has ended meanwhile; this chat has started its own"
READ_S: Final = 0.7
"""The time between a request and its question, so that a key meant for something else is not an answer."""
AGAIN_S: Final = 5.0
"""A second Ctrl-C within this time leaves."""
UNASKED: Final = "not an answer: it was pasted, or typed before the question was shown. Type it again to decide"
HELP: Final = (
    "a line is a message to the agent; a paste is one message, sent with Enter; Alt-Enter begins a new line in it",
    "while a call waits, type a letter that the question names, and Enter; a pasted answer does not count",
    "/ps lists processes, /waiting shows the call that waits, /stop stops the turn, /help shows this, /quit leaves",
    "Ctrl-C clears the line, or stops the running turn; twice at an empty line, exit, quit or Ctrl-D leaves;"
    " processes keep running",
)
WORDS: Final = {"yes": "y", "no": "n", "/approve": "y", "/deny": "n", "/edit": "e", "/details": "d"}
"""Other words for the letters."""
COMMANDS: Final = ("/help", "/quit", "/stop", "/ps", "/waiting", *(word for word in WORDS if word[0] == "/"))
_NO_MESSAGE: Final = re.compile(r"/[a-z]+\Z")


@click.command()
@click.option(
    "--conversation", "-c", default="main", show_default=True, metavar="NAME", help="Name of the conversation."
)
@workspace_option
@click.option("--interrupt", is_flag=True, help="Each message denies the calls that wait for approval.")
def chat(conversation: str, workspace: str | None, interrupt: bool) -> None:
    """Talk to the agent: streamed answers, approvals at the prompt, wakes.

    If no worker is alive, chat starts one as a child and stops it at the end. Processes keep running.

    A paste is one message and never an answer; Alt-Enter begins a new line in a message. Ctrl-C clears the line, or
    stops the running turn. Two at an empty line, exit, quit or Ctrl-D leave. /help repeats this.

    Without a terminal, chat reads one message per line, waits for each answer and asks nothing. Use `send -` for a
    message of several lines. The exit code is then the highest of: 0 answered, 3 a call waits for approval, 4 set
    aside, 5 failed, 6 stopped, 7 a call was denied, 8 out of budget.

    \b
      ENABLE_EXECUTE=true shellback chat
      shellback chat -c shop -w web         begin a conversation in the workspace web
      echo 'What runs?' | shellback chat -c build
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    person = sys.stdin.isatty() and sys.stdout.isatty()
    with handled(_leave, signal.SIGTERM, signal.SIGHUP), contextlib.ExitStack() as stack:

        def hidden(line: str) -> str:
            return where.mask.shown(line)  # what is secret is looked up when a line is kept: it takes its time

        seat = history = None
        # A worker that runs has loaded all that the prompt needs; what a message needs is loaded behind the prompt.
        told = of_a_worker("chat", conversation=conversation, workspace=workspace) if person else None
        if told is not None:
            history = History(environment.home_of(variables()), hidden)
            seat = _greeted(stack, told, history)
        settings = lasting_settings()
        where = stack.enter_context(opened(settings))
        from shellback.wiring import wiring
        from shellback.work.queue.mailbox import Workspace

        wanted = _workspace(where, conversation, workspace) if told is None else None
        if not worker_lives(where):
            from shellback.wiring.choice import check_workspace

            make_default(settings)
            check_workspace(settings)
        ours = stack.enter_context(a_worker(where))
        say: Callable[[str], None] = click.echo if seat is None else seat.line
        if person and ours is not None:
            stack.callback(partial(say, "stopping the worker; a running turn ends first, processes keep running"))
        if told is None:
            told = _told(where, conversation, wanted, ours=ours)
            if person:
                history = History(where.home, hidden)
                seat = _greeted(stack, told, history)
            for line in () if person else _unsafe(where, ours):
                click.echo(line, err=True)
        elif ours is not None:
            for line in (GONE, *_unsafe(where, ours)):
                say(line)
        talk = Talk(
            where,
            stack.enter_context(wiring.enqueuing(where)),
            conversation,
            by=me(),
            interrupt=interrupt,
            child=ours,
            since=told["since"],
            history=history,
            workspace=None if told["workspace"] is None else Workspace(*told["workspace"]),
        )
        code = talk.with_a_pipe() if seat is None else talk.with_a_person(seat)
    sys.exit(code)


def begun(where: Place, *, conversation: str, workspace: str | None) -> dict[str, Any]:
    """What chat needs for its prompt: the lines above it, the workspace, and the event after which all are shown.

    Raises:
        InvalidRequest: There can be no conversation of this name.
        Refused: The conversation works in another workspace.
    """
    return _told(where, conversation, _workspace(where, conversation, workspace), ours=None)


def _workspace(where: Place, conversation: str, workspace: str | None) -> Workspace | None:
    from shellback.work.approvals.sending import require_name
    from shellback.work.queue.mailbox import workspace_of

    require_name(conversation)
    wanted = known = where.database.read_now(workspace_of, conversation)
    if workspace is not None:
        from shellback.wiring.spaces import bound  # the tools, and with them the agent framework: slow

        wanted = bound(where.settings, workspace).of(conversation)
    if known not in {None, wanted}:
        raise Refused(
            f"conversation {conversation} works in workspace {known} since its start, not in {wanted}: leave"
            " --workspace out, or give another name with --conversation"
        )
    return wanted


def _told(where: Place, conversation: str, workspace: Workspace | None, *, ours: WorkerChild | None) -> dict[str, Any]:
    from shellback.work.queue import stream

    settings = seen_in(where.settings, workspace)
    worker = "the running worker" if ours is None else "its own worker"
    answers = f"agent {settings.agent}" if settings.agent else f"model {settings.model}"
    lines = [f"conversation {conversation}, {worker}, {answers}; Ctrl-D leaves"]
    if settings.enable_execute:
        but = "" if settings.auto_approve == "off" else ", except read-only ones in a sandbox"
        place = workspace if workspace is not None and workspace.path else settings.workspace_root
        lines += [f"commands run in {place}; each needs approval{but}", *_unsafe(where, ours)]
    else:
        lines.append("ENABLE_EXECUTE is not set: the agent has no tools that run commands")
    # What happens from now on is shown: a person who sees the prompt counts on it.
    return {"greeting": lines, "workspace": workspace, "since": where.database.read_now(stream.last_number)}


def _unsafe(where: Place, ours: WorkerChild | None) -> list[str]:
    if ours is None or not ours.on_the_host or not where.settings.enable_execute:
        return []
    return [f"commands run on the host, without a sandbox: {ours.on_the_host}"]


def _greeted(stack: contextlib.ExitStack, told: Mapping[str, Any], history: History) -> Seat:
    click.echo(wrapped(told["greeting"]))
    return stack.enter_context(_seat(history))


def _seat(history: History) -> Seat:
    if plain_terminal(by_kind=True):
        return PlainSeat()
    from shellback.cli.terminal.prompt import Prompt

    return Prompt(COMMANDS, history.lines())


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
    since: int
    """The number of the last event that is not shown."""
    workspace: Workspace | None = None
    history: History | None = None
    """Keeps messages and commands for later chats, and no answers to questions."""

    def __post_init__(self) -> None:
        self._events = Events(self.where.database, self.conversation, Position(self.since))
        self._own: set[str] = set()
        self._asked: Asked | None = None
        self._question: int | None = None
        self._ask_at = 0.0
        self._edits = False
        self._pressed = -AGAIN_S
        self._alone = False
        self._refused: set[str] = set()
        self._looked = time.monotonic()
        self._overview = Overview(self.where, self.conversation, self.workspace)

    def with_a_person(self, seat: Seat) -> int:
        """Talk until Ctrl-D, `exit` or `quit`; returns 0, or 3 while calls wait for approval.

        Ctrl-C clears the line, or stops the running turn; two at an empty line, when no turn runs, raise
        KeyboardInterrupt.
        """
        self._seat = self._screen = seat
        if (said := open_line(self.where)) is not None:
            seat.said(said)
        self._ask_next()
        while True:
            self._show_news()
            self._ask()
            self._look_for_the_worker()
            self._overview.show(seat)
            if seat.interrupted():
                self._interrupted()
            for line in seat.read(LOOK_S):
                if line is None or self._take(line):
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
        if self._edits:
            self._edited("")
        if self._seat.clear():
            return
        again, self._pressed = time.monotonic() - self._pressed < AGAIN_S, time.monotonic()
        if self._stop():
            self._seat.line("stopping at the next step; Ctrl-C again leaves")
        elif again:
            raise KeyboardInterrupt
        else:
            self._seat.line("no turn runs; Ctrl-C again leaves")

    def _stop(self) -> bool:
        from shellback.work.turn import stopping

        database = self.where.database
        if not database.read_now(stopping.stoppable, self.conversation):
            return False
        return database.write_now(stopping.stop, self.enqueuer, self.conversation, by=self.by).reach is not None

    def _take(self, line: Line) -> bool:
        """Carry out a line; True if it leaves."""
        self._seat.entered(line.text)
        self._pressed = -AGAIN_S
        text = line.text.strip()
        word = "" if line.pasted else text.lower()
        if word in {"exit", "quit", "/quit"} and not self._edits:
            return True
        try:
            if self._edits:
                self._edited(text)
            elif word in {"help", "/help"} or (word == "?" and self._asked is None):
                self._seat.line(wrapped(HELP))
            elif _NO_MESSAGE.match(word) and word not in WORDS:
                self._keep(text)
                self._do(word)
            elif text:
                self._hear(text, answers=self._question is not None and line.question == self._question)
        except (WorkError, ExecError, Refused) as error:
            self._seat.said(str(error))
        return False

    def _keep(self, line: str) -> None:
        if self.history is not None:
            self.history.add(line)

    def _do(self, command: str) -> None:
        """Carry out a command that begins with a slash."""
        match command:
            case "/stop":
                self._seat.line("stopping at the next step" if self._stop() else "no turn runs")
            case "/ps":
                self._seat.said("\n".join(self._overview.processes()))
            case "/waiting":
                self._ask_next()
                if self._asked is None:
                    self._seat.line("nothing waits for approval")
            case _:
                near = difflib.get_close_matches(command, COMMANDS, 1)
                hint = f"did you mean {near[0]}? " if near else ""
                self._seat.line(f"no command {command}: {hint}/help lists them; a blank before it sends it")

    def _hear(self, text: str, *, answers: bool) -> None:
        """Take a line as the decision about the shown call, or as a message."""
        word, _, reason = text.partition(" ")
        letter, reason = WORDS.get(word.lower(), word.lower()), reason.strip()
        asked = self._asked
        known = asked is not None and letter in asked.letters and (not reason or letter == "n")
        if asked is not None and known and letter in "d?":
            self._seat.line("\n".join([*asked.told(letter), asked.question()]))
        elif asked is not None and known and answers:
            self._decide(asked, letter, reason or None)
        elif known and not reason:
            self._seat.line(UNASKED)
        else:
            self._keep(text)
            self._send(text)
            if asked and not self.interrupt and asked.request.of_call:
                self._seat.line("stored; the agent gets it after your y or n")

    def _decide(self, asked: Asked, letter: str, reason: str | None) -> None:
        match letter:
            case "e":
                self._edits = True
                self._seat.line(
                    "change the call and press Enter; it is shown again before it runs. Ctrl-C changes nothing"
                )
                self._seat.prefill(asked.editable())
            case "r":
                self._seat.line("\n".join(asked.offer()))
                self._ask_in_time()
            case "a" | "e" if asked.rules:
                self._seat.line(asked.question())
            case "n" if asked.rules:
                asked.rules = ()
                self._ask_in_time()
            case _:
                try:
                    if letter == "n":
                        asked.deny(reason)
                        self._refused.add(asked.request.tool_call_id)
                    else:
                        for line in asked.approve("session" if letter == "a" else "once"):
                            self._seat.line(line)
                finally:
                    self._ask_next()

    def _edited(self, text: str) -> None:
        self._edits = False
        if self._asked is not None and text and text != self._asked.editable():
            self._asked.change(text)
            self._seat.line("changed; a worker proposes it, and you decide about it then")
            self._ask_next()
        elif self._asked is not None:
            self._seat.line("not changed")
            self._ask_in_time()

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

    def _ask_next(self) -> None:
        """Show the next waiting call: one at a time, so that a `y` is always about the call shown last."""
        from shellback.cli.deciding import Asked

        # The row, not the event: an event may be cut, and a person must see everything that they approve.
        waiting = self._pending()
        self._asked = Asked(self.where, self.enqueuer, waiting[0], self.by) if waiting else None
        self._ask_in_time()
        if self._asked is not None:
            self._screen.line("\n".join(self._asked.card()))

    def _ask_in_time(self) -> None:
        """Ask about the shown call as soon as a person may have read it."""
        self._question = None
        self._ask_at = time.monotonic() + READ_S

    def _ask(self) -> None:
        """Ask about the shown call. Text typed before the question is drawn does not answer it."""
        if self._asked is None or self._edits or self._question is not None or time.monotonic() < self._ask_at:
            return
        self._question = self._seat.asked()
        self._seat.line(self._asked.question())

    def _pending(self) -> list[Request]:
        from shellback.work.approvals import approvals

        return self.where.database.read_now(approvals.find, conversation_id=self.conversation, state="pending")

    def _left_open(self) -> int:
        waiting = self._pending()
        if waiting:
            self._seat.line(f"{len(waiting)} call(s) still wait for approval: see `shellback approvals list`")
        self._seat.end_line()
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
            self._overview.changed()
            self._show(event)

    def _show(self, event: Event) -> None:  # noqa: C901, PLR0912 - a table of kinds
        from shellback.exec.reports.callback_text import watch_line

        payload: dict[str, Any] = event.payload
        match event.kind:
            case "message" if event.turn_id not in self._own:
                self._screen.said(f"{shown_line(str(payload.get('by', 'somebody')))}{PROMPT}{payload['text']}")
            case "text":
                self._screen.piece(payload["text"])
            case "tool_call" if payload["tool_call_id"] in self._refused:
                pass  # the turn makes it once more, and learns that it is refused
            case "tool_call":
                called = _called(payload)
                self._overview.began(called[0])
                self._screen.line("\n".join(folded(called, columns())))
            case "tool_result":
                self._overview.ended()
            case "approval":
                self._overview.ended()
                if self._asked is None:
                    self._ask_next()
            case "decision":
                if payload["by"] != self.by or payload["decision"] == "superseded":
                    self._screen.said(f"{payload['id']} {payload['decision']} by {payload['by']}")
                if self._asked is not None and payload["id"] == self._asked.request.id:
                    if payload["decision"] in {"denied", "expired"}:
                        self._refused.add(self._asked.request.tool_call_id)
                    self._ask_next()
            case "exit":
                self._screen.said(f"! process {payload['session_id']} ended: {_end(payload)}")
            case "typed":
                self._screen.said(f"! {payload['by']}: {payload['text']}")
            case "watch":
                self._screen.said(f"! {watch_line(payload)}")
            case "answer":
                self._refused.clear()
                self._overview.ended()
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
