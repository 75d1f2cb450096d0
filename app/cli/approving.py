"""A yes that is more than one word: to changed arguments, or with a rule that is remembered."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from shellback.cli.codes import PENDING
from shellback.cli.requests import whole
from shellback.cli.shared import Refused, columns, me, opened
from shellback.cli.terminal import confirmed
from shellback.exec.core.display import folded, shown_line
from shellback.work.approvals import approvals, audit

if TYPE_CHECKING:
    import sqlalchemy as sa

    from shellback.exec.policy.rules.rule import Rule
    from shellback.wiring.wiring import Place
    from shellback.work.approvals.approvals import Request, Scope
    from shellback.work.queue.queues import Enqueuer

PROPOSED_S: Final = 30.0
"""So long a worker has to say what changed arguments would run."""
LOOK_S: Final = 0.1
SURFACE: Final = "cli"


@dataclass(frozen=True, slots=True, kw_only=True)
class Approving:
    """One approval from the command line, with what it shows and asks before."""

    where: Place
    enqueuer: Enqueuer
    as_json: bool
    yes: bool

    @classmethod
    @contextlib.contextmanager
    def opened(cls, *, as_json: bool, yes: bool) -> Generator[Approving]:
        """Open the database for one approval."""
        from shellback.wiring import wiring

        with opened() as where, wiring.enqueuing(where) as enqueuer:
            yield cls(where=where, enqueuer=enqueuer, as_json=as_json, yes=yes)

    def change(self, request_id: str, arguments: dict[str, Any]) -> str:
        """Have a worker propose the call with these arguments, show it, and ask; returns the digest of what was shown.

        Raises:
            Refused: No worker proposed it, or it would not run.
            SystemExit: It waits for other calls or for another yes.
        """
        database = self.where.database
        before = database.read_now(approvals.get, request_id)
        args = {**(before.changed_args or before.args), **arguments}
        how: dict[str, Any] = {"by": me(), "surface": SURFACE, "args": args}
        changed = approvals.settle(database, self.enqueuer, before.id, "changed", **how)
        if changed.state != "changed":
            raise Refused(f"{changed.id} is {changed.state}: it was not decided in time. Nothing runs")
        request = self._proposed(changed)
        self._tell(*folded(whole(request), columns()))
        if refused := request.display.get("refused"):
            raise Refused(f"{request.id} would not run like that: {refused}. Change it again, or deny it")
        self._confirm(f"shellback approvals approve {request.id} --digest {request.digest}")
        return request.digest

    def _proposed(self, changed: Request) -> Request:
        database = self.where.database
        others = database.read_now(approvals.find, conversation_id=changed.conversation_id, state="pending")
        if others:
            self._tell(f"{changed.id} is changed; it is asked about again after {len(others)} other call(s) that wait")
            sys.exit(PENDING)
        deadline = time.monotonic() + PROPOSED_S
        while (request := database.read_now(approvals.get, changed.id)).state == "changed":
            if time.monotonic() > deadline:
                raise Refused(
                    f"{changed.id} is changed, and no worker has said within {PROPOSED_S:g} s what would run; "
                    "`shellback doctor` says whether one runs. Once it has, `shellback approvals list` shows it"
                )
            time.sleep(LOOK_S)
        return request

    def offer(self, request_id: str, *, digest: str | None, everywhere: bool, days: int) -> tuple[str, Sequence[Rule]]:
        """Show the rules that would be remembered, and ask; returns the digest of the call that they are made of too.

        Raises:
            InvalidCommand: It cannot be remembered; the message says why.
            SystemExit: It waits for a yes.
        """
        from shellback.cli.policy import around
        from shellback.exec.policy.rules.matching import Facts
        from shellback.exec.policy.rules.remember import rules_for

        request = self.where.database.read_now(approvals.get, request_id)
        if digest not in {None, request.digest}:
            raise Refused(f"approval request {request.id} has changed since you saw it; look at it again")
        display = request.display
        surroundings = around(
            self.where.settings, Path(str(display.get("cwd"))), sandboxed=display.get("backend") != "host"
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
        rules = rules_for(request.tool_name, facts, surroundings, owner=me(), everywhere=everywhere, days=days)
        if not rules:
            raise Refused("every command of it passes by itself in the sandbox: there is nothing to remember")
        self._tell("to be remembered:", *(f"  {shown_line(rule.described())}" for rule in rules))
        self._confirm(f"shellback approvals approve {request.id} --remember --yes --digest {request.digest}")
        return request.digest, rules

    def approve(
        self, request_id: str, *, scope: Scope, digest: str | None, rules: Sequence[Rule] = ()
    ) -> dict[str, Any]:
        """Approve, and save the rules, in one transaction; what came of it."""
        how: dict[str, Any] = {"by": me(), "surface": SURFACE, "scope": scope, "digest": digest}
        saved: list[Rule] = []

        def remember(conn: sa.Connection, request: Request) -> None:
            from shellback.storage.rules import add

            saved[:] = add(conn, rules)
            for rule in saved:
                audit.note(
                    conn,
                    "rule_added",
                    conversation_id=request.conversation_id,
                    request_id=request.id,
                    rule=rule.id,
                    by=me(),
                    surface=SURFACE,
                    reason=rule.described(),
                )

        request = approvals.settle(
            self.where.database, self.enqueuer, request_id, "approved", then=remember if rules else None, **how
        )
        facts: dict[str, Any] = {
            "id": request.id,
            "state": request.state,
            "conversation": request.conversation_id,
        }
        if request.scope != "once":
            facts["scope"] = request.scope
        return facts | ({"rules": [{"id": one.id, "rule": one.described()} for one in saved]} if saved else {})

    def _tell(self, *lines: str) -> None:
        for line in lines:
            click.echo(line, err=self.as_json)

    def _confirm(self, otherwise: str) -> None:
        if self.yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            self._leave(f"nothing is approved yet; to approve exactly this: {otherwise}")
        if not confirmed("approve exactly this?"):
            self._leave("nothing is approved; the call still waits")

    def _leave(self, text: str) -> NoReturn:
        click.echo(text, err=True)
        sys.exit(PENDING)
