"""Sampling of spans by trace, so that all hosts decide alike about a trace, and a limit of spans a second."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from exporter.model import Span
from exporter.options import number

log = logging.getLogger(__name__)
_RATIOS = {"always_on": 1.0, "always_off": 0.0, "traceidratio": None}
_LOW_64_BITS = (1 << 64) - 1


class Verdict(Enum):
    WHOLE = "the trace is sampled, on every host"
    PARTIAL = "the trace is not sampled, but this span failed or was slow"
    OUT = "not sampled"


@dataclass(frozen=True, slots=True)
class Sampler:
    """Samples the share `ratio` of all traces, like the SDKs' TraceIdRatioBased: by the low 64 bits of the trace id.

    Failed and slow spans of other traces are kept too, unless the ratio is 0.
    """

    ratio: float = 1.0

    def judge(self, span: Span) -> Verdict:
        if self.ratio == 1:
            return Verdict.WHOLE
        if int(span.trace_id[-16:], 16) & _LOW_64_BITS < round(self.ratio * (1 << 64)):
            return Verdict.WHOLE
        return Verdict.PARTIAL if self.ratio and (span.error or span.slow) else Verdict.OUT


def sampler(environ: Mapping[str, str]) -> Sampler:
    """Return the sampler of OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG.

    Traces made here have no remote parent, so a parentbased_ sampler equals its root sampler. As the specification of
    the variables requires, an invalid value is logged and ignored.
    """
    name = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() or "parentbased_always_on"
    argument = environ.get("OTEL_TRACES_SAMPLER_ARG", "").strip()
    root = name.removeprefix("parentbased_")
    if root not in _RATIOS:
        log.warning("OTEL_TRACES_SAMPLER=%.40s is not a supported sampler; every trace is sampled", name)
        return Sampler()
    ratio = _RATIOS[root]
    if ratio is not None:
        return Sampler(ratio)
    try:
        ratio = number(argument or "1")
    except ValueError:
        ratio = math.nan
    if not 0 <= ratio <= 1:
        log.warning("OTEL_TRACES_SAMPLER_ARG=%.40s is not a number from 0 to 1; every trace is sampled", argument)
        return Sampler()
    return Sampler(ratio)


class Budget:
    """A token bucket of `per_second` tokens a second and one second's capacity; 0 is no limit. One thread at a time."""

    def __init__(self, per_second: float, now: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._now = per_second, now
        self._left, self._at = per_second, now()

    def take(self) -> bool:
        """Take a token. Returns False when there is none."""
        if not self._per_second:
            return True
        now = self._now()
        self._left = min(self._per_second, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
