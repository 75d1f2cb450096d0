"""`shellback approvals`: what waits for a person, and the person's answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from app.cli.completing import conversation_option, request_ids
from app.cli.shared import Refused, age, json_option, me, opened, print_json, table_lines, utf8, visible
from app.cli.watching import watch, watch_option

if TYPE_CHECKING:
    from app.work.approvals import Decision, Request


@click.group()
def approvals() -> None:
    """List, show, approve or deny what waits for a person.

    An approval holds for exactly the call that is shown, once, until it expires. ID may be the
    beginning of one.

    \b
      shellback approvals list
      shellback approvals show a7db
      shellback approvals approve a7db
      shellback approvals deny a7db --reason 'not on a Friday'
    """  # noqa: D301 - \b is click's mark for text that keeps its lines


@approvals.command("list")
@conversation_option
@click.option("--all", "everything", is_flag=True, help="Also what is decided, used or expired.")
@watch_option
@json_option
def list_(conversation: str | None, everything: bool, watching: bool, as_json: bool) -> None:
    """List requests that wait for a decision.

    With --watch it goes on until Ctrl-C: in place on a terminal, else a line (with --json an object) for each
    request that is new, has changed, or is gone from the list.
    """
    from app.work import approvals as requests

    with opened() as where:

        def look() -> list[Request]:
            return where.database.read_now(
                requests.find, conversation_id=conversation, state=None if everything else "pending"
            )

        if watching:
            watch(look, lambda one: one.id, _listed, lambda one: visible(_line(one)), as_json=as_json)
        found = look()
    if as_json:
        print_json([asdict(request) for request in found])
        return
    for line in _listed(found):
        click.echo(line)
    if found:
        click.echo("`shellback approvals show ID` shows all of it")


def _listed(found: Sequence[Request]) -> list[str]:
    if not found:
        return ["nothing waits for approval"]
    now = time.time()
    return table_lines(
        [
            {
                "id": request.id,
                "conversation": request.conversation_id,
                "state": request.state,
                "left": age(max(0.0, request.expires_at - now)) if request.state == "pending" else None,
                "tool": request.tool_name,
                "what": request.display.get("command") or request.args,
            }
            for request in found
        ],
        {"id": "ID", "conversation": "CONVERSATION", "state": "STATE", "left": "LEFT", "tool": "TOOL", "what": "WHAT"},
    )


def _line(one: Request) -> str:
    what = one.display.get("command") or one.args
    return f"{one.id}  {one.conversation_id}  {one.state}  {one.tool_name}  {what}".replace("\n", "⏎ ")


@approvals.command()
@click.argument("request_id", metavar="ID", shell_complete=request_ids)
@json_option
def show(request_id: str, as_json: bool) -> None:
    """Show one request whole: nothing is cut, control characters are made visible."""
    from app.work import approvals as requests

    with opened() as where:
        request = where.database.read_now(requests.get, request_id)
    if as_json:
        print_json(asdict(request))
    else:
        click.echo(whole(request))


def wanted(request: Request) -> list[str]:
    """What a call would do, in lines, nothing of it cut; facts that say nothing here are left to `show`."""
    short: list[str] = []
    lines = [f"? {request.tool_name} wants to run, and waits for you ({request.id}):"]
    for key, value in request.display.items():
        if isinstance(value, bool | int | float) or key in _SHORT:
            short += [f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"] if value else []
        elif value:
            lines += _indented(key, value)
    return [*lines, f"    {visible(', '.join(short))}"]


_SHORT: Final = {"backend", "profile", "lifetime"}


def _indented(key: str, value: object) -> list[str]:
    first, *more = visible(str(value)).split("\n")
    return [f"    {key}: {first}", *(" " * (len(key) + 6) + line for line in more)]


def whole(request: Request) -> str:
    """Everything there is about a request, in lines."""
    head = f"{request.id}  {request.state}  {request.tool_name}  in conversation {request.conversation_id}"
    lines = [visible(head)]
    for key, value in request.display.items():
        lines += _indented(key, value)
    lines.append(f"    digest: {request.digest}")
    left = request.expires_at - time.time()
    if request.state == "pending":
        lines.append(f"    expires in: {age(max(0.0, left))}")
    elif request.decided_by:
        note = f": {request.note}" if request.note else ""
        lines += _indented("decided by", f"{request.decided_by} through {request.surface}{note}")
    if request.used_by:
        lines.append(f"    used by: {request.used_by}")
    return "\n".join(lines)


@approvals.command()
@click.argument("request_id", metavar="ID", shell_complete=request_ids)
@json_option
def approve(request_id: str, as_json: bool) -> None:
    """Let exactly this call run, once."""
    _decide(request_id, "approved", None, as_json=as_json)


@approvals.command()
@click.argument("request_id", metavar="ID", shell_complete=request_ids)
@click.option("--reason", metavar="TEXT", help="What the agent is told.")
@json_option
def deny(request_id: str, reason: str | None, as_json: bool) -> None:
    """Do not let it run; the agent is told so, with the reason."""
    _decide(request_id, "denied", reason and utf8(reason, "the reason"), as_json=as_json)


def _decide(request_id: str, decision: Decision, note: str | None, *, as_json: bool) -> None:
    from app import wiring
    from app.work import approvals as requests

    with opened() as where, wiring.enqueuing(where) as enqueuer:
        request = where.database.write_now(
            requests.decide, enqueuer, request_id, decision, by=me(), surface="cli", note=note
        )
    facts: dict[str, Any] = {"id": request.id, "state": request.state, "conversation": request.conversation_id}
    if as_json:
        print_json(facts)
    if request.state != decision:
        raise Refused(f"{request.id} is {request.state}: it was not decided in time. Nothing runs")
    if not as_json:
        click.echo(f"{request.id} {request.state}")
