"""`shellback send`."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from shellback.cli.asking import asking
from shellback.cli.options import Labels, workspace_option
from shellback.cli.shared import OF_A_FATE, Refused, columns, json_option, show, utf8
from shellback.client.caller import me
from shellback.exec.core.display import folded, visible_line

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place

NO_WORKER: Final = "shellback: no worker of this host runs; start one with `shellback worker`"


@click.command()
@click.option("--conversation", "-c", required=True, metavar="NAME", help="The conversation; a new name begins one.")
@click.option("--wait", is_flag=True, help="Wait for the answer; the exit code tells the outcome.")
@click.option(
    "--priority",
    type=click.Choice(["critical", "high", "normal", "low", "idle"], case_sensitive=False),
    default="normal",
    show_default=True,
    help="Priority of the turn.",
)
@click.option(
    "--interrupt", is_flag=True, help="Deny the calls that wait for approval, so that the message is handled at once."
)
@click.option("--timeout", type=click.FloatRange(0.1), default=600.0, show_default=True, help="Seconds for --wait.")
@workspace_option
@click.option(
    "--needs", type=Labels(), default=(), metavar="LABELS", help="Labels that the host of a new conversation must have."
)
@json_option
@click.argument("text")
def send(
    conversation: str,
    wait: bool,
    priority: str,
    interrupt: bool,
    timeout: float,
    workspace: str | None,
    needs: tuple[str, ...],
    text: str,
) -> None:
    """Send TEXT to a conversation; "-" reads TEXT from standard input.

    The message is stored and its turn is enqueued before the command returns, whether or not a worker runs.

    With --wait the exit code is 0 with the answer, 3 if a call waits for approval, 4 if the conversation is set
    aside, 5 if the turn failed, 6 if it was stopped, 7 if one of its calls was denied, 8 if its budget is used up.

    \b
      shellback send -c build --wait '$ make -j4 &'
      shellback send -c shop -w web 'Run the tests.'       begins shop in the workspace web
      shellback send -c train --needs gpu,arm64 'Train.'   begins train on a host with both labels (HOST_LABELS)
      shellback send -c build --priority low 'Look at the warnings when there is time.'
      git log -3 | shellback send -c review --wait --json -
    """  # noqa: D301
    body = _from_stdin() if text == "-" else utf8(text, "the message")
    how: dict[str, Any] = {"priority": priority.upper(), "waiting": wait, "interrupt": interrupt, "by": me()}
    how |= ({} if workspace is None else {"workspace": workspace}) | ({"needs": needs} if needs else {})
    code = 0
    with asking() as ask:
        # The key makes a repeat change nothing, when a worker ends before it answers.
        found = ask("send", conversation=conversation, text=body, key=uuid.uuid4().hex, **how)
        sent, alone = found["sent"], found["alone"]
        facts: dict[str, Any] = {
            "conversation": conversation,
            "item": sent["item_id"],
            "pending_approvals": 0 if interrupt else sent["pending_approvals"],
            "blocked": sent["blocked"],
        }
        if found["waits"]:
            click.echo(f"shellback: {found['waits']}", err=True)
        if wait and alone:
            click.echo(f"{NO_WORKER}; waiting for one", err=True)
        if wait:
            late = (
                f"no answer within {timeout:g} s. The message is stored (item {sent['item_id']}) and will be answered; "
                "`shellback doctor` says whether a worker runs"
            )
            facts |= ask("outcome", wait_s=timeout, late=late, sent=sent)
            code = OF_A_FATE.get(facts["outcome"], 0)
    show(facts, _lines(facts))
    if alone and not wait:
        click.echo(NO_WORKER, err=True)
    sys.exit(code)


def deliver(where: Place, **message: Any) -> dict[str, Any]:
    """Store a message; what was stored, who will not read it soon, and whether no worker runs."""
    from shellback.client import messages
    from shellback.wiring import wiring

    with wiring.enqueuing(where) as enqueuer:
        return asdict(messages.deliver(where, enqueuer, **message))


def outcome(where: Place, *, sent: dict[str, Any]) -> Callable[[], dict[str, Any] | None]:
    """Looks for the outcome of a message that `deliver` has stored."""
    from shellback.client.messages import Waiting
    from shellback.work.approvals.sending import Sent

    waiting = Waiting(where.database, Sent(**sent))

    def look() -> dict[str, Any] | None:
        fate = waiting.look()
        if fate is None:
            return None
        facts: dict[str, Any] = {"outcome": fate}
        if fate == "pending_approval":
            facts["approvals"] = [
                {"id": one.id, "tool": one.tool_name, **one.display, "shown": one.shown} for one in waiting.requests
            ]
        elif fate != "set_aside":
            facts["answer"] = waiting.answer
        return facts

    return look


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
        click.echo("this conversation is set aside after failed turns; send a message to try again", err=True)
    else:
        yield f"stored as {facts['item']}"
        if facts["pending_approvals"]:
            yield (
                f"{facts['pending_approvals']} call(s) wait for approval; the agent gets the message after them. "
                "See `shellback approvals list`, or send with --interrupt."
            )
