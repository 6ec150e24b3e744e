"""Sampling of spans that are pushed."""

from __future__ import annotations

import random

import pytest
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from exporter.model import Span
from exporter.sampling import Budget, Sampler, Verdict, sampler


def span(trace_id: str, error: str = "", slow: bool = False) -> Span:
    return Span("x", trace_id, "1" * 16, 1, 2, {}, {}, error=error, slow=slow)


@pytest.mark.parametrize("ratio", [0.0, 0.001, 0.25, 0.999, 1.0])
def test_decides_as_the_sdk(ratio: float) -> None:
    """The SDKs' TraceIdRatioBased decides the same of a trace id, so traces of others fit ours."""
    random_ids = random.Random(23)
    theirs = TraceIdRatioBased(ratio)
    for _ in range(2000):
        trace_id = random_ids.getrandbits(128) or 1
        expected = theirs.should_sample(None, trace_id, "x").decision is Decision.RECORD_AND_SAMPLE
        assert expected == (Sampler(ratio).judge(span(f"{trace_id:032x}")) is Verdict.WHOLE)


def test_failed_and_slow_ones_are_kept() -> None:
    """A failed or slow span of a trace that is not sampled is kept as part of one; not when all is switched off."""
    left_out = "f" * 32

    assert Verdict.OUT is Sampler(0.5).judge(span(left_out))
    assert Verdict.PARTIAL is Sampler(0.5).judge(span(left_out, error="ncclSystemError"))
    assert Verdict.PARTIAL is Sampler(0.5).judge(span(left_out, slow=True))
    assert Verdict.OUT is Sampler(0).judge(span(left_out, error="ncclSystemError"))


@pytest.mark.parametrize(
    ("environ", "ratio", "logged"),
    [
        ({}, 1, ""),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, 0, ""),
        ({"OTEL_TRACES_SAMPLER": "Parentbased_Always_On"}, 1, ""),
        ({"OTEL_TRACES_SAMPLER": "traceidratio"}, 1, ""),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}, 0.25, ""),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": " 0 "}, 0, ""),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "1.5"}, 1, "ARG=1.5 is not a number"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "nan"}, 1, "ARG=nan is not a number"),
        ({"OTEL_TRACES_SAMPLER": "xray"}, 1, "SAMPLER=xray is not a supported sampler"),
    ],
)
def test_variables(environ: dict[str, str], ratio: float, logged: str, caplog: pytest.LogCaptureFixture) -> None:
    """The standard variables are honoured; nonsense is logged and every trace sampled, as specified."""
    assert Sampler(ratio) == sampler(environ)
    assert logged in caplog.text
    assert bool(logged) == bool(caplog.records)


def test_budget() -> None:
    """A second's worth at once, then as time passes; never more than a second's worth saved up."""
    clock = [0.0]
    budget = Budget(10, lambda: clock[0])

    assert 10 == sum(budget.take() for _ in range(30))
    clock[0] += 0.35
    assert 3 == sum(budget.take() for _ in range(30))
    clock[0] += 3600
    assert 10 == sum(budget.take() for _ in range(30))
    assert all(Budget(0).take() for _ in range(1000))
