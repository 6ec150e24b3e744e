"""The answer of an OTLP endpoint: an HTTP status, a response of OTLP, or the reason why there is none."""

from __future__ import annotations

import importlib
import logging
import math
import threading
import time
from dataclasses import dataclass
from typing import Any

_FIELDS = {"metrics": "rejected_data_points", "traces": "rejected_spans"}
_BUSY = (429, 503)
"""HTTP statuses with which an endpoint may demand a pause by Retry-After (OTLP specification, OTLP/HTTP Throttling)."""
LONGEST_PAUSE = 300.0
"""Seconds of a pause at most, whatever an endpoint demands."""
_MESSAGE = 300
"""Characters of an endpoint's message in the log."""


class AnswerError(Exception):
    """An answer that is too long, too late or no response of OTLP; the text is the reason."""


@dataclass(frozen=True)
class OtlpAnswer:
    """A response of OTLP: how many spans or data points were rejected, and what the endpoint remarks."""

    rejected: int = 0
    message: str = ""


def read(response: Any, signal: str) -> OtlpAnswer:
    """Return what a successful requests.Response has for "metrics" or "traces". Raises AnswerError for a page of HTML.

    Whatever else is no response of OTLP is a remark: there are endpoints that take data and answer with a word.
    """
    body = response.content
    if not body:
        return OtlpAnswer()
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    other = f"the answer is not an OTLP response but {kind[:100] or 'of no type'}"
    if kind == "text/html":  # a page of a proxy, most likely
        raise AnswerError(other)
    try:
        partial = _parsed(body, kind, signal).partial_success
    except Exception:  # of protobuf and its JSON, which may nest too deep
        return OtlpAnswer(0, other)
    return OtlpAnswer(max(0, getattr(partial, _FIELDS[signal])), partial.error_message[:_MESSAGE])


def pause(status: int, retry_after: str) -> float:
    """Return the seconds for which an endpoint wants no further request, by its status and Retry-After; 0: none.

    Retry-After is a number of seconds or a date (RFC 9110 section 10.2.3); anything else counts as none.
    """
    if status not in _BUSY:
        return 0.0
    try:
        seconds = float(retry_after)
    except ValueError:
        from email.utils import parsedate_to_datetime  # the date is the rarer form

        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, OverflowError, OSError):
            return 0.0
    return min(max(0.0, seconds), LONGEST_PAUSE) if math.isfinite(seconds) else 0.0


def _parsed(body: bytes, kind: str, signal: str) -> Any:
    name = signal.removesuffix("s") if signal == "traces" else signal
    module = importlib.import_module(f"opentelemetry.proto.collector.{name}.v1.{name}_service_pb2")
    made = getattr(module, f"Export{name.title()}ServiceResponse")()
    if kind == "application/json":  # from endpoints that answer so whatever they get
        return importlib.import_module("google.protobuf.json_format").Parse(body, made, ignore_unknown_fields=True)
    made.ParseFromString(body)
    return made


class Reasons(logging.Handler):
    """Keeps the reason of a failed export, by thread: the SDK's exporters return none.

    It is the status of the last HTTP response, else the SDK's log record of the lowest level: the warning before a
    retry is more specific than the error after the last.
    """

    def __init__(self) -> None:
        super().__init__()
        self._of_thread = threading.local()

    def session(self) -> Any:
        """Return an HTTP session (requests.Session) that notes its responses, and bounds them."""
        from exporter.otlp_session import Session

        session = Session()
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

    def pause(self) -> float:
        """Return the seconds for which the endpoint of this thread's last export wants no further request; 0: none."""
        response = self._of_thread.response
        return 0.0 if response is None else pause(response.status_code, response.headers.get("Retry-After", ""))

    def answer(self, signal: str) -> OtlpAnswer:
        """Return the answer to the last export of this thread; an empty one for gRPC. Raises AnswerError."""
        response = self._of_thread.response
        return OtlpAnswer() if response is None else read(response, signal)

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno <= getattr(self._of_thread, "level", 0):
            self._of_thread.reason, self._of_thread.level = record.getMessage()[:300], record.levelno

    def _note(self, response: Any, **_: Any) -> None:
        self._of_thread.response = response
