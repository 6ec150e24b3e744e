"""Which spans are pushed: by trace, so that every host decides alike about one trace, and so many a second at most."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from exporter.model import Span

log = logging.getLogger(__name__)
_RATIOS = {"always_on": 1.0, "always_off": 0.0, "traceidratio": None}
_LOW_64_BITS = (1 << 64) - 1


class Verdict(Enum):
    WHOLE = "the trace is sampled, on every host"
    PARTIAL = "the trace is not sampled, but this span failed or was slow"
    OUT = "not sampled"


@dataclass(frozen=True, slots=True)
class Sampler:
    """Samples this part of all traces, 0 to 1, as the SDKs' TraceIdRatioBased does: by the low 64 bits of the trace id.

    Spans that failed or were slow are kept beside them, unless the part is 0: then nothing is wanted.
    """

    ratio: float = 1.0

    def judge(self, span: Span) -> Verdict:
        if self.ratio == 1:
            return Verdict.WHOLE
        if int(span.trace_id[-16:], 16) & _LOW_64_BITS < round(self.ratio * (1 << 64)):
            return Verdict.WHOLE
        return Verdict.PARTIAL if self.ratio and (span.error or span.slow) else Verdict.OUT


def sampler(environ: Mapping[str, str]) -> Sampler:
    """What OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG ask for.

    Our traces have no parent elsewhere, so the parentbased_ samplers are their roots' alone. As the specification of
    these variables wants it, what is not understood is logged and passed over.
    """
    name = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() or "parentbased_always_on"
    argument = environ.get("OTEL_TRACES_SAMPLER_ARG", "").strip()
    root = name.removeprefix("parentbased_")
    if root not in _RATIOS:
        log.warning("OTEL_TRACES_SAMPLER=%.40s is not known here; every trace is sampled", name)
        return Sampler()
    ratio = _RATIOS[root]
    if ratio is not None:
        return Sampler(ratio)
    try:
        ratio = float(argument or "1")
    except ValueError:
        ratio = math.nan
    if not 0 <= ratio <= 1:
        log.warning("OTEL_TRACES_SAMPLER_ARG=%.40s is no number from 0 to 1; every trace is sampled", argument)
        return Sampler()
    return Sampler(ratio)


class Budget:
    """So many a second, one second's worth at once; 0 is no limit. Not safe from several threads at a time."""

    def __init__(self, per_second: float, now: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._now = per_second, now
        self._left, self._at = per_second, now()

    def take(self) -> bool:
        """Whether one more is within it."""
        if not self._per_second:
            return True
        now = self._now()
        self._left = min(self._per_second, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
