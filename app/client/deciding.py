"""What a person can do with a request beside yes and no: change its call, and save rules that would allow it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from shellback.client import ruling
from shellback.exec.backends.kinds import KINDS
from shellback.exec.core.display import subject, visible
from shellback.exec.core.errors import InvalidCommand, LimitReached
from shellback.exec.policy.rules.matching import Facts
from shellback.wiring.surroundings import around
from shellback.work.approvals import approvals
from shellback.work.errors import ApprovalRefused, ApprovalSettled, InvalidRequest

if TYPE_CHECKING:
    import sqlalchemy as sa

    from shellback.exec.policy.rules.rule import Rule
    from shellback.wiring.wiring import Place
    from shellback.work.approvals.approvals import Request, Scope
    from shellback.work.queue.queues import Enqueuer

DAYS: Final = 30
"""A rule that is made of a request expires after so many days, unless a person says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciding:
    """Decisions of a person, `by` name, at one surface."""

    where: Place
    enqueuer: Enqueuer
    by: str
    surface: str

    def propose(self, request: Request, args: dict[str, Any], *, digest: str | None = None) -> Request:
        """Have a worker propose the call with `args`; its proposal waits in place of this one.

        Raises:
            ApprovalSettled: It is decided, or has expired.
            ApprovalRefused: It has another digest, or only its client can change it.
        """
        how: dict[str, Any] = {"by": self.by, "surface": self.surface, "args": args, "digest": digest}
        changed = approvals.settle(self.where.database, self.enqueuer, request.id, "changed", **how)
        if changed.state != "changed":
            raise ApprovalSettled(f"{changed.id} is {changed.state}: the decision came too late. Nothing runs")
        return changed

    def rules(
        self, request: Request, *, everywhere: bool = False, days: int = DAYS, at: float | None = None
    ) -> Sequence[Rule]:
        """The rules for exactly this call, made `at` a time of the wall clock, or now. Nothing is saved.

        Raises:
            InvalidRequest: No rule can be made, or none is needed; the message says why.
        """
        made = self._of_call if request.of_call else self._of_connection
        try:
            rules = made(request, everywhere=everywhere, days=days, now=time.time() if at is None else at)
        except InvalidCommand as error:
            raise InvalidRequest(str(error)) from None
        if not rules:
            raise InvalidRequest(
                "no rule is needed: all commands of this call are read-only and run in the sandbox without approval"
            )
        return rules

    def _of_call(self, request: Request, *, everywhere: bool, days: int, now: float) -> Sequence[Rule]:
        from shellback.exec.policy.rules.remember import rules_for
        from shellback.exec.tools.registry import tool_named
        from shellback.wiring.directories import places
        from shellback.wiring.views import Views
        from shellback.work.queue import mailbox

        display = request.display
        bound = self.where.database.read_now(mailbox.workspace_of, request.conversation_id)
        kind = KINDS.get(str(display.get("backend")))
        surroundings = around(
            Views(self.where.settings),
            Path(str(display.get("cwd"))),
            sandboxed=kind is None or kind.isolates,
            also=places(self.where.settings),
            bound=bound.path if bound else "",
        )
        facts = Facts(
            command=str(display.get("command")),
            backend=str(display.get("backend")),
            profile=str(display.get("profile")),
            conversation_id=request.conversation_id,
            cwd=surroundings.cwd,
            more=any(display.get(name) for name in ("env", "stdin", "keep_stdin_open", "pty")),
            now=now,
        )
        tool = tool_named(request.tool_name)
        return rules_for(tool, facts, surroundings, owner=self.by, everywhere=everywhere, days=days)

    def _of_connection(self, request: Request, *, everywhere: bool, days: int, now: float) -> Sequence[Rule]:
        from shellback.exec.policy.rules.remember import rule_for_host

        conversation = None if everywhere else request.conversation_id
        connect = str(subject(request.display))
        return rule_for_host(connect, owner=self.by, conversation_id=conversation, now=now, days=days)

    def approve(
        self, request_id: str, *, scope: Scope = "once", digest: str | None, rules: Sequence[Rule] = ()
    ) -> tuple[Request, Sequence[Rule]]:
        """Approve, and save the rules, in one transaction; the request as it is then, and the rules with their ids.

        Raises:
            UnknownApproval, ApprovalSettled: There is no such request, or it is decided.
            ApprovalRefused: It has another digest, or too many rules are in force, or one that would hold longer than
                what was shown. Nothing was done.
        """
        how: dict[str, Any] = {"by": self.by, "surface": self.surface, "scope": scope, "digest": digest}
        saved: list[Rule] = []

        def remember(conn: sa.Connection, request: Request) -> None:
            about = {"conversation": request.conversation_id, "request_id": request.id}
            saved[:] = ruling.keep(conn, rules, by=self.by, surface=self.surface, **about)
            if other := [one for one, wanted in zip(saved, rules, strict=True) if one.expires_at != wanted.expires_at]:
                raise ApprovalRefused(
                    f"nothing was approved: the rule {other[0].id} is the same and ends later than what was shown: "
                    f"{other[0].described()}; revoke it first, or approve without a rule"
                )

        then = remember if rules else None
        try:
            request = approvals.settle(self.where.database, self.enqueuer, request_id, "approved", then=then, **how)
        except LimitReached as error:
            raise ApprovalRefused(f"nothing was approved: {error}") from None
        return request, saved


def editable(request: Request) -> str:
    """The text that a person changes: the command if all of it can be seen, or else all arguments as JSON."""
    args = _args(request)
    command = _command(args)
    return json.dumps(args) if command is None else command


def edited(request: Request, text: str) -> dict[str, Any]:
    """The arguments that a changed `editable` stands for.

    Raises:
        InvalidRequest: They are no JSON object.
    """
    args = _args(request)
    return {**args, **(arguments_of(text, "the call") if _command(args) is None else {"command": text})}


def arguments_of(text: str, what: str) -> dict[str, Any]:
    """The arguments in a JSON object; InvalidRequest if `what` has none."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{what} is not JSON: {error}") from None
    if not isinstance(given, dict) or not given:
        raise InvalidRequest(f'{what} is not a JSON object with arguments: give {{"command": "..."}}')
    return cast("dict[str, Any]", given)


def _args(request: Request) -> dict[str, Any]:
    return request.changed_args or request.args


def _command(args: dict[str, Any]) -> str | None:
    """The command of a call, if it can be seen and typed as it is."""
    command = args.get("command")
    return command if isinstance(command, str) and visible(command) == command else None
