"""An OTLP collector for tests: takes metrics and spans over HTTP or gRPC and keeps them decoded.

Run as a program it prints what arrives, one line a request: python tests/standins/otlp_sink.py [http|grpc] [port].
"""

from __future__ import annotations

import contextlib
import gzip
import http.server
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.support import until

Answers: TypeAlias = Callable[[Any], Iterator[bytes]]
"""Makes an answer over HTTP, head included, from the class of the response."""


def whole(body: bytes, kind: str = "application/x-protobuf", more: str = "") -> Iterator[bytes]:
    """An answer with the status 200; `more` are further header fields."""
    yield f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode()
    yield body


def html(_: Any) -> Iterator[bytes]:
    """The page of a proxy."""
    return whole(b"<html><body>Sign in</body></html>", "text/html")


def huge(_: Any) -> Iterator[bytes]:
    """64 MiB, all of which arrive."""
    yield b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: %d\r\n\r\n" % (64 << 20)
    yield from [bytes(65536)] * 1024


def bomb(_: Any) -> Iterator[bytes]:
    """32 KiB that are 32 MiB when decoded."""
    return whole(gzip.compress(bytes(32 << 20)), more="Content-Encoding: gzip\r\n")


def drip(_: Any) -> Iterator[bytes]:
    """A body that never ends, byte by byte."""
    yield b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 1000000\r\n\r\n"
    while True:
        yield b"\0"
        time.sleep(0.02)


def dripping_head(_: Any) -> Iterator[bytes]:
    """A head that never ends, byte by byte."""
    yield b"HTTP/1.1 200 OK\r\nX-Slow: "
    while True:
        yield b"a"
        time.sleep(0.02)


def partial(rejected: int, message: str, json: bool = False) -> Answers:
    """Acceptance but for so many spans or data points."""

    def answer(response: Any) -> Iterator[bytes]:
        metrics = response is ExportMetricsServiceResponse
        if json:
            name = "rejectedDataPoints" if metrics else "rejectedSpans"
            text = f'{{"partialSuccess": {{"{name}": "{rejected}", "errorMessage": "{message}"}}}}'
            return whole(text.encode(), "application/json")
        made = response()
        setattr(made.partial_success, "rejected_data_points" if metrics else "rejected_spans", rejected)
        made.partial_success.error_message = message
        return whole(made.SerializeToString())

    return answer


class Received:
    """Received requests, decoded, in order."""

    def __init__(self) -> None:
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.traces: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        """HTTP status of responses; for gRPC any but 200 is UNAVAILABLE."""
        self.hang = threading.Event()
        """While set, requests are not answered."""

    def take(self, request: Any, headers: dict[str, str]) -> None:
        self.headers.append({key.lower(): value for key, value in headers.items()})
        (self.metrics if isinstance(request, ExportMetricsServiceRequest) else self.traces).append(request)

    def obey(self) -> None:
        while self.hang.is_set():
            time.sleep(0.01)

    def points(self) -> Iterator[tuple[Any, Any]]:
        """Every (metric, data point) received."""
        for request in self.metrics:
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        for point in getattr(metric, metric.WhichOneof("data")).data_points:
                            yield metric, point

    def spans(self) -> Iterator[Any]:
        """Every span received."""
        for request in self.traces:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    yield from scope.spans

    def wait_for(self, condition: Callable[[Received], object]) -> None:
        """Raises AssertionError when the condition does not hold in time."""
        until(lambda: condition(self), lambda: f"{len(self.metrics)} exports of metrics, {len(self.traces)} of traces")


class HttpSink(Received):
    """OTLP over HTTP/protobuf on a port of 127.0.0.1."""

    KINDS = {
        "/v1/metrics": (ExportMetricsServiceRequest, ExportMetricsServiceResponse),
        "/v1/traces": (ExportTraceServiceRequest, ExportTraceServiceResponse),
    }

    def __init__(self, port: int = 0) -> None:
        super().__init__()
        self.answer: Answers | None = None
        """Function that yields the bytes of a response, in place of an empty response with `status`."""
        self._connections: list[socket.socket] = []
        sink = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                sink._connections.append(self.connection)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                sink.obey()
                kinds = HttpSink.KINDS.get(self.path)
                status = sink.status if kinds else 404
                answer = b""
                if kinds and status == 200:
                    if self.headers.get("Content-Encoding") == "gzip":
                        body = gzip.decompress(body)
                    sink.take(kinds[0].FromString(body), dict(self.headers))
                    if sink.answer:
                        for piece in sink.answer(kinds[1]):
                            self.wfile.write(piece)
                        return
                    answer = kinds[1]().SerializeToString()
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_arguments: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a client that went away

        self._server = Server(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self.endpoint = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.hang.clear()
        self._server.shutdown()
        self._server.server_close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class GrpcSink(Received):
    """OTLP over gRPC on a port of 127.0.0.1."""

    def __init__(self, port: int = 0) -> None:
        super().__init__()
        import grpc
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc

        sink = self

        class Service(metrics_grpc.MetricsServiceServicer, trace_grpc.TraceServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:
                sink.obey()
                if sink.status != 200:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "set to refuse")
                sink.take(request, dict(context.invocation_metadata()))
                if isinstance(request, ExportMetricsServiceRequest):
                    return ExportMetricsServiceResponse()
                return ExportTraceServiceResponse()

        self._server = grpc.server(ThreadPoolExecutor(4))
        metrics_grpc.add_MetricsServiceServicer_to_server(Service(), self._server)
        trace_grpc.add_TraceServiceServicer_to_server(Service(), self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._server.start()

    def close(self) -> None:
        self.hang.clear()
        self._server.stop(0)


def main() -> None:
    kind, port = (sys.argv + ["http", "0"][len(sys.argv) - 1 :])[1:3]
    sink = {"http": HttpSink, "grpc": GrpcSink}[kind](int(port))
    print(f"OTLP over {kind} at {sink.endpoint}", flush=True)
    seen = 0
    while True:
        time.sleep(0.5)
        now = len(sink.metrics) + len(sink.traces)
        if now != seen:
            print(
                f"{now} requests, {sum(1 for _ in sink.points())} points, {sum(1 for _ in sink.spans())} spans",
                flush=True,
            )
        seen = now


if __name__ == "__main__":
    main()
