"""`shellback approvals`: calls that wait for a person, and the decision."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import click

from shellback.cli.asking import asking
from shellback.cli.cards import painted
from shellback.cli.options import conversation_option, request_ids
from shellback.cli.shared import (
    Cells,
    Columns,
    Commands,
    Refused,
    Whole,
    json_option,
    laid_out,
    lists,
    opened,
    show,
    table_of,
    utf8,
    wants_facts,
)
from shellback.cli.watching import watch, watch_option
from shellback.client.caller import me
from shellback.exec.core.display import age, shown_line, visible_line

if TYPE_CHECKING:
    from shellback.exec.policy.rules.rule import Rule
    from shellback.wiring.wiring import Place
    from shellback.work.approvals.approvals import Request, Scope


@click.group(cls=Commands)
def approvals() -> None:
    """List, show, approve or deny calls that wait for approval.

    An approval holds for exactly the call that is shown, once, until it expires. The beginning of an ID is enough.

    \b
      shellback approvals list
      shellback approvals show a7db
      shellback approvals approve a7db
      shellback approvals deny a7db --reason 'not on a Friday'
    """  # noqa: D301 - \b is click's mark for text that keeps its lines


@approvals.command("list")
@conversation_option
@click.option("--all", "everything", is_flag=True, help="Include decided, used and expired requests.")
@watch_option
@lists()
def list_(conversation: str | None, everything: bool, watching: bool) -> None:
    """List requests that wait for a decision.

    --watch updates the list until Ctrl-C: in place on a terminal; elsewhere it prints one line (with --json one
    object) for each request that is new, has changed, or is gone.
    """
    if watching:
        _watch(conversation, everything=everything)
    with asking(here=everything) as ask:
        found = ask("requests", conversation=conversation, everything=everything, programs=wants_facts())
    show(found, laid_out(found))


def _watch(conversation: str | None, *, everything: bool) -> NoReturn:
    from shellback.client.freshness import Freshness

    with opened() as where:
        watch(
            lambda: _found(where, conversation, everything=everything),
            lambda one: one.id,
            lambda now: [*laid_out([*_table(now), *Freshness(where).lines()])],
            _line,
        )


def listed(where: Place, *, conversation: str | None, everything: bool, programs: bool) -> object:
    """The requests and what belongs to them: for programs, or as parts of an answer for people."""
    from shellback.cli.findings import open_line
    from shellback.client.freshness import Freshness

    found, fresh = _found(where, conversation, everything=everything), Freshness(where)
    if programs:
        return [facts_of(request) | fresh.fact() for request in found]
    more = ["`shellback approvals show ID` shows a request in full"] if found else []
    said = open_line(where)
    return [*_table(found), *more, *([said] if said else []), *fresh.lines()]


def _found(where: Place, conversation: str | None, *, everything: bool) -> list[Request]:
    from shellback.work.approvals import approvals as requests

    return where.database.read_now(requests.find, conversation_id=conversation, state=None if everything else "pending")


def _table(found: Sequence[Request]) -> list[str | Cells]:
    now = time.time()
    headings: Columns[Request] = {
        "ID": "id",
        "CONVERSATION": "conversation_id",
        "STATE": "state",
        "LEFT": lambda one: age(max(0.0, one.expires_at - now)) if one.state == "pending" else None,
        "TOOL": "tool_name",
        "WHAT": lambda one: Whole(_what(one)),
    }
    if any("workspace" in one.display for one in found):
        headings["WORKSPACE"] = lambda one: str(one.display.get("workspace", "default")).partition(" ")[0]
        headings["WHAT"] = headings.pop("WHAT")
    return [table_of(found, headings)] if found else ["nothing waits for approval"]


def _what(one: Request) -> str:
    """The call on one line, never cut."""
    from shellback.work.approvals.showing import headline

    return shown_line(headline(one))


def _line(one: Request) -> str:
    return f"{one.id}  {visible_line(one.conversation_id)}  {one.state}  {visible_line(one.tool_name)}  {_what(one)}"


@approvals.command("show")
@click.argument("request_id", metavar="ID", shell_complete=request_ids)
@json_option
def show_(request_id: str) -> None:
    r"""Show one request in full, with invisible and misleading characters escaped.

    `\x1b` and `\u{200B}` stand for such characters. A backslash of the call that would look like an escape is shown
    as `\x5c`. A line that begins with ↳ continues the line above it.
    """
    from shellback.client.freshness import Freshness
    from shellback.work.approvals import approvals as requests
    from shellback.work.approvals.showing import whole

    with opened() as where:
        request = where.database.read_now(requests.get, request_id)
        fresh = Freshness(where)
    lines = [*painted(whole(request)), *fresh.lines()]
    show(facts_of(request) | fresh.fact(), lines)


@approvals.command()
@click.argument("request_id", metavar="ID", shell_complete=request_ids)
@click.option(
    "--args", "changed", metavar="JSON", help="Change these arguments; the changed call is shown before you decide."
)
@click.option(
    "--for",
    "scope",
    type=click.Choice(["once", "session"]),
    default="once",
    show_default=True,
    help="Allow this call, or all input until the process ends; this connection, or all of the conversation to it.",
)
@click.option(
    "--remember", is_flag=True, help="Save a rule for exactly these commands, or this host: they need no approval."
)
@click.option("--everywhere", is_flag=True, help="With --remember: for every conversation, not only this one.")
@click.option(
    "--days", type=click.IntRange(1, 365), default=30, show_default=True, help="With --remember: days until it expires."
)
@click.option("--digest", metavar="HEX", help="Approve only if the call has this digest, as `show` prints it.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation of --args and --remember.")
@json_option
def approve(
    request_id: str,
    changed: str | None,
    scope: Scope,
    remember: bool,
    everywhere: bool,
    days: int,
    digest: str | None,
    yes: bool,
) -> None:
    """Allow exactly this call to run, once.

    With --args a worker proposes the changed call. It is shown, and approved as shown after y or with --yes. With
    --remember the rules are shown before they are saved.

    \b
      shellback approvals approve a7db --args '{"command": "rm -r build"}'
      shellback approvals approve a7db --for session
      shellback approvals approve a7db --remember --days 7
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from shellback.cli.approving import Approving, decided
    from shellback.client.deciding import arguments_of
    from shellback.wiring import wiring

    arguments = changed and arguments_of(utf8(changed, "--args"), "--args")
    with opened() as where, wiring.enqueuing(where) as enqueuer:
        approving = Approving(where=where, enqueuer=enqueuer, yes=yes)
        if arguments:
            digest = approving.change(request_id, arguments)
        rules: Sequence[Rule] = ()
        if remember:
            digest, rules = approving.offer(request_id, digest=digest, everywhere=everywhere, days=days)
        request, saved = approving.approve(request_id, scope=scope, digest=digest, rules=rules)
    _say(decided(request, saved), "approved")


@approvals.command()
@click.argument("request_id", metavar="ID", shell_complete=request_ids)
@click.option("--reason", metavar="TEXT", help="Reason for the agent.")
@json_option
def deny(request_id: str, reason: str | None) -> None:
    """Deny this call; the agent is told, with the reason."""
    from shellback.cli.approving import SURFACE, decided
    from shellback.wiring import wiring
    from shellback.work.approvals import approvals as requests

    note = reason and utf8(reason, "the reason")
    with opened() as where, wiring.enqueuing(where) as enqueuer:
        request = requests.settle(where.database, enqueuer, request_id, "denied", by=me(), surface=SURFACE, note=note)
    _say(decided(request), "denied")


def _say(facts: dict[str, Any], wanted: str) -> None:
    in_time = facts["state"] == wanted
    rules = [f"remembered as {rule['id']}: {rule['rule']}" for rule in facts.get("rules", ())]
    show(facts, [f"{facts['id']} {facts['state']}", *rules] if in_time else ())
    if not in_time:
        raise Refused(f"{facts['id']} is {facts['state']}: the decision came too late. Nothing runs")


def facts_of(request: Request) -> dict[str, Any]:
    """A request for programs: its exact values, and the text shown to people."""
    return {**asdict(request), "shown": request.shown}
