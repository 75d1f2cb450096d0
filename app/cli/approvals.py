"""`shellback approvals`: what waits for a person, and the person's answer."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import click

from shellback.cli.completing import conversation_option, request_ids
from shellback.cli.findings import open_line
from shellback.cli.freshness import Freshness
from shellback.cli.output import undrawn
from shellback.cli.requests import facts_of, on_screen, whole
from shellback.cli.shared import Refused, age, json_option, me, opened, print_json, table_lines, utf8
from shellback.cli.watching import watch, watch_option
from shellback.exec.core.display import shown_line, visible_line

if TYPE_CHECKING:
    from shellback.exec.policy.rules.rule import Rule
    from shellback.work.approvals.approvals import Request, Scope


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
    from shellback.work.approvals import approvals as requests

    with opened() as where:

        def look() -> list[Request]:
            return where.database.read_now(
                requests.find, conversation_id=conversation, state=None if everything else "pending"
            )

        if watching:

            def lines(found: Sequence[Request]) -> list[str]:
                return [*_listed(found), *Freshness(where).lines()]

            watch(look, lambda one: one.id, lines, _line, as_json=as_json)
        found, said, fresh = look(), open_line(where), Freshness(where)
    if as_json:
        print_json([facts_of(request) | fresh.fact() for request in found])
        return
    for line in _listed(found):
        click.echo(line)
    if found:
        click.echo("`shellback approvals show ID` shows all of it")
    for line in [*([said] if said else []), *fresh.lines()]:
        click.echo(line)


def _listed(found: Sequence[Request]) -> list[str]:
    if not found:
        return ["nothing waits for approval"]
    now = time.time()
    lines = table_lines(
        [
            {
                "id": request.id,
                "conversation": request.conversation_id,
                "state": request.state,
                "left": age(max(0.0, request.expires_at - now)) if request.state == "pending" else None,
                "tool": request.tool_name,
            }
            for request in found
        ],
        {"id": "ID", "conversation": "CONVERSATION", "state": "STATE", "left": "LEFT", "tool": "TOOL"},
    )
    room = max(map(len, map(undrawn, lines)))
    whats = ["WHAT", *map(_what, found)]
    return [f"{line}{' ' * (room - len(undrawn(line)))}  {what}" for line, what in zip(lines, whats, strict=True)]


def _what(one: Request) -> str:
    """What it would do, on one line and never cut."""
    command = one.display.get("command")
    return shown_line(command if isinstance(command, str) else json.dumps(one.changed_args or one.args))


def _line(one: Request) -> str:
    return f"{one.id}  {visible_line(one.conversation_id)}  {one.state}  {visible_line(one.tool_name)}  {_what(one)}"


@approvals.command()
@click.argument("request_id", metavar="ID", shell_complete=request_ids)
@json_option
def show(request_id: str, as_json: bool) -> None:
    r"""Show one request whole: nothing is cut, and what could be misread is made visible.

    `\x1b` and `\u{200B}` stand for characters that cannot be shown; a backslash of the call that would read like
    that is `\x5c`. A line that begins with ↳ goes on with the one above it.
    """
    from shellback.work.approvals import approvals as requests

    with opened() as where:
        request = where.database.read_now(requests.get, request_id)
        fresh = Freshness(where)
    if as_json:
        print_json(facts_of(request) | fresh.fact())
    else:
        click.echo("\n".join([on_screen(whole(request)), *fresh.lines()]))


@approvals.command()
@click.argument("request_id", metavar="ID", shell_complete=request_ids)
@click.option(
    "--args", "changed", metavar="JSON", help="Other arguments, over those it has: shown again, then decided."
)
@click.option(
    "--for",
    "scope",
    type=click.Choice(["once", "session"]),
    default="once",
    show_default=True,
    help="For input to a process: this call, or all input until the process ends.",
)
@click.option("--remember", is_flag=True, help="Save a rule for exactly its commands, so that they need no approval.")
@click.option("--everywhere", is_flag=True, help="With --remember: in every conversation, not only in this one.")
@click.option(
    "--days", type=click.IntRange(1, 365), default=30, show_default=True, help="With --remember: it expires after."
)
@click.option("--digest", metavar="HEX", help="Only if this is what it would run, as `show` and --json have it.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask about what --args and --remember show.")
@json_option
def approve(  # noqa: PLR0913, PLR0917 - the options
    request_id: str,
    changed: str | None,
    scope: Scope,
    remember: bool,
    everywhere: bool,
    days: int,
    digest: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Let exactly this call run, once.

    With --args a worker says what would run instead, which is shown and, after a y or with --yes, approved as it
    was shown. With --remember the rules are shown before they are saved.

    \b
      shellback approvals approve a7db --args '{"command": "rm -r build"}'
      shellback approvals approve a7db --for session
      shellback approvals approve a7db --remember --days 7
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.cli.approving import Approving

    arguments = changed and _arguments(changed)
    with Approving.opened(as_json=as_json, yes=yes) as approving:
        if arguments:
            digest = approving.change(request_id, arguments)
        rules: Sequence[Rule] = ()
        if remember:
            digest, rules = approving.offer(request_id, digest=digest, everywhere=everywhere, days=days)
        facts = approving.approve(request_id, scope=scope, digest=digest, rules=rules)
    _say(facts, "approved", as_json=as_json)


def _arguments(text: str) -> dict[str, Any]:
    try:
        given = json.loads(utf8(text, "--args"))
    except (ValueError, RecursionError) as error:
        raise Refused(f"--args is not JSON: {error}") from None
    if not isinstance(given, dict) or not given:
        raise Refused('--args is no object with arguments; give {"command": "..."}')
    return cast("dict[str, Any]", given)


@approvals.command()
@click.argument("request_id", metavar="ID", shell_complete=request_ids)
@click.option("--reason", metavar="TEXT", help="What the agent is told.")
@json_option
def deny(request_id: str, reason: str | None, as_json: bool) -> None:
    """Do not let it run; the agent is told so, with the reason."""
    from shellback.wiring import wiring
    from shellback.work.approvals import approvals as requests

    note = reason and utf8(reason, "the reason")
    with opened() as where, wiring.enqueuing(where) as enqueuer:
        request = requests.settle(where.database, enqueuer, request_id, "denied", by=me(), surface="cli", note=note)
    facts = {"id": request.id, "state": request.state, "conversation": request.conversation_id}
    _say(facts, "denied", as_json=as_json)


def _say(facts: dict[str, Any], wanted: str, *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
    if facts["state"] != wanted:
        raise Refused(f"{facts['id']} is {facts['state']}: it was not decided in time. Nothing runs")
    if not as_json:
        click.echo(f"{facts['id']} {facts['state']}")
        for rule in facts.get("rules", ()):
            click.echo(f"remembered as {rule['id']}: {rule['rule']}")
