"""What the database says of backlog, sessions and approvals, for the gauges: one bounded read per `FRESH_S`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from sqlalchemy.exc import SQLAlchemyError

from shellback.storage.db import Database
from shellback.storage.errors import StorageError
from shellback.storage.session_rows import LIVE
from shellback.storage.tables import approvals, sessions, turns
from shellback.work.queue.items import Priority

log = logging.getLogger(__name__)

FRESH_S: Final = 10.0
ROWS: Final = 10_000
"""Rows that one read looks at, per question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Ages in seconds; `queue_age_s` by priority, of the oldest item whose turn has not begun."""

    queue_age_s: dict[str, float] = field(default_factory=dict[str, float])
    sessions_live: int = 0
    approvals_pending: int = 0
    approval_age_s: float = 0.0


def read_levels(conn: sa.Connection, host_id: str) -> Levels:
    """The levels now: items and approvals of the whole database, sessions of this host."""
    now = time.time()
    waiting = (
        sa.select(turns.c.priority, turns.c.created_at)
        .where(turns.c.ended_at.is_(None), turns.c.started_at.is_(None))
        .limit(ROWS)
        .subquery()
    )
    oldest = conn.execute(
        sa.select(waiting.c.priority, sa.func.min(waiting.c.created_at)).group_by(waiting.c.priority)
    ).all()
    live = (
        sa.select(sessions.c.id).where(sessions.c.state.in_(LIVE), sessions.c.host_id == host_id).limit(ROWS).subquery()
    )
    asked = sa.select(approvals.c.created_at).where(approvals.c.state == "pending").limit(ROWS).subquery()
    pending, since = conn.execute(sa.select(sa.func.count(), sa.func.min(asked.c.created_at)).select_from(asked)).one()
    return Levels(
        queue_age_s={priority.name.lower(): 0.0 for priority in Priority}
        | {_name(priority): max(0.0, now - created) for priority, created in oldest},
        sessions_live=conn.execute(sa.select(sa.func.count()).select_from(live)).scalar_one(),
        approvals_pending=pending,
        approval_age_s=0.0 if since is None else max(0.0, now - since),
    )


def _name(priority: int) -> str:
    return Priority(priority).name.lower() if priority in set(Priority) else str(priority)


_Read = Callable[[Levels], Iterable[Observation]]
_Observe = Callable[[CallbackOptions], Iterable[Observation]]


def _queue_ages(levels: Levels) -> Iterable[Observation]:
    return [Observation(age, {"priority": name}) for name, age in levels.queue_age_s.items()]


def _live(levels: Levels) -> Iterable[Observation]:
    return [Observation(levels.sessions_live)]


def _pending(levels: Levels) -> Iterable[Observation]:
    return [Observation(levels.approvals_pending)]


def _approval_age(levels: Levels) -> Iterable[Observation]:
    return [Observation(levels.approval_age_s)]


class Gauges:
    """Gauges that are read in the exporter's thread, never in a turn's."""

    def __init__(self, meter: Meter, database: Database, host_id: str) -> None:
        self._db = database
        self._host_id = host_id
        self._reading = threading.Lock()
        self._levels: Levels | None = None
        self._read_at = 0.0
        for name, unit, what, read in (
            ("shellback.queue.age", "s", "Age of the oldest waiting work item", _queue_ages),
            ("shellback.sessions.live", "{session}", "Sessions whose process may be running", _live),
            ("shellback.approvals.pending", "{approval}", "Calls that wait for a decision", _pending),
            ("shellback.approvals.age", "s", "Age of the oldest call that waits for a decision", _approval_age),
        ):
            meter.create_observable_gauge(name, [self._observing(read)], unit=unit, description=what)

    def _observing(self, read: _Read) -> _Observe:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            levels = self._now()
            return () if levels is None else read(levels)

        return observe

    def _now(self) -> Levels | None:
        with self._reading:
            if self._levels is None or time.monotonic() - self._read_at > FRESH_S:
                self._read_at = time.monotonic()
                try:
                    self._levels = self._db.read_now(read_levels, self._host_id)
                except (StorageError, RuntimeError, SQLAlchemyError) as error:
                    log.debug("levels cannot be read: %s", error)
                    self._levels = None
            return self._levels
