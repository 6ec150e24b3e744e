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
from exporter.otlp_answer import AnswerError, OtlpAnswer, Reasons
from exporter.sampling import Budget, Verdict
from exporter.starts import Starts

SPANS_DROPPED = Metric(
    "accel_exporter.spans.dropped",
    "Spans that were not delivered, by reason: budget (--otlp.spans-per-second), a collector's limit (a reason that "
    "ends in limit), queue_full, export_failed (the OTLP request failed), rejected (by the endpoint, which accepted "
    "the others of a request over HTTP), malformed, stopped (the exporter stopped first).",
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
    "accel_exporter.otlp.exports", "OTLP requests made, failed requests included.", Kind.COUNTER, labels=("signal",)
)
EXPORTS_FAILED = Metric(
    "accel_exporter.otlp.exports.failed",
    "OTLP requests that the endpoint did not accept, or over HTTP accepted only in part, after the retries within the "
    "timeout.",
    Kind.COUNTER,
    labels=("signal",),
)
PARTIAL = "accel_exporter.trace.partial"
"""Attribute, True on a span that is kept in an unsampled trace: the spans of other hosts are likely missing."""

_CREDENTIALS = re.compile(r"OTEL_PYTHON_EXPORTER_OTLP_HTTP_\w*CREDENTIAL_PROVIDER")
"""The SDK's variables that name a package; its session is used then."""
_NO_STATUS, _NO_ANSWER = "no HTTP status", "no response of OTLP"
_WHOLE = 10
"""Exports without a remark of the endpoint after which the next remark has a log line again."""
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
        reasons = Reasons()
        logger = logging.getLogger("opentelemetry")
        logger.handlers, logger.propagate = [reasons], False
        self._links = {signal.name: _Link(signal, reasons) for signal in (plan.metrics, plan.traces) if signal}
        self._dropped = Tally(
            SPANS_DROPPED, ("budget", "queue_full", "export_failed", "rejected", "malformed", "stopped")
        )
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

    def sampled(self, span: Span) -> bool:
        """Return whether a span is sent if there is room for it."""
        return "traces" in self._links and self._plan.sampler.judge(span) is not Verdict.OUT

    def span(self, span: Span) -> bool:
        """Queue a finished span. Never blocks or raises; spans beyond the budget or the queue are counted.

        Returns whether the span is queued.
        """
        if "traces" not in self._links:
            return False
        verdict = self._plan.sampler.judge(span)
        if verdict is Verdict.PARTIAL:
            span = replace(span, attributes={**span.attributes, PARTIAL: True})
        with self._lock:
            if verdict is Verdict.OUT:
                self._unsampled += 1
                return False
            full = len(self._queue) >= self._plan.queue_size
            within = not full and self._budget.take()
            if within:
                self._queue.append(span)
            ready = len(self._queue) >= self._plan.batch_size
        if not within:
            self._dropped.add("queue_full" if full else "budget")
        if ready:
            self._wake.set()
        return within

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
        link, stopping = self._links["traces"], False
        while not stopping:
            self._stopping.wait(link.pause())
            self._wake.wait(self._plan.delay)
            self._wake.clear()
            stopping = self._stopping.is_set()
            while not link.pause() and (batch := self._take()):
                converted, malformed = otlp.spans(batch, resources)
                self._dropped.add("malformed", malformed)
                if answer := self._send("traces", converted):
                    rejected = min(answer.rejected, len(converted))
                    self._exported += len(converted) - rejected
                    self._dropped.add("rejected", rejected)
                else:
                    self._dropped.add("export_failed", len(converted))

    def _take(self) -> list[Span]:
        with self._lock:
            return [self._queue.popleft() for _ in range(min(len(self._queue), self._plan.batch_size))]

    def _push_metrics(self) -> None:
        from exporter.views import otlp

        due = time.monotonic() + self._plan.interval
        link, stopping = self._links["metrics"], False
        while not stopping:
            stopping = self._stopping.wait(max(link.pause(), due - time.monotonic()))
            due = max(due + self._plan.interval, time.monotonic())
            if link.pause():
                continue
            try:
                samples = self._gather()
                exponential = self._plan.exponential
                for request in otlp.metrics(
                    samples, self._resource, self._starts, time.time(), exponential=exponential
                ):
                    if not self._send("metrics", request):
                        break
            except Exception:
                log.exception("metrics could not be gathered for OTLP")

    def _send(self, signal: str, data: Any) -> OtlpAnswer | None:
        self._exports.add(signal)
        answer = self._links[signal].send(data)
        if answer is None or answer.rejected:
            self._failed.add(signal)
        return answer


class _Link:
    """An exporter of the SDK, with one log line when exports begin to fail or to succeed."""

    def __init__(self, signal: Signal, reasons: Reasons) -> None:
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
        self._paused_until = 0.0
        """The end of the pause that the endpoint demanded, on the clock of time.monotonic."""
        self._failure = ""
        """The HTTP status of the last failure, _NO_STATUS or _NO_ANSWER; empty while exports succeed."""
        self._quiet = _WHOLE
        """Exports since the endpoint's last remark."""

    def pause(self) -> float:
        """Return the seconds for which the endpoint wants no further request; 0: none."""
        return max(0.0, self._paused_until - time.monotonic())

    def send(self, data: Any) -> OtlpAnswer | None:
        """Send data, within the exporter's timeout or until `close`. Returns the answer, None for a failure."""
        self._reasons.forget()
        answer, failure = None, _NO_STATUS
        try:
            if self._exporter.export(data).name == "SUCCESS" and not self._reasons.status():
                answer = self._reasons.answer(self._signal.name)
            failure, reason = self._reasons.status() or _NO_STATUS, self._reasons.reason()
        except AnswerError as error:
            failure, reason = _NO_ANSWER, str(error)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        failure = "" if answer else failure
        self._paused_until = 0.0 if answer else time.monotonic() + self._reasons.pause()
        if answer and self._failure:
            log.info("OTLP %s to %s work again", self._signal.name, self._signal.target)
        elif failure != self._failure:
            self._warn("are dropped until it works", reason)
        self._failure = failure
        if answer:
            self._remark(answer)
        return answer

    def _remark(self, answer: OtlpAnswer) -> None:
        """Log the first of the endpoint's remarks."""
        remarks = answer.rejected or answer.message
        if remarks and self._quiet >= _WHOLE:
            message = answer.message or "no reason given"
            if answer.rejected:
                unit = "data points" if self._signal.name == "metrics" else "spans"
                self._warn("are accepted in part", f"{answer.rejected} {unit} of a request rejected: {message}")
            else:
                self._warn("are accepted with a warning", message)
        self._quiet = 0 if remarks else self._quiet + 1

    def _warn(self, what: str, reason: str) -> None:
        name, target = self._signal.name, self._signal.target
        log.warning("OTLP %s to %s %s: %s", name, target, what, _QUERY.sub("?…", reason))

    def close(self) -> None:
        self._exporter.shutdown()
