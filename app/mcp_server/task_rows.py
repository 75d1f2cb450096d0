"""Tasks of MCP clients as rows. Every function runs in the caller's transaction."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NamedTuple

import sqlalchemy as sa

from shellback.storage.rows import change_some, insert_new
from shellback.storage.session_rows import LIVE
from shellback.storage.tables import approvals, sessions, tasks
from shellback.work.approvals.approvals import Request

State = Literal["working", "completed", "failed", "cancelled"]
WORKING: Final = "working"
MOST: Final = 256
"""Tasks that one process carries out at once. Further calls are answered as without tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A task; `turn_id` is the connection that carries it out, `result` what the call would have answered."""

    id: str
    conversation_id: str
    turn_id: str
    client: str
    tool_call_id: str
    tool: str
    args: dict[str, Any]
    state: State
    result: dict[str, Any] | None
    created_at: float
    updated_at: float


class Around(NamedTuple):
    """What belongs to a task: the request that waits for a person, and whether its session lives."""

    request: Request | None
    lives: bool


def made(conn: sa.Connection, row: Row) -> Row:
    """Store a task unless it is there; returns it as it is then."""
    insert_new(conn, tasks, asdict(row))
    return _read(conn, tasks.c.id == row.id)[0]


def get(conn: sa.Connection, conversation_id: str, task_id: str) -> Row | None:
    """The task, if it is one of this conversation."""
    return next(iter(_read(conn, tasks.c.id == task_id, tasks.c.conversation_id == conversation_id)), None)


def working(conn: sa.Connection, conversation_id: str) -> list[Row]:
    """The tasks of a conversation that have not ended, oldest first, at most `MOST`."""
    return _read(conn, tasks.c.conversation_id == conversation_id, tasks.c.state == WORKING)


def unfinished(conn: sa.Connection, conversation_id: str) -> list[tuple[str, str]]:
    """All tasks of a conversation that have not ended, by their ids and those of their calls."""
    query = sa.select(tasks.c.id, tasks.c.tool_call_id).where(
        tasks.c.conversation_id == conversation_id, tasks.c.state == WORKING
    )
    return [(task_id, tool_call_id) for task_id, tool_call_id in conn.execute(query)]


def moved(conn: sa.Connection, task_id: str, turn_id: str, tool_call_id: str) -> None:
    """Note which connection carries a task out, and under which id of a call."""
    change_some(
        conn, tasks, tasks.c.id == task_id, tasks.c.state == WORKING, turn_id=turn_id, tool_call_id=tool_call_id
    )


def ended(conn: sa.Connection, task_id: str, state: State, result: dict[str, Any] | None) -> bool:
    """End a task with its result, unless it has ended: the first end counts. Returns whether this one does."""
    return bool(
        change_some(
            conn,
            tasks,
            tasks.c.id == task_id,
            tasks.c.state == WORKING,
            state=state,
            result=result,
            updated_at=time.time(),
        )
    )


def around(conn: sa.Connection, call_key: str, session_id: str) -> Around:
    """The pending request of a call, and whether the session that it started lives."""
    pending = sa.select(approvals).where(approvals.c.call_key == call_key, approvals.c.state == "pending")
    lives = sa.exists().where(sessions.c.id == session_id, sessions.c.state.in_(LIVE))
    row = conn.execute(pending).mappings().one_or_none()
    return Around(None if row is None else Request(**row), bool(conn.execute(sa.select(lives)).scalar_one()))


def _read(conn: sa.Connection, *which: sa.ColumnElement[bool]) -> list[Row]:
    query = sa.select(tasks).where(*which).order_by(tasks.c.created_at).limit(MOST)
    return [Row(**row) for row in conn.execute(query).mappings()]
