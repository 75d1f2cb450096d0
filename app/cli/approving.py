"""One approval from the command line: the changed call, the rules to remember, and the decision."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import click

from shellback.cli.cards import painted
from shellback.cli.policy import around
from shellback.cli.rules import kept
from shellback.cli.shared import PENDING, Refused, until, utf8, wants_json
from shellback.cli.terminal.screen import confirmed
from shellback.client.caller import me
from shellback.exec.backends.kinds import KINDS
from shellback.exec.core.display import shown_line, subject
from shellback.exec.policy.rules.matching import Facts
from shellback.exec.policy.rules.rule import Rule
from shellback.work.approvals.showing import whole

if TYPE_CHECKING:
    import sqlalchemy as sa

    from shellback.wiring.wiring import Place
    from shellback.work.approvals.approvals import Request, Scope
    from shellback.work.queue.queues import Enqueuer

PROPOSED_S: Final = 30.0
"""The time in which a worker has to propose the call with changed arguments."""
SURFACE: Final = "cli"
DAYS: Final = 30
"""A remembered rule expires after so many days, unless a person says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approving:
    """One approval from the command line, with its output and questions."""

    where: Place
    enqueuer: Enqueuer
    yes: bool = False
    surface: str = SURFACE

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
        request = self._proposed(self.propose(before, args))
        self._tell(*painted(whole(request)))
        if refused := request.display.get("refused"):
            raise Refused(f"the changed call {request.id} would be refused: {refused}. Change it again, or deny it")
        self._confirm(f"shellback approvals approve {request.id} --digest {request.digest}")
        return request.digest

    def propose(self, request: Request, args: dict[str, Any]) -> Request:
        """Have a worker propose the call with `args`, whose proposal waits in its place; Refused if it is decided."""
        from shellback.work.approvals import approvals as requests

        how: dict[str, Any] = {"by": me(), "surface": self.surface, "args": args}
        changed = requests.settle(self.where.database, self.enqueuer, request.id, "changed", **how)
        if changed.state != "changed":
            raise Refused(f"{changed.id} is {changed.state}: the decision came too late. Nothing runs")
        return changed

    def _proposed(self, changed: Request) -> Request:
        from shellback.work.approvals import approvals as requests

        database = self.where.database
        others = database.read_now(
            requests.find, conversation_id=changed.conversation_id, state="pending", of_calls=True
        )
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
        from shellback.work.approvals import approvals as requests

        request = self.where.database.read_now(requests.get, request_id)
        if digest not in {None, request.digest}:
            raise Refused(f"approval request {request.id} has changed since you saw it: show it again")
        rules = self.rules(request, everywhere=everywhere, days=days)
        self._tell(*offered(rules))
        self._confirm(f"shellback approvals approve {request.id} --remember --yes --digest {request.digest}")
        return request.digest, rules

    def rules(self, request: Request, *, everywhere: bool = False, days: int = DAYS) -> Sequence[Rule]:
        """The rules for exactly this call.

        Raises:
            InvalidCommand: No rule can be made; the message says why.
            Refused: None is needed.
        """
        made = self._of_call if request.of_call else _of_connection
        if rules := made(request, everywhere=everywhere, days=days):
            return rules
        raise Refused(
            "no rule is needed: all commands of this call are read-only and run in the sandbox without approval"
        )

    def _of_call(self, request: Request, *, everywhere: bool, days: int) -> Sequence[Rule]:
        from shellback.exec.policy.rules.remember import rules_for
        from shellback.exec.tools.registry import tool_named
        from shellback.wiring.directories import places

        display = request.display
        kind = KINDS.get(str(display.get("backend")))
        surroundings = around(
            self.where.settings,
            Path(str(display.get("cwd"))),
            sandboxed=kind is None or kind.isolates,
            also=places(self.where.settings),
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
        tool = tool_named(request.tool_name)
        return rules_for(tool, facts, surroundings, owner=me(), everywhere=everywhere, days=days)

    def approve(
        self, request_id: str, *, scope: Scope, digest: str | None, rules: Sequence[Rule] = ()
    ) -> dict[str, Any]:
        """Approve, and save the rules, in one transaction; returns the outcome."""
        from shellback.work.approvals import approvals as requests

        how: dict[str, Any] = {"by": me(), "surface": self.surface, "scope": scope, "digest": digest}
        saved: list[Rule] = []

        def remember(conn: sa.Connection, request: Request) -> None:
            saved[:] = kept(conn, rules, conversation=request.conversation_id, request_id=request.id)

        request = requests.settle(
            self.where.database, self.enqueuer, request_id, "approved", then=remember if rules else None, **how
        )
        return {
            **decided(request),
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


def offered(rules: Sequence[Rule]) -> list[str]:
    """The lines that show rules before they are saved."""
    return ["rules to save:", *(f"  {shown_line(rule.described())}" for rule in rules)]


def _of_connection(request: Request, *, everywhere: bool, days: int) -> Sequence[Rule]:
    from shellback.exec.policy.rules.remember import rule_for_host

    conversation = None if everywhere else request.conversation_id
    connect = str(subject(request.display))
    return rule_for_host(connect, owner=me(), conversation_id=conversation, now=time.time(), days=days)


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments in a JSON object; Refused if it is none."""
    try:
        given = json.loads(utf8(text, "--args"))
    except (ValueError, RecursionError) as error:
        raise Refused(f"--args is not JSON: {error}") from None
    if not isinstance(given, dict) or not given:
        raise Refused('--args is not a JSON object with arguments: give {"command": "..."}')
    return cast("dict[str, Any]", given)


def decided(request: Request) -> dict[str, Any]:
    """A decision, for programs."""
    return {"id": request.id, "state": request.state, "conversation": request.conversation_id}
