"""Uses approvals: once, for exactly the approved call, in the transaction that acts.

A standing approval holds for all input to its session until the session ends; each input looks it up again.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from shellback.exec.core.model import APPROVED, Act, CallKey, Session, SessionId
from shellback.storage import rows
from shellback.storage.rows import change_some
from shellback.storage.session_rows import LIVE
from shellback.storage.tables import approvals, sessions
from shellback.storage.tables import audit as audit_rows
from shellback.work.approvals import audit
from shellback.work.approvals.audit import Unusable

APART_S: Final = 300.0
"""How far a clock may be set back: what is dated further ahead counts as expired."""
_STANDING: Final = (
    sa.select(approvals.c.session_id, approvals.c.id, approvals.c.digest)
    .join(sessions, sessions.c.id == approvals.c.session_id)
    .where(
        approvals.c.conversation_id == sessions.c.conversation_id,
        sessions.c.state.in_(LIVE),
        approvals.c.scope == "session",
        approvals.c.state.in_(["approved", "used"]),
    )
)


def consume_claim(conn: sa.Connection, session: Session) -> None:
    """Use the approval of a new session, in the claim's transaction.

    Raises:
        Unusable: The approval cannot be used, so nothing is claimed.
    """
    if session.approval_id is None:
        return
    if session.granted_by == APPROVED:
        _use_in_call(conn, session.approval_id, session)
    else:
        consume(conn, session.approval_id, session.id, session.digest, conversation_id=session.conversation_id)


def _use_in_call(conn: sa.Connection, request_id: str, session: Session) -> None:
    """Use the approval of a call for a command that its code runs. It holds for all commands of this call only."""
    ours = sa.and_(approvals.c.id == request_id, approvals.c.conversation_id == session.conversation_id)
    change_some(conn, approvals, ours, approvals.c.state == "approved", state="used", used_by=approvals.c.call_key)
    used = sa.and_(ours, approvals.c.state == "used", approvals.c.used_by == approvals.c.call_key)
    row = conn.execute(sa.select(approvals).where(used)).one_or_none()
    if row is None:
        _refuse(conn, request_id, session.id, "", session.conversation_id)
        return
    audit.audited(
        conn,
        "used",
        row,
        turn_id=session.turn_id,
        session_id=session.id,
        digest=session.digest,
        command=session.command,
        reason="run by the code of the approved call",
    )


def consume_call(conn: sa.Connection, act: Act) -> None:
    """Use the approval of a call that changes something, in the transaction that begins the call.

    Raises:
        Unusable: The approval cannot be used, or input has none, so nothing is done.
    """
    key, session_id, conversation_id = act.key, act.session_id, act.conversation_id
    if conversation_id is None:
        conversation_id = conn.execute(
            sa.select(sessions.c.conversation_id).where(sessions.c.id == session_id)
        ).scalar_one_or_none()
    row = conn.execute(sa.select(approvals).where(approvals.c.call_key == key)).one_or_none()
    if row is not None:
        ours = row.session_id in {None, session_id}
        consume(conn, row.id, key, row.digest if ours else "", conversation_id=conversation_id)
    elif act.kind in {"typed", "input"}:
        _use_standing(conn, key, session_id, act.tool, conversation_id)


def _use_standing(conn: sa.Connection, key: CallKey, session_id: str, tool: str, conversation_id: str | None) -> None:
    facts: dict[str, Any] = {
        "conversation_id": conversation_id,
        "call_key": key,
        "session_id": session_id,
        "tool": tool,
    }
    found = conn.execute(_STANDING.where(approvals.c.session_id == session_id).limit(1)).one_or_none()
    if found is None:
        raise Unusable(
            f"nobody approved this input to session {session_id}, nor input until it ends; nothing was written", facts
        )
    used = {"request_id": found.id, "digest": found.digest, "reason": "approved for the session"}
    audit.note(conn, audit.Entry(event="used", **used, **facts))


def standing(conn: sa.Connection, conversation_id: str) -> dict[SessionId, str]:
    """The standing approvals of a conversation, by live session."""
    found = conn.execute(_STANDING.where(approvals.c.conversation_id == conversation_id))
    return {SessionId(row.session_id): row.id for row in found}


def consume(conn: sa.Connection, request_id: str, user: str, digest: str, *, conversation_id: str | None) -> None:
    """Use an approval for the call with this `digest`, in the transaction that acts; `user` may repeat it.

    Raises:
        Unusable: It was used, has expired, is no approval, or is for something else; the message says which.
    """
    now = rows.CLOCK
    row = conn.execute(
        sa.update(approvals)
        .where(
            approvals.c.id == request_id,
            approvals.c.state == "approved",
            approvals.c.digest == digest,
            approvals.c.conversation_id == conversation_id,
            approvals.c.decided_at >= now - (approvals.c.expires_at - approvals.c.created_at),
            approvals.c.decided_at <= now + APART_S,
        )
        .values(state="used", used_by=user)
        .returning(approvals)
    ).one_or_none()
    if row is None:
        _refuse(conn, request_id, user, digest, conversation_id)
        return
    audit.audited(conn, "used", row, session_id=row.session_id or user)


def _refuse(conn: sa.Connection, request_id: str, user: str, digest: str, conversation_id: str | None) -> None:
    """Raise `Unusable`, unless this repeats the use by the same user."""
    row = conn.execute(sa.select(approvals).where(approvals.c.id == request_id)).one_or_none()
    if row is not None and row.state == "used" and row.used_by == user and row.digest == digest:
        return
    facts: dict[str, Any] = {"request_id": request_id, "digest": digest, "conversation_id": conversation_id}
    if row is not None:
        facts |= {"tool": row.tool_name, "call_key": row.call_key, "turn_id": row.turn_id}
    raise Unusable(f"approval {request_id} {_why(row, digest, conversation_id)}; nothing was started", facts)


def _why(row: sa.Row[Any] | None, digest: str, conversation_id: str | None) -> str:
    if row is None:
        return "is not known"
    if row.conversation_id != conversation_id:
        return "belongs to another conversation"
    if row.state == "used":
        return "was used already"
    if row.state != "approved":
        return f"is no approval, it is {row.state}"
    if row.digest != digest:
        return "was given for something else: what would run has changed since"
    return "has expired: it was not used in time"


def tier_of(conn: sa.Connection, session: sa.Row[Any]) -> str | None:
    """The tier of a session's command when it was approved or judged; None if that is not on record."""
    if session.approval_id is not None:
        display = conn.execute(
            sa.select(approvals.c.display).where(approvals.c.id == session.approval_id)
        ).scalar_one_or_none()
        return str(display["tier"]) if display and display.get("tier") else None
    judged = sa.select(audit_rows.c.facts).where(
        audit_rows.c.session_id == session.id, audit_rows.c.event.in_(["auto_approved", "rule"])
    )
    facts = conn.execute(judged.order_by(audit_rows.c.id).limit(1)).scalar_one_or_none()
    return str(facts["tier"]) if facts and facts.get("tier") else None
