from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.execs import end_of
from tests.otlp import Receiver, Span, receiving
from tests.stage import Stage, stage

HANGS_S = 40.0
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "200", "OTEL_METRIC_EXPORT_INTERVAL": "500"}


def above(span: Span, spans: dict[str, Span]) -> list[str]:
    """Names of the spans from this one up to the root."""
    names = [span.name]
    while span.parent:
        assert span.parent in spans, f"{names} hang under a span that was never sent"
        span = spans[span.parent]
        names.append(span.name)
    return names


def one(receiver: Receiver, name: str, **attributes: Any) -> Span:
    wanted = {f"shellback.{key}": value for key, value in attributes.items()}
    found = [span for span in receiver.named(name) if wanted.items() <= span.attributes.items()]
    assert len(found) == 1, f"{name} {attributes}: {found}"
    return found[0]


def test_one_message_is_one_trace_from_the_queue_to_the_end_of_its_process_and_the_turn_that_hears_of_it() -> None:
    told = {"LOG_FORMAT": "json", "LOG_LEVEL": "INFO", "ACCESS_TOKEN": "secret-token"}
    with receiving() as receiver, stage(OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, **SOON, **told) as s:
        first = s.hire()
        held = s.workspace / "held"
        item = s.send(f"$ echo secret-output; until [ -e {held} ]; do sleep 0.05; done; exit 3 &\nsecret-prompt")
        s.approve()
        session = s.session("secret-output")
        s.until("the start is known", lambda: receiver.points("shellback.exec.starts"))
        s.until("the turn is known", lambda: receiver.named("shellback.turn")[1:])
        # The process outlives the worker that has started it; another one records its end.
        first.kill()
        held.touch()
        second = s.hire()
        s.until("the wake is heard", lambda: s.at_rest() and len(s.answers()) == 2)
        second.stop()
        _look_at_spans(receiver, s, item, session.id)
        _look_at_metrics(receiver)
        _look_at_log(s, session.id, session.turn_id)
    for body in receiver.raw:
        assert b"secret" not in body
        assert str(held).encode() not in body


def _look_at_spans(receiver: Receiver, s: Stage, item: str, session_id: str) -> None:
    spans = {span.id: span for span in receiver.spans}
    assert {span.trace for span in receiver.spans if above(span, spans)[-1] == "shellback.queue"} == {
        one(receiver, "shellback.queue", item_type="CHAT").trace
    }
    assert not [span.name for span in receiver.spans if above(span, spans)[-1] != "shellback.queue"]
    message = one(receiver, "shellback.queue", work_item=item)
    assert message.parent == ""
    assert message.resource["service.name"] == "shellback"
    process = one(receiver, "shellback.process", session=session_id)
    asked = one(receiver, "shellback.turn", item_type="APPROVAL")
    tools = ["tool.execute", "execute_tool execute", "invoke_agent shellback", "shellback.turn", "shellback.queue"]
    assert above(process, spans) == ["shellback.process", *tools, "shellback.queue"]
    assert asked.id in {span.id for span in _line(process, spans)}
    wake = one(receiver, "shellback.turn", item_type="EXEC_CALLBACK")
    assert [span.id for span in _line(wake, spans)][2] == process.id
    assert {above(span, spans)[1] for span in receiver.named("chat offline")} == {"invoke_agent shellback"}
    assert process.attributes["process.exit.code"] == 3
    assert process.attributes["shellback.state"] == "exited"
    ended = next(one for one in s.sessions() if one.id == session_id)
    assert process.end == pytest.approx(end_of(ended).ended_at, abs=0.001)
    assert process.start == pytest.approx(ended.started_at, abs=0.001)
    assert process.end <= wake.end
    assert wake.attributes["shellback.outcome"] == "answered"


def _line(span: Span, spans: dict[str, Span]) -> list[Span]:
    return [span, *(_line(spans[span.parent], spans) if span.parent else ())]


def _look_at_metrics(receiver: Receiver) -> None:
    def of(**attributes: Any) -> frozenset[tuple[str, Any]]:
        return frozenset(attributes.items())

    assert receiver.points("shellback.wakes") == {of(item_type="EXEC_CALLBACK"): 1}
    assert receiver.points("shellback.wake.latency") == {of(): 1}
    assert receiver.points("shellback.exec.starts") == {of(background=True): 1}
    assert receiver.points("shellback.exec.ends") == {of(state="exited", ended_by="itself"): 1}
    durations = receiver.points("shellback.turn.duration")
    assert durations[of(item_type="CHAT", outcome="pending_approval")] == 1
    assert durations[of(item_type="EXEC_CALLBACK", outcome="answered")] == 1
    levels = {"shellback.queue.age", "shellback.queue.items", "shellback.slots.free", "shellback.approvals.pending"}
    assert levels | {"shellback.sessions.live"} <= set(receiver.metrics)


def _look_at_log(s: Stage, session_id: str, turn_id: str) -> None:
    lines = [json.loads(line) for line in (s.home / "worker.log").read_text().splitlines() if line[:1] == "{"]
    ids = {"conversation": "c1", "host": s.where.host_id, "executor": s.where.executor_id}
    wake = {"message": "turn ended: answered", "work_item": f"EXEC_CALLBACK:{session_id}", **ids}
    end = {"message": "process ended: exited", "session": session_id, "work_item": turn_id, **ids}
    assert [line for line in lines if wake.items() <= line.items() and line["epoch"] > 0]
    assert [line for line in lines if end.items() <= line.items()]


def test_a_receiver_that_hangs_slows_no_turn_and_no_end_of_the_worker() -> None:
    hangs = {**SOON, "OTEL_EXPORTER_OTLP_TIMEOUT": f"{HANGS_S:g}"}
    with receiving(hangs=True) as receiver, stage(OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, **hangs) as s:
        worker = s.hire()
        assert s.answer(s.send("hello", waiting=True))
        assert receiver.asked.wait(30)
        began = time.monotonic()
        assert "You said: again" in s.answer(s.send("again", waiting=True))
        assert time.monotonic() - began < HANGS_S, "the turn waited for the receiver"
        began = time.monotonic()
        worker.stop()
        assert time.monotonic() - began < HANGS_S, "the end of the worker waited for the receiver"
        assert worker.process.returncode == 0
        log = (s.home / "worker.log").read_text()
        assert "the last telemetry was not accepted within 3 s" in log
        assert "Traceback" not in log
