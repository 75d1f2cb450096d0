"""Audits what policy allowed or refused without a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from shellback.exec.core.errors import ExecError
from shellback.exec.core.model import Act, Session
from shellback.exec.policy.classify.model import Tier
from shellback.exec.policy.judge import CLASSIFIER, TRUSTED
from shellback.exec.policy.policy import Asked, Policy, Verdict, Withheld
from shellback.exec.shell.permit import HELD
from shellback.storage import rules
from shellback.storage.db import Database
from shellback.work.approvals import audit
from shellback.work.approvals.uses import consume_call, consume_claim

if TYPE_CHECKING:
    from shellback.work.approvals.event import Event


def claim(conn: sa.Connection, session: Session) -> None:
    """Use the approval or rules of a new session and audit who allowed it, in the claim's transaction.

    Raises:
        CommandDenied: They cannot be used, so nothing is claimed.
    """
    consume_claim(conn, session)
    by, _, rest = session.granted_by.partition(" ")
    if by == "rule":
        rules.use(conn, rest.split())
    if by in {"rule", "policy"}:
        _note(conn, "rule", session, rule=rest)
    elif session.granted_by in {CLASSIFIER, TRUSTED}:
        _note(conn, "auto_approved", session, tier=str(Tier.READ_ONLY))
    elif session.granted_by == HELD:
        _note(conn, "auto_approved", session)


def _note(
    conn: sa.Connection, event: Event, session: Session, *, rule: str | None = None, tier: str | None = None
) -> None:
    entry = audit.Entry(
        event=event,
        conversation_id=session.conversation_id,
        turn_id=session.turn_id,
        session_id=session.id,
        tool="execute",
        digest=session.digest,
        rule=rule,
        done_by=session.granted_by,
        reason="nothing holds it to reading (TRUST_CLASSIFIER)" if session.granted_by == TRUSTED else None,
        command=session.command,
        facts={"backend": session.backend, "profile": session.profile} | ({"tier": tier} if tier else {}),
    )
    audit.note(conn, entry)


def begun(conn: sa.Connection, act: Act) -> None:
    """Use the approval or rules of a call and audit who allowed it, in the transaction that begins the call.

    Raises:
        CommandDenied: They cannot be used, so nothing is done.
    """
    consume_call(conn, act)
    by, _, rest = act.granted_by.partition(" ")
    if by == "rule":
        rules.use(conn, rest.split())
    if by in {"rule", "policy"}:
        entry = audit.Entry(
            event="rule",
            conversation_id=act.conversation_id,
            turn_id=act.turn_id,
            call_key=act.key,
            tool=act.tool,
            digest=act.digest,
            rule=rest,
            done_by=act.granted_by,
        )
        audit.note(conn, entry)


@dataclass(frozen=True, slots=True)
class Audited:
    """A policy whose refusals are audited, once for each call."""

    policy: Policy
    database: Database

    @property
    def asking(self) -> str:
        """See `Policy.asking`."""
        return self.policy.asking

    async def judge(self, asked: Asked) -> Verdict:
        """See `Policy.judge`."""
        return await self.policy.judge(asked)

    async def withheld(self, conversation_id: str) -> Withheld:
        """See `Policy.withheld`."""
        return await self.policy.withheld(conversation_id)

    async def refused(self, asked: Asked, why: ExecError) -> None:
        """See `Policy.refused`."""
        if not isinstance(why, audit.Unusable):  # the store audits those
            await self.database.write(_refused, asked, why)


def _refused(conn: sa.Connection, asked: Asked, why: ExecError) -> None:
    command = asked.spec.command if asked.spec is not None else asked.args.get("command")
    entry = audit.Entry(
        event="refused",
        conversation_id=asked.conversation_id,
        call_key=asked.call_key or None,
        tool=asked.tool,
        done_by="policy",
        reason=str(why),
        command=command if isinstance(command, str) else None,
    )
    audit.note(conn, entry, once=bool(asked.call_key))
