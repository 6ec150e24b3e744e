"""OTLP push of profiles of stacks, from a thread of its own: alpha, over HTTP, off unless an interval is given.

The SDK has no exporter of profiles. The session is the one of the other signals, so answers are bounded; what an
endpoint does not take is counted and not sent again.
"""

from __future__ import annotations

import gzip
import importlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from exporter.counters import Tally
from exporter.model import Labels, Sample
from exporter.options import SettingsError
from exporter.otlp import Signal
from exporter.otlp_answer import LONGEST_PAUSE, AnswerError, pause
from exporter.push import EXPORTS, EXPORTS_FAILED
from exporter.resource import own
from exporter.stack_profiles.model import StackProfile
from exporter.stack_profiles.published import StackProfiles

NAME = "profiles"
SECONDS = 10.0
"""Time for a request; that of the specification for the other signals."""

log = logging.getLogger(__name__)


class ProfilePush:
    """Pushes the published profiles to `signal` every `interval` seconds: memory in use as it is, the others as deltas.

    `resource` returns the OpenTelemetry resource attributes of a pid that are not labels. Raises SettingsError without
    the packages.
    """

    def __init__(
        self,
        signal: Signal,
        interval: float,
        published: StackProfiles,
        resource: Callable[[int], Labels],
    ) -> None:
        try:
            self._encode = importlib.import_module("exporter.views.stack_profiles.otlp").encode
            self._resources = importlib.import_module("exporter.views.otlp").Resources(own())
            self._session: Any = importlib.import_module("exporter.otlp_session").Session()
        except ImportError as error:
            raise SettingsError(
                f"OTLP needs packages that are not installed ({error}); pip install 'accel-exporter[otlp]'"
            ) from error
        self._signal, self._interval, self._published, self._resource = signal, interval, published, resource
        self._exports, self._failed = Tally(EXPORTS, (NAME,)), Tally(EXPORTS_FAILED, (NAME,))
        self._before: dict[str, StackProfile] = {}
        self._failure: str | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp-profiles", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Stop pushing; a request that is under way is given up after `timeout` seconds."""
        self._stopping.set()
        self._session.close()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def samples(self) -> list[Sample]:
        """Return the metrics of pushing profiles."""
        return [*self._exports.samples(), *self._failed.samples()]

    def push(self) -> float:
        """Push what is published now. Returns the seconds for which the endpoint wants no further request."""
        source = self._published.source
        if source.problem():
            self._before.clear()
            return 0.0
        wait = 0.0
        for make in (source.inuse, source.alloc, source.launches):
            try:
                profile = self._changed(make.__name__, make())
            except (OSError, RuntimeError) as error:
                log.warning("no profile to push by OTLP: %s", error)
                continue
            if profile is not None and profile.samples and not wait:
                wait = self._send(self._encode(profile, self._resource_of))
        return wait

    def _changed(self, name: str, profile: StackProfile) -> StackProfile | None:
        """Return the profile to push: of counts since the start what was counted since the last push, if there was."""
        if name == "inuse":
            return profile
        from exporter.stack_profiles.select import delta

        before, self._before[name] = self._before.get(name), profile
        return None if before is None else delta(before, profile, falls=False)

    def _resource_of(self, labels: Labels) -> Mapping[str, str | int]:
        """Return the resource attributes of a process by the labels of a sample."""
        pid = labels.get("pid", "")
        known = self._resource(int(pid)) if pid.isdecimal() else {}
        process = {name: labels[name] for name in ("pid", "comm", "pod") if labels.get(name)}
        attributes: Mapping[str, str | int] = self._resources.of_process(process, known).attributes
        return attributes

    def _send(self, body: bytes) -> float:
        self._exports.add(NAME)
        headers = {
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "gzip",
            **self._signal.headers,
        }
        wait, failure = 0.0, ""
        try:
            data = gzip.compress(body, 5)
            response = self._session.post(self._signal.endpoint, data=data, headers=headers, timeout=SECONDS)
            failure = _failure(response)
            wait = pause(response.status_code, response.headers.get("Retry-After", ""))
        except (OSError, AnswerError) as error:  # requests' errors are OSErrors
            failure = f"{type(error).__name__}: {error}".partition("?")[0][:300]
        if failure:
            self._failed.add(NAME)
        if bool(failure) != bool(self._failure) or self._failure is None:
            self._note(failure)
        self._failure = failure
        return min(wait, LONGEST_PAUSE)

    def _note(self, failure: str) -> None:
        if failure:
            log.warning("OTLP profiles to %s are dropped until it works: %s", self._signal.target, failure)
        elif self._failure:
            log.info("OTLP profiles to %s work again", self._signal.target)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            wait = 0.0
            try:
                wait = self.push()
            except Exception:
                log.exception("profiles could not be pushed by OTLP")
            due = max(due + self._interval, time.monotonic() + wait)


def _failure(response: Any) -> str:
    """Return why an endpoint did not take a request in whole; empty if it did."""
    if not 200 <= response.status_code < 300:
        return f"HTTP status {response.status_code}"
    if not response.content or response.headers.get("Content-Type", "").partition(";")[0] != "application/x-protobuf":
        return ""
    service = importlib.import_module("opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2")
    try:
        partial = service.ExportProfilesServiceResponse.FromString(response.content).partial_success
    except Exception:  # of protobuf, about an answer that is none of OTLP's
        return ""
    return f"{partial.rejected_profiles} rejected: {partial.error_message[:200]}" if partial.rejected_profiles else ""
