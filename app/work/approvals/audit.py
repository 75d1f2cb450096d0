"""The audit: who allowed or refused what, when, and through which surface. Rows commit with their cause.

The database refuses to change a row; retention deletes rows after `RETAIN_DAYS`. Texts are escaped for a terminal;
`command` is the output of `core.display.shown`, which decodes to the command.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import sqlalchemy as sa

from shellback.exec.core.display import shown, subject, visible
from shellback.exec.core.errors import CommandDenied
from shellback.storage.rows import given, insert_new
from shellback.storage.tables import audit
from shellback.work.approvals.event import Event

REASON_CHARS: Final = 4_000
PAGE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row. `done_by` is who decided, or None; `facts` are tier, profile and the like."""

    id: int = 0
    at: float = field(default_factory=time.time)
    event: Event
    conversation_id: str | None = None
    turn_id: str | None = None
    call_key: str | None = None
    request_id: str | None = None
    session_id: str | None = None
    tool: str | None = None
    digest: str | None = None
    rule: str | None = None
    done_by: str | None = None
    surface: str | None = None
    reason: str | None = None
    command: str | None = None
    facts: dict[str, Any] | None = None


class Unusable(CommandDenied):
    """Raised when an approval does not allow this call; `row` is for the audit after the rollback."""

    def __init__(self, message: str, row: dict[str, Any]) -> None:
        super().__init__(message)
        self.row = row


def note(conn: sa.Connection, entry: Entry, *, once: bool = False) -> None:
    """Add a row in the caller's transaction; with `once`, a row with the same event, call, digest and reason is kept.

    `entry.id` is ignored; `entry.command` is the unescaped command.
    """
    row = asdict(entry) | {
        "tool": entry.tool and visible(entry.tool)[:100],
        "done_by": entry.done_by and visible(entry.done_by)[:100],
        "reason": entry.reason and visible(entry.reason)[:REASON_CHARS],
        "command": entry.command and shown(entry.command),
        "dedupe_key": _once(entry) if once else None,
    }
    del row["id"]
    insert_new(conn, audit, row)


def _once(entry: Entry) -> str:
    said = hashlib.sha256((entry.reason or "").encode("utf-8", "replace")).hexdigest()
    return f"{entry.event}:{entry.call_key}:{entry.digest}:{said[:16]}"


def audited(conn: sa.Connection, event: Event, request: Any, **more: Any) -> None:
    """Add a row about an approval request (or its database row); `more` overrides fields of the entry."""
    about: dict[str, Any] = {
        "conversation_id": request.conversation_id,
        "turn_id": request.turn_id,
        "call_key": request.call_key,
        "request_id": request.id,
        "session_id": request.session_id,
        "tool": request.tool_name,
        "digest": request.digest,
        "command": subject(request.display),
    }
    note(conn, Entry(event=event, **(about | more)))


def refused(conn: sa.Connection, error: CommandDenied) -> None:
    """Add a row about an approval that was not accepted, after the call's own transaction was rolled back."""
    if isinstance(error, Unusable):
        note(conn, Entry(event="refused", reason=str(error), **error.row), once="call_key" in error.row)


def find(
    conn: sa.Connection,
    *,
    conversation_id: str | None = None,
    events: tuple[str, ...] = (),
    since: float | None = None,
    by: str | None = None,
    after: int = 0,
    before: int | None = None,
) -> list[Entry]:
    """Rows with an id above `after`, oldest first, or below `before`, newest first.

    Filtered by conversation, events, time and who did it if given.
    """
    which = given((audit.c.conversation_id, conversation_id), (audit.c.done_by, by))
    query = sa.select(audit).where(audit.c.id > after, *which).limit(PAGE)
    query = query.order_by(audit.c.id) if before is None else query.order_by(audit.c.id.desc())
    if before is not None:
        query = query.where(audit.c.id < before)
    if events:
        query = query.where(audit.c.event.in_(events))
    if since is not None:
        query = query.where(audit.c.at >= since)
    return [
        Entry(**{name: value for name, value in row.items() if name != "dedupe_key"})
        for row in conn.execute(query).mappings()
    ]
