"""One approval from the command line: the changed call, the rules to remember, and the decision."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from shellback.cli.cards import painted
from shellback.cli.rules import SURFACE
from shellback.cli.shared import PENDING, Refused, until, wants_json
from shellback.cli.terminal.screen import confirmed
from shellback.client.caller import me
from shellback.client.deciding import Deciding
from shellback.exec.core.display import shown_line
from shellback.work.approvals.showing import whole

if TYPE_CHECKING:
    from shellback.exec.policy.rules.rule import Rule
    from shellback.work.approvals.approvals import Request

PROPOSED_S: Final = 30.0
"""The time in which a worker has to propose the call with changed arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approving(Deciding):
    """One approval from the command line, with its output and questions."""

    by: str = field(default_factory=me)
    surface: str = SURFACE
    yes: bool = False

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

    def _proposed(self, changed: Request) -> Request:
        from shellback.work.approvals import approvals as requests

        database = self.where.database
        pending = database.read_now(
            requests.find, conversation_id=changed.conversation_id, state="pending", of_calls=True
        )
        # A worker may have proposed the changed call by now, so it is no other one.
        if others := [one for one in pending if one.id != changed.id]:
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


def decided(request: Request, saved: Sequence[Rule] = ()) -> dict[str, Any]:
    """A decision, for programs, with the rules that were saved by it."""
    return {
        "id": request.id,
        "state": request.state,
        "conversation": request.conversation_id,
        **({"scope": request.scope} if request.scope != "once" else {}),
        **({"rules": [{"id": one.id, "rule": one.described()} for one in saved]} if saved else {}),
    }
