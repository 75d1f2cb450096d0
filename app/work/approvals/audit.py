"""Who let what run, when, and through which surface: rows that are written with the thing they tell and never changed.

The database itself refuses to change a row; only retention deletes, after `RETAIN_DAYS`. What is in `command`,
`reason` and `facts` is harmless to show: a command is what `core.display.shown` makes of it, which decodes to it.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import sqlalchemy as sa

from shellback.exec.core.display import shown, visible
from shellback.exec.core.errors import CommandDenied
from shellback.storage.rows import given, insert_new
from shellback.storage.tables import audit
from shellback.work.approvals.event import Event

REASON_CHARS: Final = 4_000
PAGE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row. `done_by` is who decided, None where nobody did; `facts` are tier, profile and the like."""

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
    """Raised when an approval does not let this call act; `row` is what the audit is told once all is undone."""

    def __init__(self, message: str, row: dict[str, Any]) -> None:
        super().__init__(message)
        self.row = row


def note(conn: sa.Connection, entry: Entry, *, once: bool = False) -> None:
    """Add a row to the caller's transaction; with `once`, one for each event of a call as it was proposed, and reason.

    Its number is given here, and its `command` is given as it runs.
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
    """Tell what became of a request for approval, or of its row; `more` are facts of the entry, before those of it."""
    command = request.display.get("command")
    about: dict[str, Any] = {
        "conversation_id": request.conversation_id,
        "turn_id": request.turn_id,
        "call_key": request.call_key,
        "request_id": request.id,
        "session_id": request.session_id,
        "tool": request.tool_name,
        "digest": request.digest,
        "command": command if isinstance(command, str) else None,
    }
    note(conn, Entry(event=event, **(about | more)))


def refused(conn: sa.Connection, error: CommandDenied) -> None:
    """Tell why an approval was not taken, in a transaction of its own: that of the call came to nothing."""
    if isinstance(error, Unusable):
        note(conn, Entry(event="refused", reason=str(error), **error.row), once="call_key" in error.row)


def find(
    conn: sa.Connection,
    *,
    conversation_id: str | None = None,
    events: tuple[str, ...] = (),
    since: float | None = None,
    after: int = 0,
    limit: int = PAGE,
) -> list[Entry]:
    """Rows behind number `after`, oldest first; of one conversation and of these events, or of all."""
    which = given((audit.c.conversation_id, conversation_id))
    query = sa.select(audit).where(audit.c.id > after, *which).order_by(audit.c.id).limit(limit)
    if events:
        query = query.where(audit.c.event.in_(events))
    if since is not None:
        query = query.where(audit.c.at >= since)
    return [
        Entry(**{name: value for name, value in row.items() if name != "dedupe_key"})
        for row in conn.execute(query).mappings()
    ]
