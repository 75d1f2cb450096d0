"""`shellback send`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from shellback.cli.freshness import home_of, waits, worker_lives
from shellback.cli.shared import (
    OF_A_FATE,
    Refused,
    columns,
    json_option,
    me,
    opened,
    show,
    until,
    utf8,
)
from shellback.exec.core.display import folded, visible_line
from shellback.work.queue.items import Priority

if TYPE_CHECKING:
    from shellback.storage.db import Database
    from shellback.work.approvals.approvals import Request
    from shellback.work.approvals.sending import Sent

NO_WORKER: Final = "shellback: no worker of this host runs; start one with `shellback worker`"


@click.command()
@click.option("--conversation", "-c", required=True, metavar="NAME", help="Which conversation; a new name begins one.")
@click.option("--wait", is_flag=True, help="Wait for the answer; the exit code says what came of it.")
@click.option(
    "--priority",
    type=click.Choice(["critical", "high", "normal", "low", "idle"], case_sensitive=False),
    default="normal",
    show_default=True,
    help="How urgent the turn is.",
)
@click.option("--interrupt", is_flag=True, help="Deny what waits for approval as superseded, and be heard at once.")
@click.option("--timeout", type=click.FloatRange(0.1), default=600.0, show_default=True, help="Seconds to --wait.")
@json_option
@click.argument("text")
def send(
    conversation: str,
    wait: bool,
    priority: str,
    interrupt: bool,
    timeout: float,
    text: str,
) -> None:
    """Send TEXT to a conversation ("-" reads it from standard input).

    The message is kept and its turn enqueued before this returns, whether or not a worker runs.

    With --wait the exit code is 0 with the answer, 3 when a call waits for approval, 4 when the conversation is set
    aside, 5 when the turn failed, 6 when it was stopped, 7 when a call of it was denied, 8 when its budget is used up.

    \b
      shellback send -c build --wait '$ make -j4 &'
      shellback send -c build --priority low 'Look at the warnings when there is time.'
      git log -3 | shellback send -c review --wait --json -
    """  # noqa: D301
    from shellback.wiring import wiring
    from shellback.work.approvals import sending

    body = _from_stdin() if text == "-" else utf8(text, "the message")
    with opened() as where:
        with wiring.enqueuing(where) as enqueuer:
            sent = sending.deliver(
                where.database,
                enqueuer,
                conversation,
                body,
                host_id=where.host_id,
                priority=Priority[priority.upper()],
                waiting=wait,
                interrupt=interrupt,
                by=me(),
            )
        facts: dict[str, Any] = {
            "conversation": conversation,
            "item": sent.item_id,
            "pending_approvals": 0 if interrupt else sent.pending_approvals,
            "blocked": sent.blocked,
        }
        code = 0
        home = home_of(where, conversation)
        said = waits(conversation, home)
        alone = home is None and not worker_lives(where)
        if said:
            click.echo(f"shellback: {said}", err=True)
        if wait and alone:
            click.echo(f"{NO_WORKER}; waiting for one", err=True)
        if wait:
            code = _wait(where.database, sent, timeout, facts)
    show(facts, _lines(facts))
    if alone and not wait:
        click.echo(NO_WORKER, err=True)
    sys.exit(code)


def _wait(database: Database, sent: Sent, timeout: float, facts: dict[str, Any]) -> int:
    waiting = Waiting(database, sent)
    fate = until(
        waiting.look,
        timeout,
        f"no answer within {timeout:g} s. The message is kept (item {sent.item_id}) and will be heard; "
        "`shellback doctor` says whether a worker runs",
    )
    facts["outcome"] = fate
    if fate == "pending_approval":
        facts["approvals"] = [
            {"id": one.id, "tool": one.tool_name, **one.display, "shown": one.shown} for one in waiting.requests
        ]
    elif fate != "set_aside":
        facts["answer"] = waiting.answer
    return OF_A_FATE.get(fate, 0)


def _from_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise Refused("the message on standard input is not UTF-8: give it as UTF-8 text") from None


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    if "answer" in facts:
        yield facts["answer"]
    elif facts.get("outcome") == "pending_approval":
        for request in facts["approvals"]:
            yield f"{request['id']} waits for approval: {visible_line(request['tool'])}"
            yield from folded(request["shown"].split("\n"), columns())
            yield f"  shellback approvals approve {request['id']}   (or: deny {request['id']} --reason ...)"
    elif facts.get("outcome") == "set_aside":
        click.echo("this conversation is set aside after failed turns; write again to try again", err=True)
    else:
        yield f"kept as {facts['item']}"
        if facts["pending_approvals"]:
            yield (
                f"{facts['pending_approvals']} call(s) wait for approval; the message is heard after them. "
                "See `shellback approvals list`, or send with --interrupt."
            )


Fate = Literal["answered", "failed", "stopped", "denied", "out_of_budget", "pending_approval", "set_aside"]


class Waiting:
    """Looks where one message is, without being misled by what its conversation was blocked for before it."""

    def __init__(self, database: Database, sent: Sent) -> None:
        self._database = database
        self._sent = sent
        self._aside_before = sent.blocked == "set_aside"
        self.answer: str | None = None
        self.requests: list[Request] = []

    def look(self) -> Fate | None:
        """What became of it; None while it is waiting or being worked on. Sets `answer` or `requests`."""
        fate: Fate | None = self._database.read_now(self._look)
        return fate

    def _look(self, conn: Any) -> Fate | None:
        from shellback.work.approvals import approvals, sending

        heard = sending.heard(conn, self._sent.item_id, self._sent.conversation_id)
        if heard.answer is not None and heard.outcome is not None:
            self.answer = heard.answer
            match heard.outcome:
                case "stopped":
                    return "stopped"
                case "failed":
                    return "out_of_budget" if heard.out_of_budget else "failed"
                case _:
                    return "denied" if heard.denied else "answered"
        if heard.blocked == "approval":
            # Decided calls leave it blocked until their turn begins; then nobody is waited for.
            self.requests = approvals.find(conn, conversation_id=self._sent.conversation_id, state="pending")
            return "pending_approval" if self.requests else None
        if heard.blocked == "set_aside":
            return None if self._aside_before else "set_aside"
        self._aside_before = False
        return None
