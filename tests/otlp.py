"""Web servers on loopback, and a receiver of OTLP with what it was sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True, kw_only=True)
class Span:
    """One span, its ids in hex, its times in seconds."""

    name: str
    trace: str
    id: str
    parent: str
    start: float
    end: float
    error: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass
class Receiver:
    """Everything that came, undecoded for a search of its bytes, and decoded."""

    url: str = ""
    raw: list[bytes] = field(default_factory=list[bytes])
    metrics: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    spans: list[Span] = field(default_factory=list[Span])
    asked: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def take(self, path: str, body: bytes) -> None:
        self.raw.append(body)
        if path.endswith("/v1/traces"):
            self._take_spans(ExportTraceServiceRequest.FromString(body))
        else:
            self._take_metrics(ExportMetricsServiceRequest.FromString(body))

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def points(self, name: str) -> dict[frozenset[tuple[str, Any]], float]:
        """The last value of a metric by its attributes; of a histogram, how many were recorded."""
        found: dict[frozenset[tuple[str, Any]], float] = {}
        for point in self.metrics.get(name, ()):
            key = frozenset(_values(point.attributes).items())
            found[key] = point.count if hasattr(point, "count") else (point.as_int or point.as_double)
        return found

    def _take_spans(self, request: Any) -> None:
        for group in request.resource_spans:
            resource = _values(group.resource.attributes)
            self.spans += [
                Span(
                    name=span.name,
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    start=span.start_time_unix_nano / 1e9,
                    end=span.end_time_unix_nano / 1e9,
                    error=span.status.code == 2,
                    attributes=_values(span.attributes),
                    resource=resource,
                )
                for scope in group.scope_spans
                for span in scope.spans
            ]

    def _take_metrics(self, request: Any) -> None:
        for group in request.resource_metrics:
            for scope in group.scope_metrics:
                for metric in scope.metrics:
                    data = getattr(metric, metric.WhichOneof("data"))
                    self.metrics.setdefault(metric.name, []).extend(data.data_points)


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextmanager
def serving(server: ThreadingHTTPServer) -> Generator[str]:
    """The address of a server that serves meanwhile."""
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler, bytes], int | None]) -> Generator[str]:
    """The address of a server that answers what is posted there with these statuses, or does not answer at all."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status = answer(self, self.rfile.read(int(self.headers["Content-Length"])))
            if status is None:
                return
            with suppress(OSError):
                self.send_response(status)
                self.send_header("Location", "file:///etc/passwd")
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield url


@contextmanager
def receiving(*, hangs: bool = False) -> Generator[Receiver]:
    """A receiver; one that `hangs` takes a request and does not answer before the end."""
    found = Receiver()

    def answer(asked: BaseHTTPRequestHandler, body: bytes) -> int | None:
        found.asked.set()
        if hangs:
            found.go_on.wait(120)
            return None
        found.take(asked.path, gzip.decompress(body) if asked.headers["Content-Encoding"] == "gzip" else body)
        return 200

    with answering(answer) as found.url:
        try:
            yield found
        finally:
            found.go_on.set()
