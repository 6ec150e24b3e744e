"""The cost of a hit, measured on this machine."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from exporter.bpf import object_path
from exporter.bpf.calibrate import calibrate
from exporter.model import Unavailable

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="cost of probes", on="real software")]


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_costs() -> None:
    """A hit costs between a tenth of a microsecond and a millisecond; single-stepping and returning cost more."""
    costs = calibrate()
    assert costs.return_emulated is not None and costs.return_stepped is not None
    assert 1e-7 < costs.emulated < costs.stepped < 1e-3
    assert costs.emulated < costs.return_emulated < 1e-3
    assert costs.emulated < costs.return_stepped < 1e-3


def test_samples() -> None:
    """One sample for each placement, with and without return."""
    costs = calibrate()
    values = {(s.labels["placement"], s.labels["returns"]): s.value for s in costs.samples()}
    assert {
        ("emulated", "false"): costs.emulated,
        ("emulated", "true"): costs.return_emulated,
        ("stepped", "false"): costs.stepped,
        ("stepped", "true"): costs.return_stepped,
    } == values


def test_quick() -> None:
    """Measuring takes little processor time: some milliseconds, a tenth of a second on the slowest machine."""
    took = []
    for _ in range(3):  # other work on the machine only adds to it
        before = time.process_time()
        calibrate()
        took.append(time.process_time() - before)
    assert min(took) < 0.1


def test_nothing_left() -> None:
    """Nothing stays open after measuring."""
    calibrate()
    before = open_descriptors()
    calibrate()
    assert before == open_descriptors()


def test_object_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its object the cost is unknown, not wrong."""
    monkeypatch.setattr("exporter.bpf.calibrate.object_path", lambda stem: object_path(f"no-{stem}"))
    with pytest.raises(Unavailable, match="cannot be measured: open .*no-calibrate"):
        calibrate()
