"""`shellback approvals`: calls that wait for a person, and the decision."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import click

from shellback.cli.findings import open_line
from shellback.cli.freshness import Freshness
from shellback.cli.options import conversation_option, request_ids
from shellback.cli.output import undrawn
from shellback.cli.policy import around
from shellback.cli.rules import kept
from shellback.cli.shared import (
    PENDING,
    Columns,
    Refused,
    age,
    columns,
    json_option,
    me,
    opened,
    show,
    table_lines,
    until,
    utf8,
    wants_json,
)
from shellback.cli.terminal.screen import confirmed
from shellback.cli.watching import watch, watch_option
from shellback.exec.backends.kinds import KINDS
from shellback.exec.core.display import folded, request_lines, shown_line, visible_line
from shellback.exec.policy.rules.matching import Facts
from shellback.exec.policy.rules.rule import Rule

if TYPE_CHECKING:
    import sqlalchemy as sa

    from shellback.wiring.wiring import Place
    from shellback.work.approvals.approvals import Request, Scope
    from shellback.work.queue.queues import Enqueuer

PROPOSED_S: Final = 30.0
"""The time in which a worker has to propose the call with changed arguments."""
SURFACE: Final = "cli"


@click.group()
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
@json_option
def list_(conversation: str | None, everything: bool, watching: bool) -> None:
    """List requests that wait for a decision.

    --watch updates the list until Ctrl-C: in place on a terminal; elsewhere it prints one line (with --json one
    object) for each request that is new, has changed, or is gone.
    """
    from shellback.work.approvals import approvals as requests

    with opened() as where:

        def look() -> list[Request]:
            return where.database.read_now(
                requests.find, conversation_id=conversation, state=None if everything else "pending"
            )

        if watching:
            watch(look, lambda one: one.id, lambda now: [*_listed(now), *Freshness(where).lines()], _line)
        found, said, fresh = look(), open_line(where), Freshness(where)
    more = ["`shellback approvals show ID` shows a request in full"] if found else []
    lines = [*_listed(found), *more, *([said] if said else []), *fresh.lines()]
    show([facts_of(request) | fresh.fact() for request in found], lines)


def _listed(found: Sequence[Request]) -> list[str]:
    if not found:
        return ["nothing waits for approval"]
    now = time.time()
    headings: Columns[Request] = {
        "ID": "id",
        "CONVERSATION": "conversation_id",
        "STATE": "state",
        "LEFT": lambda one: age(max(0.0, one.expires_at - now)) if one.state == "pending" else None,
        "TOOL": "tool_name",
    }
    lines = table_lines(found, headings)
    room = max(map(len, map(undrawn, lines)))
    whats = ["WHAT", *map(_what, found)]
    return [f"{line}{' ' * (room - len(undrawn(line)))}  {what}" for line, what in zip(lines, whats, strict=True)]


def _what(one: Request) -> str:
    """The call on one line, never cut."""
    command = one.display.get("command")
    return shown_line(command if isinstance(command, str) else json.dumps(one.changed_args or one.args))


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
    from shellback.work.approvals import approvals as requests

    with opened() as where:
        request = where.database.read_now(requests.get, request_id)
        fresh = Freshness(where)
    lines = [*folded(_whole(request), columns()), *fresh.lines()]
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
    help="For input to a process: allow this call, or all input until the process ends.",
)
@click.option("--remember", is_flag=True, help="Save a rule for exactly these commands, so that they need no approval.")
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
    from shellback.wiring import wiring

    arguments = changed and _arguments(changed)
    with opened() as where, wiring.enqueuing(where) as enqueuer:
        approving = Approving(where=where, enqueuer=enqueuer, yes=yes)
        if arguments:
            digest = approving.change(request_id, arguments)
        rules: Sequence[Rule] = ()
        if remember:
            digest, rules = approving.offer(request_id, digest=digest, everywhere=everywhere, days=days)
        facts = approving.approve(request_id, scope=scope, digest=digest, rules=rules)
    _say(facts, "approved")


def _arguments(text: str) -> dict[str, Any]:
    try:
        given = json.loads(utf8(text, "--args"))
    except (ValueError, RecursionError) as error:
        raise Refused(f"--args is not JSON: {error}") from None
    if not isinstance(given, dict) or not given:
        raise Refused('--args is not a JSON object with arguments: give {"command": "..."}')
    return cast("dict[str, Any]", given)


@approvals.command()
@click.argument("request_id", metavar="ID", shell_complete=request_ids)
@click.option("--reason", metavar="TEXT", help="Reason for the agent.")
@json_option
def deny(request_id: str, reason: str | None) -> None:
    """Deny this call; the agent is told, with the reason."""
    from shellback.wiring import wiring
    from shellback.work.approvals import approvals as requests

    note = reason and utf8(reason, "the reason")
    with opened() as where, wiring.enqueuing(where) as enqueuer:
        request = requests.settle(where.database, enqueuer, request_id, "denied", by=me(), surface="cli", note=note)
    _say(_decided(request), "denied")


def _decided(request: Request) -> dict[str, Any]:
    return {"id": request.id, "state": request.state, "conversation": request.conversation_id}


def _say(facts: dict[str, Any], wanted: str) -> None:
    in_time = facts["state"] == wanted
    rules = [f"remembered as {rule['id']}: {rule['rule']}" for rule in facts.get("rules", ())]
    show(facts, [f"{facts['id']} {facts['state']}", *rules] if in_time else ())
    if not in_time:
        raise Refused(f"{facts['id']} is {facts['state']}: the decision came too late. Nothing runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Approving:
    """One approval from the command line, with its output and questions."""

    where: Place
    enqueuer: Enqueuer
    yes: bool

    def change(self, request_id: str, arguments: dict[str, Any]) -> str:
        """Have a worker propose the call with these arguments, show it and ask; returns the digest of the shown call.

        Raises:
            Refused: No worker proposed it, or it would be refused.
            SystemExit: It waits for other calls or for a confirmation.
        """
        from shellback.work.approvals import approvals as requests

        database = self.where.database
        before = database.read_now(requests.get, request_id)
        args = {**(before.changed_args or before.args), **arguments}
        how: dict[str, Any] = {"by": me(), "surface": SURFACE, "args": args}
        changed = requests.settle(database, self.enqueuer, before.id, "changed", **how)
        if changed.state != "changed":
            raise Refused(f"{changed.id} is {changed.state}: the decision came too late. Nothing runs")
        request = self._proposed(changed)
        self._tell(*folded(_whole(request), columns()))
        if refused := request.display.get("refused"):
            raise Refused(f"the changed call {request.id} would be refused: {refused}. Change it again, or deny it")
        self._confirm(f"shellback approvals approve {request.id} --digest {request.digest}")
        return request.digest

    def _proposed(self, changed: Request) -> Request:
        from shellback.work.approvals import approvals as requests

        database = self.where.database
        others = database.read_now(requests.find, conversation_id=changed.conversation_id, state="pending")
        if others:
            self._tell(
                f"{changed.id} is changed; it waits for approval again after {len(others)} other waiting call(s)"
            )
            sys.exit(PENDING)

        def proposed() -> Request | None:
            request = database.read_now(requests.get, changed.id)
            return None if request.state == "changed" else request

        return until(
            proposed,
            PROPOSED_S,
            f"{changed.id} is changed, but no worker proposed the changed call within {PROPOSED_S:g} s; "
            "`shellback doctor` says whether a worker runs. Later, `shellback approvals list` shows the proposal",
        )

    def offer(self, request_id: str, *, digest: str | None, everywhere: bool, days: int) -> tuple[str, Sequence[Rule]]:
        """Show the rules that would be saved, and ask; returns the digest of their call, and the rules.

        Raises:
            InvalidCommand: No rule can be made; the message says why.
            SystemExit: It waits for a confirmation.
        """
        from shellback.exec.policy.rules.remember import rules_for
        from shellback.exec.tools.registry import tool_named
        from shellback.work.approvals import approvals as requests

        request = self.where.database.read_now(requests.get, request_id)
        if digest not in {None, request.digest}:
            raise Refused(f"approval request {request.id} has changed since you saw it: show it again")
        display = request.display
        kind = KINDS.get(str(display.get("backend")))
        surroundings = around(
            self.where.settings, Path(str(display.get("cwd"))), sandboxed=kind is None or kind.isolates
        )
        facts = Facts(
            command=str(display.get("command")),
            backend=str(display.get("backend")),
            profile=str(display.get("profile")),
            conversation_id=request.conversation_id,
            cwd=surroundings.cwd,
            more=any(display.get(name) for name in ("env", "stdin", "keep_stdin_open", "pty")),
            now=time.time(),
        )
        rules = rules_for(
            tool_named(request.tool_name), facts, surroundings, owner=me(), everywhere=everywhere, days=days
        )
        if not rules:
            raise Refused(
                "no rule is needed: all commands of this call are read-only and run in the sandbox without approval"
            )
        self._tell("rules to save:", *(f"  {shown_line(rule.described())}" for rule in rules))
        self._confirm(f"shellback approvals approve {request.id} --remember --yes --digest {request.digest}")
        return request.digest, rules

    def approve(
        self, request_id: str, *, scope: Scope, digest: str | None, rules: Sequence[Rule] = ()
    ) -> dict[str, Any]:
        """Approve, and save the rules, in one transaction; returns the outcome."""
        from shellback.work.approvals import approvals as requests

        how: dict[str, Any] = {"by": me(), "surface": SURFACE, "scope": scope, "digest": digest}
        saved: list[Rule] = []

        def remember(conn: sa.Connection, request: Request) -> None:
            saved[:] = kept(conn, rules, conversation=request.conversation_id, request_id=request.id)

        request = requests.settle(
            self.where.database, self.enqueuer, request_id, "approved", then=remember if rules else None, **how
        )
        return {
            **_decided(request),
            **({"scope": request.scope} if request.scope != "once" else {}),
            **({"rules": [{"id": one.id, "rule": one.described()} for one in saved]} if saved else {}),
        }

    def _tell(self, *lines: str) -> None:
        for line in lines:
            click.echo(line, err=wants_json())

    def _confirm(self, otherwise: str) -> None:
        if self.yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            self._leave(f"not approved yet; to approve exactly this, run: {otherwise}")
        if not confirmed("approve exactly this?"):
            self._leave("not approved; the call still waits")

    def _leave(self, text: str) -> NoReturn:
        click.echo(text, err=True)
        sys.exit(PENDING)


def facts_of(request: Request) -> dict[str, Any]:
    """A request for programs: its exact values, and the text shown to people."""
    return {**asdict(request), "shown": request.shown}


def wanted(request: Request) -> list[str]:
    """The lines of a call that waits, nothing cut."""
    changed = f", as {shown_line(request.changed_by)} changed it" if request.changed_by else ""
    head = f"? {shown_line(request.tool_name)} wants to run{changed}, and waits for you ({request.id}):"
    return [head, *request_lines(request.display)]


def _whole(request: Request) -> list[str]:
    """All lines about a request."""
    head = f"{request.id}  {request.state}  {request.tool_name}  in conversation {request.conversation_id}"
    lines = [visible_line(head), *request_lines(request.display)]
    if request.changed_args is not None:
        asked = {"asked for": json.dumps(request.args), "changed to": json.dumps(request.changed_args)}
        lines += request_lines(asked | {"changed by": request.changed_by})
    lines.append(f"    digest: {request.digest}")
    left = request.expires_at - time.time()
    if request.state == "pending":
        lines.append(f"    expires in: {age(max(0.0, left))}")
    elif request.decided_by:
        note = f": {request.note}" if request.note else ""
        decided = {"decided by": f"{request.decided_by} through {request.surface}{note}"}
        lines += request_lines(decided | ({"holds for": "the session"} if request.scope == "session" else {}))
    if request.used_by:
        lines.append(f"    used by: {request.used_by}")
    return lines
