"""OTLP push: metrics at an interval and spans in batches, from a thread each.

An OTLP collector that refuses, hangs or disappears costs only the spans beyond a bounded queue, which are counted. The
OpenTelemetry packages are imported only when an endpoint is configured: they take 16 MB (HTTP) to 32 MB (gRPC) of
memory.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from exporter import resource
from exporter.counters import Tally
from exporter.model import Kind, Metric, Sample, Span
from exporter.options import SettingsError
from exporter.otlp import Plan, Signal
from exporter.sampling import Budget, Verdict
from exporter.starts import Starts

SPANS_DROPPED = Metric(
    "accel_exporter.spans.dropped",
    "Spans not delivered: over the budget of spans a second, the queue was full, the OTLP endpoint did not accept "
    "them, they were malformed, or the exporter stopped first.",
    Kind.COUNTER,
    "{span}",
    labels=("reason",),
)
SPANS_EXPORTED = Metric(
    "accel_exporter.spans.exported", "Spans that the OTLP endpoint accepted.", Kind.COUNTER, "{span}"
)
SPANS_UNSAMPLED = Metric(
    "accel_exporter.spans.unsampled", "Spans left out by OTEL_TRACES_SAMPLER.", Kind.COUNTER, "{span}"
)
SPANS_QUEUED = Metric("accel_exporter.spans.queued", "Spans waiting for the next batch.", Kind.GAUGE, "{span}")
EXPORTS = Metric(
    "accel_exporter.otlp.exports", "OTLP requests made, failed ones included.", Kind.COUNTER, labels=("signal",)
)
EXPORTS_FAILED = Metric(
    "accel_exporter.otlp.exports.failed",
    "OTLP requests that the endpoint did not accept, after the retries that the timeout allows.",
    Kind.COUNTER,
    labels=("signal",),
)
PARTIAL = "accel_exporter.trace.partial"
"""Attribute, True on a span that is kept in an unsampled trace: the spans of other hosts are likely missing."""

_CREDENTIALS = re.compile(r"OTEL_PYTHON_EXPORTER_OTLP_HTTP_\w*CREDENTIAL_PROVIDER")
"""The SDK's variables that name a package; its session is used then."""
_NO_STATUS = "no HTTP status"
_QUERY = re.compile(r"\?\S+")
"""The query of a URL in an error message, which may be a secret."""
log = logging.getLogger(__name__)


class Push:
    """Pushes the samples of `gather` and the spans passed to `span`.

    `started` is the wall time in seconds from which counters count. Raises SettingsError when no exporter can be made.
    """

    def __init__(self, plan: Plan, gather: Callable[[], Sequence[Sample]], started: float) -> None:
        self._plan, self._gather, self._starts = plan, gather, Starts(started)
        self._resource = resource.own()
        reasons = _Reasons()
        logger = logging.getLogger("opentelemetry")
        logger.handlers, logger.propagate = [reasons], False
        self._links = {signal.name: _Link(signal, reasons) for signal in (plan.metrics, plan.traces) if signal}
        self._dropped = Tally(SPANS_DROPPED, ("budget", "queue_full", "export_failed", "malformed", "stopped"))
        self._exports = Tally(EXPORTS, self._links)
        self._failed = Tally(EXPORTS_FAILED, self._links)
        self._exported = self._unsampled = 0
        self._budget = Budget(plan.spans_per_second)
        self._queue: deque[Span] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        loops = {"metrics": self._push_metrics, "traces": self._push_spans}
        self._threads = [threading.Thread(target=loops[name], name=f"otlp-{name}", daemon=True) for name in self._links]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def span(self, span: Span) -> None:
        """Queue a finished span. Never blocks or raises; spans beyond the budget or the queue are counted."""
        if "traces" not in self._links:
            return
        verdict = self._plan.sampler.judge(span)
        if verdict is Verdict.PARTIAL:
            span = replace(span, attributes={**span.attributes, PARTIAL: True})
        with self._lock:
            if verdict is Verdict.OUT:
                self._unsampled += 1
                return
            full = len(self._queue) >= self._plan.queue_size
            within = not full and self._budget.take()
            if within:
                self._queue.append(span)
            ready = len(self._queue) >= self._plan.batch_size
        if not within:
            self._dropped.add("queue_full" if full else "budget")
        if ready:
            self._wake.set()

    def samples(self) -> list[Sample]:
        """Return the exporter's own metrics of pushing."""
        samples = [*self._exports.samples(), *self._failed.samples()]
        if "traces" in self._links:
            samples += [SPANS_EXPORTED.sample(self._exported), SPANS_UNSAMPLED.sample(self._unsampled)]
            samples.append(SPANS_QUEUED.sample(len(self._queue)))
            samples += self._dropped.samples()
        return samples

    def stop(self, timeout: float = 2.0) -> None:
        """Send the queued spans within `timeout` seconds; drop and count the rest."""
        deadline = time.monotonic() + timeout
        self._stopping.set()
        self._wake.set()
        self._join(deadline - timeout / 4)
        for link in self._links.values():
            link.close()
        self._join(deadline)
        with self._lock:
            left = len(self._queue)
            self._queue.clear()
        if left:
            self._dropped.add("stopped", left)
            log.warning("%d spans were not delivered before the exporter stopped", left)

    def _join(self, deadline: float) -> None:
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))

    def _push_spans(self) -> None:
        from exporter.views import otlp

        resources = otlp.Resources(self._resource)
        stopping = False
        while not stopping:
            self._wake.wait(self._plan.delay)
            self._wake.clear()
            stopping = self._stopping.is_set()
            while batch := self._take():
                converted, malformed = otlp.spans(batch, resources)
                self._dropped.add("malformed", malformed)
                if self._send("traces", converted):
                    self._exported += len(converted)
                else:
                    self._dropped.add("export_failed", len(converted))

    def _take(self) -> list[Span]:
        with self._lock:
            return [self._queue.popleft() for _ in range(min(len(self._queue), self._plan.batch_size))]

    def _push_metrics(self) -> None:
        from exporter.views import otlp

        due = time.monotonic() + self._plan.interval
        stopping = False
        while not stopping:
            stopping = self._stopping.wait(max(0.0, due - time.monotonic()))
            due = max(due + self._plan.interval, time.monotonic())
            try:
                samples = self._gather()
                for request in otlp.metrics(samples, self._resource, self._starts, time.time()):
                    if not self._send("metrics", request):
                        break
            except Exception:
                log.exception("metrics could not be gathered for OTLP")

    def _send(self, signal: str, data: Any) -> bool:
        self._exports.add(signal)
        sent = self._links[signal].send(data)
        if not sent:
            self._failed.add(signal)
        return sent


class _Link:
    """An exporter of the SDK, with one log line when exports begin to fail or to succeed."""

    def __init__(self, signal: Signal, reasons: _Reasons) -> None:
        self._signal, self._reasons = signal, reasons
        transport = "grpc" if signal.protocol == "grpc" else "http"
        kind = {"metrics": "metric", "traces": "trace"}[signal.name]
        package = f"opentelemetry.exporter.otlp.proto.{transport}"
        try:
            module = importlib.import_module(f"{package}.{kind}_exporter")
        except ImportError as error:
            extra = "otlp-grpc" if transport == "grpc" else "otlp"
            raise SettingsError(
                f"OTLP over {signal.protocol} needs packages that are not installed ({error}); "
                f"pip install 'accel-exporter[{extra}]'"
            ) from error
        make = module.OTLPMetricExporter if signal.name == "metrics" else module.OTLPSpanExporter
        own = transport == "http" and not any(map(_CREDENTIALS.fullmatch, os.environ))
        session = {"session": reasons.session()} if own else {}
        try:
            self._exporter = make(endpoint=signal.endpoint, headers=dict(signal.headers) or None, **session)
        except Exception as error:
            raise SettingsError(f"OTLP {signal.name} to {signal.target} cannot be set up: {error}") from error
        self._failure = ""
        """The HTTP status of the last failure, or _NO_STATUS; empty while exports succeed."""

    def send(self, data: Any) -> bool:
        """Send data, within the exporter's timeout or until `close`. Returns whether the endpoint accepted it."""
        self._reasons.forget()
        try:
            sent = bool(self._exporter.export(data).name == "SUCCESS") and not self._reasons.status()
            reason = self._reasons.reason()
        except Exception as error:
            sent, reason = False, f"{type(error).__name__}: {error}"
        failure = "" if sent else self._reasons.status() or _NO_STATUS
        if sent and self._failure:
            log.info("OTLP %s to %s work again", self._signal.name, self._signal.target)
        elif failure != self._failure:
            log.warning(
                "OTLP %s to %s are dropped until it works: %s",
                self._signal.name,
                self._signal.target,
                _QUERY.sub("?…", reason),
            )
        self._failure = failure
        return sent

    def close(self) -> None:
        self._exporter.shutdown()


class _Reasons(logging.Handler):
    """Keeps the reason of a failed export, by thread: the SDK's exporters return none.

    It is the status of the last HTTP response, else the SDK's log record of the lowest level: the warning before a
    retry is more specific than the error after the last.
    """

    def __init__(self) -> None:
        super().__init__()
        self._of_thread = threading.local()

    def session(self) -> Any:
        """Return an HTTP session (requests.Session) that notes its responses."""
        import requests

        session = requests.Session()
        session.hooks["response"].append(self._note)
        return session

    def forget(self) -> None:
        """Reset the reason at the begin of an export in this thread."""
        self._of_thread.reason, self._of_thread.level = "no reason given", logging.CRITICAL
        self._of_thread.response = None

    def status(self) -> str:
        """Return the last HTTP status if it is no success, else an empty string. The SDK takes a redirect for one."""
        response = self._of_thread.response
        failed = response is not None and not 200 <= response.status_code < 300
        return f"HTTP status {response.status_code} {str(response.reason)[:100]}" if failed else ""

    def reason(self) -> str:
        """Return the reason why the last export of this thread failed."""
        return self.status() or str(self._of_thread.reason)

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno <= getattr(self._of_thread, "level", 0):
            self._of_thread.reason, self._of_thread.level = record.getMessage()[:300], record.levelno

    def _note(self, response: Any, **_: Any) -> None:
        self._of_thread.response = response
