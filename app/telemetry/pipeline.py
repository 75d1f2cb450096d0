"""The OpenTelemetry SDK with two bounded queues, each emptied by its own thread.

No turn waits for the receiver: data that does not fit its queue is dropped, and so is data that cannot be sent within
`SHUTDOWN_S` at the end of the process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Sampler, SamplingResult
from opentelemetry.trace import Status, get_current_span

from shellback.settings import shown_url

log = logging.getLogger(__name__)

SHUTDOWN_S: Final = 3.0


class Reach:
    """Logs once that the receiver does not accept data, and once that it does again."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._away = False

    def note(self, *, taken: bool) -> None:
        """Note the result of one delivery."""
        if taken == self._away:
            self._away = not taken
            if taken:
                log.info("telemetry is accepted again by %s", self._endpoint)
            else:
                log.warning(
                    "telemetry is not accepted by %s: check that it runs and speaks OTLP over HTTP. Turns continue; "
                    "data that does not fit the queue is dropped",
                    self._endpoint,
                )


class _Spans(OTLPSpanExporter):
    def __init__(self, url: str, reach: Reach, *, content: bool) -> None:
        super().__init__(url)
        self._reach = reach
        self._content = content

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans if self._content else [without_words(span) for span in spans])
        self._reach.note(taken=result is SpanExportResult.SUCCESS)
        return result


class _Metrics(OTLPMetricExporter):
    def __init__(self, url: str, reach: Reach) -> None:
        super().__init__(url)
        self._reach = reach

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        result = super().export(metrics_data, timeout_millis, **kwargs)  # pyright: ignore[reportUnknownMemberType]
        self._reach.note(taken=result is MetricExportResult.SUCCESS)
        return result


class ChosenIds(RandomIdGenerator):
    """Random ids, except for spans whose ids are given."""

    def __init__(self) -> None:
        self._chosen: ContextVar[tuple[int, int] | None] = ContextVar("chosen", default=None)

    @contextmanager
    def choosing(self, trace_id: int, span_id: int) -> Generator[None]:
        """Give these ids to the one span that begins inside the block."""
        token = self._chosen.set((trace_id, span_id))
        try:
            yield
        finally:
            self._chosen.reset(token)

    def generate_trace_id(self) -> int:
        chosen = self._chosen.get()
        return super().generate_trace_id() if chosen is None else chosen[0]

    def generate_span_id(self) -> int:
        chosen = self._chosen.get()
        return super().generate_span_id() if chosen is None else chosen[1]


class ByTrace(Sampler):
    """Decides about a trace from outside as about a root, because the sender has no sampler.

    A sampler by ratio uses only the trace's id, so every process decides alike.
    """

    def __init__(self, inner: Sampler) -> None:
        self._inner = inner

    def should_sample(self, parent_context: Context | None, *args: Any, **kwargs: Any) -> SamplingResult:
        remote = get_current_span(parent_context).get_span_context().is_remote
        return self._inner.should_sample(Context() if remote else parent_context, *args, **kwargs)

    def get_description(self) -> str:
        return f"ByTrace({self._inner.get_description()})"


class Pipeline:
    """Providers of tracers and meters that send to `endpoint`, configured by the OTEL_* variables."""

    def __init__(self, endpoint: str, *, content: bool, instance: str, host: str) -> None:
        # The exporters log every failed delivery; `Reach` logs once.
        quiet = logging.getLogger("opentelemetry")
        if not quiet.isEnabledFor(logging.DEBUG):
            quiet.setLevel(logging.CRITICAL)
        base = endpoint.rstrip("/")
        reach = Reach(shown_url(base))
        about = Resource.create({"service.instance.id": instance, "host.id": host})
        if str(about.attributes.get("service.name", "unknown_service")).startswith("unknown_service"):
            about = about.merge(Resource({"service.name": "shellback"}))
        self.ids = ChosenIds()
        self.tracers = TracerProvider(resource=about, id_generator=self.ids, shutdown_on_exit=False)
        self.tracers.sampler = ByTrace(self.tracers.sampler)
        self.tracers.add_span_processor(BatchSpanProcessor(_Spans(f"{base}/v1/traces", reach, content=content)))
        reader = PeriodicExportingMetricReader(_Metrics(f"{base}/v1/metrics", reach))
        self.meters = MeterProvider([reader], resource=about, shutdown_on_exit=False)

    def close(self) -> None:
        """Send the queued data, and return within `SHUTDOWN_S` whether or not it was accepted."""
        ends = [
            threading.Thread(target=provider.shutdown, name="telemetry-end", daemon=True)
            for provider in (self.tracers, self.meters)
        ]
        for end in ends:
            end.start()
        late = False
        for end in ends:
            end.join(SHUTDOWN_S / len(ends))
            late = late or end.is_alive()
        if late:
            log.warning("the last telemetry was not accepted within %.0f s and is dropped", SHUTDOWN_S)


WORDS: Final = frozenset(
    {
        "exception.message",
        "exception.stacktrace",
        "final_result",
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.system_instructions",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
        "gen_ai.tool.definitions",
        "logfire.json_schema",
        "metadata",
        "model_request_parameters",
        "pydantic_ai.all_messages",
        "tool_arguments",
        "tool_response",
    }
)
"""Attributes that are left out: texts, and repetitions of the agent's definition."""


def without_words(span: ReadableSpan) -> ReadableSpan:
    """The span without prompts, answers, arguments, output and error messages; the type of an error stays.

    The instrumentation is configured to omit them. This is the last check before sending, because another version of a
    library, or an agent's own span, may include them.
    """
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes={name: value for name, value in (span.attributes or {}).items() if name not in WORDS},
        events=[
            Event(
                event.name,
                {name: value for name, value in (event.attributes or {}).items() if name not in WORDS},
                event.timestamp,
            )
            for event in span.events
        ],
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )
