from __future__ import annotations

import logging
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any, cast

import pytest
import sqlalchemy as sa
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from shellback.exec.core.model import Evidence, SessionEnd, SessionState
from shellback.storage.db import Database
from shellback.storage.tables import approvals, mailbox, turns
from shellback.telemetry.pipeline import ByTrace, Pipeline, Reach, without_words
from shellback.telemetry.telemetry import Counts, Gauges, Telemetry, WatchedSessions, WatchedTurns, read_levels
from shellback.work.approvals import sending
from shellback.work.hosts.placing import Wanted
from shellback.work.queue.items import ItemType, Priority, chat_item, epoch_item
from shellback.work.queue.queues import note_turn
from shellback.work.queue.tracing import cause_of, context_of
from tests.items import NotedEnqueuer
from tests.otlp import receiving
from tests.sessions import a_session

CALLER = SpanContext(2**127 + 2**63 - 1, 7, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def test_without_an_endpoint_neither_the_wiring_nor_the_command_line_loads_the_sdk() -> None:
    program = (
        "import sys, shellback.wiring.wiring, shellback.telemetry.watches, shellback.cli.main\n"
        "import shellback.work.queue.queues, shellback.work.turn.turn\n"
        "loaded = [name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))]\n"
        "assert not loaded, loaded\n"
        "assert 'shellback.telemetry.telemetry' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_levels_tell_the_oldest_of_each_kind_and_nothing_of_what_is_over(database: Database) -> None:
    def fill(conn: sa.Connection) -> None:
        now = time.time()
        for age, priority, over in (
            (50.0, Priority.HIGH, False),
            (9.0, Priority.HIGH, False),
            (99.0, Priority.LOW, True),
        ):
            item = chat_item("c1", priority=priority, waiting=False)
            note_turn(conn, item)
            began = {"started_at": now, "ended_at": now} if over else {}
            conn.execute(sa.update(turns).where(turns.c.id == item.id).values(created_at=now - age, **began))
        for age, state in ((20.0, "pending"), (5.0, "pending"), (90.0, "denied")):
            texts = dict.fromkeys(("id", "call_key", "tool_call_id", "digest"), f"{age:g}")
            request = {**texts, "conversation_id": "c1", "turn_id": "t", "tool_name": "execute"}
            times = {"created_at": now - age, "expires_at": now}
            conn.execute(sa.insert(approvals).values(**request, **times, args={}, display={}, state=state))

    database.write_now(fill)
    levels = database.read_now(read_levels, "h1", "w", 48)
    assert levels.queue_items.pop(("high", "slot")) == 2
    assert set(levels.queue_items.values()) == {0.0}
    assert levels.queue_age_s.pop(("high", "slot")) == pytest.approx(50, abs=5)
    assert set(levels.queue_age_s.values()) == {0.0}
    assert levels.approvals_pending == 2
    assert levels.approval_age_s == pytest.approx(20, abs=5)
    assert levels.sessions_live == 0


def test_a_conversation_that_waits_for_a_host_counts_as_one_item_which_waits_for_that(database: Database) -> None:
    queue, wanted = NotedEnqueuer(), Wanted(here="h1", needs=("gpu",))

    def send(name: str, ago: float, priority: Priority = Priority.NORMAL, place: Wanted | None = wanted) -> None:
        def act(conn: sa.Connection) -> None:
            sent = sending.send(conn, queue, name, "hello", host_id="h1", priority=priority, place=place)
            for table, its in ((mailbox, mailbox.c.dedupe_key), (turns, turns.c.id)):
                conn.execute(sa.update(table).where(its == sent.item_id).values(created_at=time.time() - ago))

        database.write_now(act)

    send("here", 20.0, place=None)
    for name, ago, priority in (("c1", 90.0, Priority.NORMAL), ("c1", 5.0, Priority.HIGH), ("c2", 40.0, Priority.HIGH)):
        send(name, ago, priority)
    send("read", 300.0)
    database.write_now(
        lambda conn: conn.execute(
            sa.update(mailbox).where(mailbox.c.conversation_id == "read").values(state="heard", heard_at=time.time())
        )
    )
    assert [item.conversation_id for item in queue.items] == ["here"], "nothing of the others is on a queue"

    told = Told()
    Gauges(told.meter, lambda: database.read_now(read_levels, "h1", "w", 48))
    items, ages = told.counted("shellback.queue.items"), told.counted("shellback.queue.age")
    assert (sum(items.values()), max(ages.values())) == (3, pytest.approx(90, abs=5))
    assert {at: items.pop(at) for at in ("normal,slot", "high,host")} == {"normal,slot": 1, "high,host": 2}
    assert ages.pop("normal,slot") == pytest.approx(20, abs=5)
    assert ages.pop("high,host") == pytest.approx(90, abs=5)
    named = {f"{priority.name.lower()},{what}" for priority in Priority for what in ("slot", "host")}
    assert {*items, *ages} == named - {"normal,slot", "high,host"}
    assert {*items.values(), *ages.values()} == {0.0}


def test_free_slots_are_those_that_no_turn_of_this_worker_has(database: Database) -> None:
    def begin(conn: sa.Connection) -> None:
        for number, executor in enumerate(("w", "w", "other", None)):
            item = chat_item(f"c{number}", priority=Priority.NORMAL, waiting=False)
            note_turn(conn, item)
            begun = {"executor_id": executor, "started_at": time.time() if executor else None}
            conn.execute(sa.update(turns).where(turns.c.id == item.id).values(begun))

    database.write_now(begin)
    assert database.read_now(read_levels, "h1", "w", 48).slots_free == 46
    assert database.read_now(read_levels, "h1", "w", 1).slots_free == 0


def test_an_item_continues_the_trace_of_the_turn_it_follows_from_and_a_message_begins_one(database: Database) -> None:
    def look(conn: sa.Connection) -> None:
        message = chat_item("a:b", priority=Priority.NORMAL, waiting=True)
        context = context_of(conn, message)
        note_turn(conn, message, context)
        conn.execute(sa.update(turns).where(turns.c.id == message.id).values(epoch=4))
        retry = epoch_item(ItemType.RETRY, "a:b", 4, priority=Priority.NORMAL, suffix=":77")
        assert cause_of(conn, message) is None
        assert cause_of(conn, retry) == context
        assert context_of(conn, retry).split("-")[1] == context.split("-")[1]
        assert context_of(conn, retry).split("-")[2] != context.split("-")[2]
        other = chat_item("a:b", priority=Priority.NORMAL, waiting=True)
        assert context_of(conn, other).split("-")[1] != context.split("-")[1]
        assert context_of(conn, message) == context, "a transaction that is run again sends the same"

    database.write_now(look)


def test_what_comes_in_from_outside_is_sampled_as_its_root_would_be() -> None:
    outside = set_span_in_context(NonRecordingSpan(CALLER), Context())
    inside = set_span_in_context(
        NonRecordingSpan(SpanContext(CALLER.trace_id, 8, is_remote=False, trace_flags=CALLER.trace_flags)), Context()
    )
    never = ByTrace(ParentBased(ALWAYS_OFF))
    assert not never.should_sample(outside, CALLER.trace_id, "shellback.turn").decision.is_sampled()
    assert never.should_sample(inside, CALLER.trace_id, "chat").decision.is_sampled()
    half = ByTrace(ParentBased(TraceIdRatioBased(0.5)))
    decisions = {half.should_sample(way, 2**63 - 1, "x").decision for way in (outside, None)}
    assert len(decisions) == 1


def test_words_are_taken_out_and_that_there_was_an_error_is_not() -> None:
    span = ReadableSpan(
        "chat",
        attributes={"gen_ai.input.messages": "secret", "gen_ai.request.model": "offline"},
        events=[Event("exception", {"exception.message": "secret", "exception.type": "ValueError"})],
        status=Status(StatusCode.ERROR, "ValueError: secret"),
    )
    sent = without_words(span)
    assert "secret" not in sent.to_json()
    assert sent.status.status_code is StatusCode.ERROR
    assert sent.events[0].attributes == {"exception.type": "ValueError"}
    assert sent.attributes == {"gen_ai.request.model": "offline"}


def test_a_receiver_that_is_away_is_told_of_once_and_again_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    reach = Reach("http://h:4318")
    with caplog.at_level(logging.INFO, "shellback.telemetry"):
        for taken in (True, False, False, False, True, True):
            reach.note(taken=taken)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_closing_sends_what_is_queued_and_is_bounded_when_nobody_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "another")
    with receiving() as receiver:
        pipeline = Pipeline(receiver.url + "/", content=False, instance="h1.worker", host="h1")
        pipeline.tracers.get_tracer("test").start_span("last").end()
        pipeline.close()
        (span,) = receiver.named("last")
        assert span.resource["service.name"] == "another"
    with receiving(hangs=True) as receiver:
        pipeline = Pipeline(receiver.url, content=False, instance="h1.worker", host="h1")
        for _ in range(10_000):
            pipeline.tracers.get_tracer("test").start_span("last").end()
        began = time.monotonic()
        pipeline.close()
        assert time.monotonic() - began < 6


class Told:
    """What a watch counts and which spans it makes, without a pipeline."""

    content = False

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.meter = MeterProvider([self.reader]).get_meter("test")
        self.counts = Counts(self.meter)
        self.spans: list[dict[str, Any]] = []

    def past(self, name: str, traceparent: str, times: tuple[float, float], **more: Any) -> None:
        self.spans.append({"name": name, "traceparent": traceparent, "times": times, **more})

    def counted(self, name: str) -> dict[str, float]:
        data = self.reader.get_metrics_data()
        assert data is not None
        (resource,) = data.resource_metrics
        (metric,) = [one for one in resource.scope_metrics[0].metrics if one.name == name]
        return {
            ",".join(map(str, (one.attributes or {}).values())): cast("Any", one).value
            for one in metric.data.data_points
        }


def test_a_lost_session_is_counted_by_its_reason_and_its_span_is_an_error_with_the_times_on_record() -> None:
    told = Told()
    end = SessionEnd(state=SessionState.LOST, evidence=Evidence.MACHINE_REBOOTED, ended_at=50.0)
    began_in = f"00-{'ab' * 16}-{'cd' * 8}-01"
    lost = replace(a_session(), state=SessionState.LOST, started_at=20.0, end=end, traceparent=began_in)
    watch = WatchedSessions(cast("Telemetry", told))
    watch.ended(lost)
    watch.ended(replace(lost, traceparent=None))
    assert told.counted("shellback.sessions.lost") == {"machine_rebooted": 2}
    (span,) = told.spans
    assert span["times"] == (20.0, 50.0)
    assert span["error"]
    assert span["cause"] == began_in
    assert span["traceparent"].startswith(f"00-{'ab' * 16}-")
    assert "process.command_line" not in {key for key, value in span["attributes"].items() if value is not None}


@pytest.mark.anyio
async def test_retries_are_counted_by_what_came_of_them_and_a_recovered_turn_waits_only_once(
    database: Database,
) -> None:
    told = Told()
    watch = WatchedTurns(cast("Telemetry", told), database)
    item = chat_item("c1", priority=Priority.HIGH, waiting=False)

    def enqueued(conn: sa.Connection) -> None:
        note_turn(conn, item, context_of(conn, item))
        conn.execute(sa.update(turns).values(executions=1, started_at=time.time()))

    await database.write(enqueued)
    await watch.began(item)
    await database.write(lambda conn: conn.execute(sa.update(turns).values(executions=2)))
    await watch.began(item)
    watch.failed("retried")
    watch.failed("set_aside")
    assert [span["name"] for span in told.spans] == ["shellback.queue"]
    assert told.counted("shellback.turn.retries") == {"recovered": 1, "retried": 1, "set_aside": 1}


@pytest.mark.anyio
async def test_a_turn_whose_row_is_gone_is_not_watched_and_nothing_else(database: Database) -> None:
    told = Told()
    await WatchedTurns(cast("Telemetry", told), database).began(chat_item("c1", priority=Priority.HIGH, waiting=False))
    assert told.spans == []
