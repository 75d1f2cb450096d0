"""Traces and metrics of one worker: the instruments, spans made from recorded times, gauges of the database."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import sqlalchemy as sa
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pydantic_ai.capabilities import Instrumentation
from pydantic_ai.models.instrumented import InstrumentationSettings
from sqlalchemy.exc import SQLAlchemyError

from shellback.exec.core.model import Session, SessionState
from shellback.exec.core.ports import SessionWatch
from shellback.storage.db import Database
from shellback.storage.errors import StorageError
from shellback.storage.rows import literal, now
from shellback.storage.session_rows import LIVE
from shellback.storage.tables import approvals, conversations, mailbox, sessions, turns
from shellback.telemetry.pipeline import Pipeline
from shellback.work.queue.items import BY_A_PERSON, ItemType, Priority, WorkItem
from shellback.work.queue.mailbox import NOWHERE, waking
from shellback.work.queue.tracing import cause_of, process_context
from shellback.work.turn.watching import TurnWatch

log = logging.getLogger(__name__)

SCOPE: Final = "shellback"
SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
FRESH_S: Final = 10.0
"""The gauges use one read of the database for this time."""
ROWS: Final = 10_000
"""The most rows that one query of a read counts."""
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class Telemetry:
    """Sends to the OTLP receiver at `endpoint` until `close`; with `content`, texts too."""

    def __init__(
        self, endpoint: str, database: Database, *, executor_id: str, host_id: str, slots: int, content: bool
    ) -> None:
        self.content = content
        self._pipeline = Pipeline(endpoint, content=content, instance=executor_id, host=host_id)
        self.close = self._pipeline.close
        # DBOS uses the global provider. It also warns that there is none for logs, which go to standard error.
        trace.set_tracer_provider(self._pipeline.tracers)
        logging.getLogger("dbos").addFilter(_not_about_logs)
        self._tracer = self._pipeline.tracers.get_tracer(SCOPE)
        meter = self._pipeline.meters.get_meter(SCOPE)
        self.counts = Counts(meter)
        read = partial(read_levels, host_id=host_id, executor_id=executor_id, slots=slots)
        self._gauges = Gauges(meter, partial(database.read_now, read))

    def capability(self) -> Instrumentation:
        """Pydantic AI's instrumentation: spans of runs, model requests and tool calls."""
        return Instrumentation(
            InstrumentationSettings(
                tracer_provider=self._pipeline.tracers,
                meter_provider=self._pipeline.meters,
                include_content=self.content,
                include_binary_content=False,
                include_model_request_parameters=self.content,
            )
        )

    def past(
        self,
        name: str,
        traceparent: str,
        times: tuple[float, float],
        *,
        cause: str | None,
        attributes: Mapping[str, str | int | float | bool | None],
        kind: SpanKind = SpanKind.INTERNAL,
        error: bool = False,
    ) -> None:
        """Make the span with the ids of `traceparent`, below `cause`; `times` are wall-clock seconds."""
        own = context_from(traceparent)
        if own is None:
            return
        began, ended = times
        with self._pipeline.ids.choosing(own.trace_id, own.span_id):
            span = self._tracer.start_span(
                name,
                context=_PROPAGATOR.extract({"traceparent": cause} if cause else {}, Context()),
                kind=kind,
                attributes={key: value for key, value in attributes.items() if value is not None},
                start_time=int(began * 1e9),
            )
        if error:
            span.set_status(Status(StatusCode.ERROR))
        span.end(int(max(began, ended) * 1e9))


def current_traceparent() -> str | None:
    """The context of the current span, or None."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier.get("traceparent")


def context_from(traceparent: str) -> SpanContext | None:
    """The ids in a `traceparent`, or None if it has none."""
    found = trace.get_current_span(_PROPAGATOR.extract({"traceparent": traceparent}, Context())).get_span_context()
    return found if found.is_valid else None


class Counts:
    """Counters and histograms; docs/observability.md explains each."""

    def __init__(self, meter: Meter) -> None:
        self.wakes = meter.create_counter("shellback.wakes", "{turn}", "Turns begun without a person")
        self.retries = meter.create_counter("shellback.turn.retries", "{turn}", "Turns that had to be taken up again")
        self.turn_duration = meter.create_histogram(
            "shellback.turn.duration", "s", "One execution of a turn", explicit_bucket_boundaries_advisory=SECONDS
        )
        self.wake_latency = meter.create_histogram(
            "shellback.wake.latency",
            "s",
            "From the end of a process to the turn that hears of it",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self.starts = meter.create_counter("shellback.exec.starts", "{session}", "Processes started")
        self.ends = meter.create_counter("shellback.exec.ends", "{session}", "Ends of sessions recorded")
        self.secrets = meter.create_counter("shellback.secrets", "{secret}", "Secrets found in output that was read")
        self.lost = meter.create_counter("shellback.sessions.lost", "{session}", "Sessions whose end is not known")


def _not_about_logs(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("OTLP is enabled but logger provider")


class WatchedSessions(SessionWatch):
    """Makes the span of a process in the worker that records its end."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._counts = telemetry.counts

    def context(self) -> str | None:
        return current_traceparent()

    def started(self, session: Session) -> None:
        self._counts.starts.add(1, {"background": session.background})

    def ended(self, session: Session) -> None:
        end = session.end
        if end is None:
            return
        self._counts.ends.add(1, {"state": end.state.value, "ended_by": end.ended_by.value})
        lost = end.state is SessionState.LOST
        if lost and end.evidence is not None:
            self._counts.lost.add(1, {"reason": end.evidence.value})
        if session.traceparent is None:
            return
        # A short foreground command is never recorded as running.
        began = session.started_at or end.began_at or session.created_at
        self._telemetry.past(
            "shellback.process",
            process_context(session.id, session.traceparent),
            (began, end.ended_at),
            cause=session.traceparent,
            attributes={
                "shellback.session": session.id,
                "shellback.conversation": session.conversation_id,
                "shellback.state": end.state.value,
                "shellback.ended_by": end.ended_by.value,
                "shellback.signal": end.signal,
                "shellback.evidence": end.evidence.value if end.evidence else None,
                "shellback.background": session.background,
                "process.exit.code": end.exit_code,
                "process.pid": session.pid,
                "process.command_line": session.command if self._telemetry.content else None,
            },
            error=lost or end.state is SessionState.START_FAILED,
        )


class WatchedTurns(TurnWatch):
    """Adds the wait in the queue, the ids and the counts to DBOS's span of a turn."""

    def __init__(self, telemetry: Telemetry, database: Database) -> None:
        self._telemetry = telemetry
        self._counts = telemetry.counts
        self._db = database

    async def began(self, item: WorkItem, over: str | None = None) -> None:
        span = trace.get_current_span()
        span.set_attributes(_subject(item))
        if over is not None:
            span.set_attribute("shellback.outcome", over)
        try:
            turn, cause, process_ended_at = await self._db.read(_recorded, item)
        except (StorageError, SQLAlchemyError) as error:
            log.debug("the queueing time of a work item is not traced: %s", error)
            return
        if turn.executions > 1:
            self._counts.retries.add(1, {"reason": "recovered"})
            return
        if over is None:
            self._count(item, turn.started_at, process_ended_at)
        if turn.traceparent is not None:
            self._telemetry.past(
                "shellback.queue",
                turn.traceparent,
                (turn.created_at, turn.started_at),
                cause=cause,
                kind=SpanKind.CONSUMER,
                attributes={**_subject(item), "shellback.priority": int(item.priority)},
            )

    def _count(self, item: WorkItem, began_at: float, process_ended_at: float | None) -> None:
        if item.type not in BY_A_PERSON:
            self._counts.wakes.add(1, {"item_type": item.type.value})
        if process_ended_at is not None:
            self._counts.wake_latency.record(max(0.0, began_at - process_ended_at))

    def ended(self, item: WorkItem, outcome: str, seconds: float) -> None:
        trace.get_current_span().set_attribute("shellback.outcome", outcome)
        self._counts.turn_duration.record(seconds, {"item_type": item.type.value, "outcome": outcome})

    def failed(self, came: str) -> None:
        self._counts.retries.add(1, {"reason": came})


def _subject(item: WorkItem) -> dict[str, str]:
    return {
        "shellback.conversation": item.conversation_id,
        "shellback.work_item": item.id,
        "shellback.item_type": item.type.value,
    }


def _recorded(conn: sa.Connection, item: WorkItem) -> tuple[sa.Row[Any], str | None, float | None]:
    turn = conn.execute(sa.select(turns).where(turns.c.id == item.id)).one()
    process_ended_at = None
    if item.type is ItemType.EXEC_CALLBACK:
        query = sa.select(sessions.c.ended_at).where(sessions.c.id == item.id.partition(":")[2])
        process_ended_at = conn.execute(query).scalar_one_or_none()
    return turn, cause_of(conn, item), process_ended_at


SLOT: Final = "slot"
HOST: Final = "host"
"""What an item waits for: a slot of the workers of its host, or a host, without which it is on no queue."""
ByWait = dict[tuple[str, str], float]
"""A number for each priority and what its items wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Ages in seconds. `queue_items` and `queue_age_s`: how many items wait, and the oldest of them."""

    queue_items: ByWait = field(default_factory=dict[tuple[str, str], float])
    queue_age_s: ByWait = field(default_factory=dict[tuple[str, str], float])
    slots_free: int = 0
    sessions_live: int = 0
    approvals_pending: int = 0
    approval_age_s: float = 0.0


def read_levels(conn: sa.Connection, host_id: str, executor_id: str, slots: int) -> Levels:
    """The levels now: items and approvals of the whole database, sessions of this host, free slots of this worker."""
    at = now(conn)
    queued = conn.execute(_QUEUED).all()
    mine = turns.c.ended_at.is_(None), turns.c.started_at.is_not(None), turns.c.executor_id == executor_id
    running = conn.execute(sa.select(sa.func.count()).select_from(turns).where(*mine)).scalar_one()
    live = (
        sa.select(sessions.c.id).where(sessions.c.state.in_(LIVE), sessions.c.host_id == host_id).limit(ROWS).subquery()
    )
    asked = sa.select(approvals.c.created_at).where(approvals.c.state == "pending").limit(ROWS).subquery()
    pending, since = conn.execute(sa.select(sa.func.count(), sa.func.min(asked.c.created_at)).select_from(asked)).one()
    return Levels(
        queue_items=_by_wait((priority, what, items) for priority, what, _, items in queued),
        queue_age_s=_by_wait((priority, what, max(0.0, at - came)) for priority, what, came, _ in queued),
        slots_free=max(0, slots - running),
        sessions_live=conn.execute(sa.select(sa.func.count()).select_from(live)).scalar_one(),
        approvals_pending=pending,
        approval_age_s=0.0 if since is None else max(0.0, at - since),
    )


def _by_wait(found: Iterable[tuple[int, str, float]]) -> ByWait:
    named = {priority.value: priority.name.lower() for priority in Priority}
    none = dict.fromkeys(((name, what) for name in named.values() for what in (SLOT, HOST)), 0.0)
    return none | {(named.get(value, str(value)), what): of for value, what, of in found}


def _queued() -> sa.Select[int, str, float, int]:
    """How many items of each priority wait for what, and when the oldest came.

    The unread rows of a conversation that waits for a host are one item, as urgent as the most urgent of them: its
    placing enqueues that.
    """
    item = (
        sa.select(turns.c.priority, turns.c.created_at)
        .where(turns.c.ended_at.is_(None), turns.c.started_at.is_(None))
        .limit(ROWS)
        .subquery()
    )
    mail = (
        sa.select(mailbox.c.conversation_id, mailbox.c.priority, mailbox.c.created_at)
        .join(conversations, conversations.c.id == mailbox.c.conversation_id)
        .where(conversations.c.host_id == literal(NOWHERE), waking())
        .limit(ROWS)
        .subquery()
    )
    first = sa.func.min(mail.c.priority), sa.func.min(mail.c.created_at)
    waiting = sa.union_all(
        sa.select(item.c.priority, item.c.created_at, literal(SLOT).label("waits_for")),
        sa.select(*first, literal(HOST)).group_by(mail.c.conversation_id),
    ).subquery()
    its = waiting.c
    counted = sa.select(its.priority, its.waits_for, sa.func.min(its.created_at), sa.func.count())
    return counted.group_by(its.priority, its.waits_for)


_QUEUED: Final = _queued()
_GAUGES: Final = (
    ("shellback.queue.items", "{item}", "Work items that wait for a turn, or for a host", "queue_items"),
    ("shellback.slots.free", "{slot}", "Turns that this worker could run in addition", "slots_free"),
    ("shellback.queue.age", "s", "Age of the oldest waiting work item", "queue_age_s"),
    ("shellback.sessions.live", "{session}", "Sessions whose process may be running", "sessions_live"),
    ("shellback.approvals.pending", "{approval}", "Calls that wait for a decision", "approvals_pending"),
    ("shellback.approvals.age", "s", "Age of the oldest call that waits for a decision", "approval_age_s"),
)


class Gauges:
    """Gauges, read in the exporter's thread."""

    def __init__(self, meter: Meter, read: Callable[[], Levels]) -> None:
        self._read = read
        self._reading = threading.Lock()
        self._levels: Levels | None = None
        self._read_at = 0.0
        for name, unit, what, of in _GAUGES:
            meter.create_observable_gauge(name, [partial(self._observed, of)], unit=unit, description=what)

    def _observed(self, of: str, _: CallbackOptions) -> Iterable[Observation]:
        levels = self._now()
        found: ByWait | float = {} if levels is None else getattr(levels, of)
        if isinstance(found, dict):
            return [Observation(of, {"priority": name, "waits_for": what}) for (name, what), of in found.items()]
        return [Observation(found)]

    def _now(self) -> Levels | None:
        with self._reading:
            if self._levels is None or time.monotonic() - self._read_at > FRESH_S:
                self._read_at = time.monotonic()
                try:
                    self._levels = self._read()
                except (StorageError, RuntimeError, SQLAlchemyError) as error:
                    log.debug("levels cannot be read: %s", error)
                    self._levels = None
            return self._levels
