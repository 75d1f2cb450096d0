"""`shellback send`."""

from __future__ import annotations

import getpass
import sys
import time
from typing import Any

import click

from app.cli.shared import json_option, opened, print_json, visible

PENDING, SET_ASIDE = 3, 4


@click.command()
@click.option("--conversation", "-c", required=True, metavar="NAME", help="Which conversation; a new name begins one.")
@click.option("--wait", is_flag=True, help="Wait for the answer: exit 0 with it, 3 approval pending, 4 set aside.")
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
    as_json: bool,
    text: str,
) -> None:
    """Send TEXT to a conversation ("-" reads it from standard input).

    The message is kept and its turn enqueued before this returns, whether or not a worker runs.

    \b
      shellback send -c build --wait '$ make -j4 &'
    """  # noqa: D301
    from app import wiring
    from app.work import sending
    from app.work.items import Priority

    body = sys.stdin.read() if text == "-" else text
    with opened() as where:
        with wiring.enqueuing(where) as enqueuer:
            sent = where.database.write_now(
                sending.send,
                enqueuer,
                conversation,
                body,
                host_id=where.host_id,
                priority=Priority[priority.upper()],
                waiting=wait,
                interrupt=interrupt,
                by=getpass.getuser(),
            )
        facts: dict[str, Any] = {
            "conversation": conversation,
            "item": sent.item_id,
            "pending_approvals": 0 if interrupt else sent.pending_approvals,
            "blocked": sent.blocked,
        }
        code = 0
        if wait:
            code = _wait(where.database, sent.item_id, conversation, timeout, facts)
    _print(facts, as_json=as_json, wait=wait)
    sys.exit(code)


def _wait(database: Any, item_id: str, conversation: str, timeout: float, facts: dict[str, Any]) -> int:
    from app.work import sending

    deadline = time.monotonic() + timeout
    while True:
        heard = database.read_now(sending.heard, item_id, conversation)
        if heard.outcome in {"answered", "failed"} and heard.answer is not None:
            facts |= {"outcome": heard.outcome, "answer": heard.answer}
            return 0
        if heard.blocked == "approval":
            facts |= {"outcome": "pending_approval", "approvals": database.read_now(_pending, conversation)}
            return PENDING
        if heard.blocked == "set_aside":
            facts["outcome"] = "set_aside"
            return SET_ASIDE
        if time.monotonic() > deadline:
            raise click.ClickException(
                f"no answer within {timeout:g} s; the message is kept (item {item_id}). "
                "Does a worker run? `shellback doctor` says so."
            )
        time.sleep(0.05)


def _pending(conn: Any, conversation: str) -> list[dict[str, Any]]:
    from app.work import approvals

    found = approvals.find(conn, conversation_id=conversation, state="pending")
    return [{"id": request.id, "tool": request.tool_name, **request.display} for request in found]


def _print(facts: dict[str, Any], *, as_json: bool, wait: bool) -> None:
    if as_json:
        print_json(facts)
    elif facts.get("outcome") in {"answered", "failed"}:
        click.echo(visible(facts["answer"]))
    elif facts.get("outcome") == "pending_approval":
        for request in facts["approvals"]:
            click.echo(
                f"{request['id']} waits for approval: {request['tool']} {visible(str(request.get('command', '')))}"
            )
            click.echo(f"  shellback approvals approve {request['id']}   (or: deny {request['id']} --reason ...)")
    elif facts.get("outcome") == "set_aside":
        click.echo("this conversation is set aside after failed turns; write again to try again", err=True)
    else:
        click.echo(f"kept as {facts['item']}" + ("" if wait else "; a worker will take it up"))
        if facts["pending_approvals"]:
            click.echo(
                f"{facts['pending_approvals']} call(s) wait for approval; the message is heard after them. "
                "See `shellback approvals list`, or send with --interrupt."
            )
