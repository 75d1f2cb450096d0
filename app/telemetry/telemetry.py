"""Traces and metrics of one worker: the instruments, and spans made from recorded times."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import Meter
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pydantic_ai.capabilities import Instrumentation
from pydantic_ai.models.instrumented import InstrumentationSettings

from shellback.storage.db import Database
from shellback.telemetry.levels import Gauges
from shellback.telemetry.pipeline import Pipeline

SCOPE: Final = "shellback"
SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class Telemetry:
    """Sends to the OTLP receiver at `endpoint` until `close`; with `content`, words are sent too."""

    def __init__(self, endpoint: str, database: Database, *, executor_id: str, host_id: str, content: bool) -> None:
        self.content = content
        self._pipeline = Pipeline(endpoint, content=content, instance=executor_id, host=host_id)
        # DBOS takes the global one; it also asks for one of logs, which go to standard error here.
        trace.set_tracer_provider(self._pipeline.tracers)
        logging.getLogger("dbos").addFilter(_not_about_logs)
        self._tracer = self._pipeline.tracers.get_tracer(SCOPE)
        meter = self._pipeline.meters.get_meter(SCOPE)
        self.counts = Counts(meter)
        self._gauges = Gauges(meter, database, host_id)

    def capability(self) -> Instrumentation:
        """Spans of runs, model requests and tool calls, by Pydantic AI's own instrumentation."""
        return Instrumentation(
            InstrumentationSettings(
                tracer_provider=self._pipeline.tracers,
                meter_provider=self._pipeline.meters,
                include_content=self.content,
                include_binary_content=False,
                include_model_request_parameters=self.content,
            )
        )

    def close(self) -> None:
        """Send what is left; bounded, whatever the receiver does."""
        self._pipeline.close()

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
        """Make the span that `traceparent` names, under `cause`, from wall-clock seconds of its beginning and end."""
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
    """The context of the running span, or None outside of any."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier.get("traceparent")


def context_from(traceparent: str) -> SpanContext | None:
    """The ids in a `traceparent`, or None where there are none."""
    found = trace.get_current_span(_PROPAGATOR.extract({"traceparent": traceparent}, Context())).get_span_context()
    return found if found.is_valid else None


class Counts:
    """Counters and histograms; docs/observability.md says what each one means."""

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
        self.lost = meter.create_counter("shellback.sessions.lost", "{session}", "Sessions whose end is not known")


def _not_about_logs(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("OTLP is enabled but logger provider")
