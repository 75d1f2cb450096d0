"""Who let what run, when, and through which surface: rows that are written with the thing they tell and never changed.

The database itself refuses to change a row; only retention deletes, after `RETAIN_DAYS`. What is in `command`,
`reason` and `facts` is harmless to show: a command is what `core.display.shown` makes of it, which decodes to it.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Any, Final, Literal

import sqlalchemy as sa

from shellback.exec.core.display import shown, visible
from shellback.exec.core.errors import CommandDenied
from shellback.storage.rows import insert_new
from shellback.storage.tables import audit

Event = Literal[
    "asked", "auto_approved", "rule", "changed", "approved", "denied", "expired", "superseded", "used", "refused",
    "rule_added", "rule_revoked", "typed",
]  # fmt: skip
EVENTS: Final[tuple[Event, ...]] = (
    "asked", "auto_approved", "rule", "changed", "approved", "denied", "expired", "superseded", "used", "refused",
    "rule_added", "rule_revoked", "typed",
)  # fmt: skip
REASON_CHARS: Final = 4_000
PAGE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row. `done_by` is who decided, None where nobody did; `facts` are tier, profile and the like."""

    id: int
    at: float
    event: str
    conversation_id: str | None
    turn_id: str | None
    call_key: str | None
    request_id: str | None
    session_id: str | None
    tool: str | None
    digest: str | None
    rule: str | None
    done_by: str | None
    surface: str | None
    reason: str | None
    command: str | None
    facts: dict[str, Any] | None


class Unusable(CommandDenied):
    """Raised when an approval does not let this call act; `row` is what the audit is told once all is undone."""

    def __init__(self, message: str, row: dict[str, Any]) -> None:
        super().__init__(message)
        self.row = row


def note(  # noqa: PLR0913 - what a row has
    conn: sa.Connection,
    event: Event,
    *,
    conversation_id: str | None = None,
    turn_id: str | None = None,
    call_key: str | None = None,
    request_id: str | None = None,
    session_id: str | None = None,
    tool: str | None = None,
    digest: str | None = None,
    rule: str | None = None,
    by: str | None = None,
    surface: str | None = None,
    reason: str | None = None,
    command: str | None = None,
    facts: dict[str, Any] | None = None,
    once: bool = False,
) -> None:
    """Add a row to the caller's transaction; with `once`, one for each event of a call as it was proposed, and reason.

    A `command` is given as it runs.
    """
    row = {
        "at": time.time(),
        "event": event,
        "conversation_id": conversation_id,
        "turn_id": turn_id,
        "call_key": call_key,
        "request_id": request_id,
        "session_id": session_id,
        "tool": tool and visible(tool)[:100],
        "digest": digest,
        "rule": rule,
        "done_by": by and visible(by)[:100],
        "surface": surface,
        "reason": reason and visible(reason)[:REASON_CHARS],
        "command": command and shown(command),
        "facts": facts,
        "dedupe_key": _once(event, call_key, digest, reason) if once else None,
    }
    insert_new(conn, audit, row)


def _once(event: Event, call_key: str | None, digest: str | None, reason: str | None) -> str:
    said = hashlib.sha256((reason or "").encode("utf-8", "replace")).hexdigest()
    return f"{event}:{call_key}:{digest}:{said[:16]}"


def refused(conn: sa.Connection, error: CommandDenied) -> None:
    """Tell why an approval was not taken, in a transaction of its own: that of the call came to nothing."""
    if isinstance(error, Unusable):
        note(conn, "refused", reason=str(error), once="call_key" in error.row, **error.row)


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
    query = sa.select(audit).where(audit.c.id > after).order_by(audit.c.id).limit(limit)
    if conversation_id is not None:
        query = query.where(audit.c.conversation_id == conversation_id)
    if events:
        query = query.where(audit.c.event.in_(events))
    if since is not None:
        query = query.where(audit.c.at >= since)
    return [
        Entry(**{name: value for name, value in row.items() if name != "dedupe_key"})
        for row in conn.execute(query).mappings()
    ]
