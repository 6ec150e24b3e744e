"""The exporter on another kernel than the one the other tests run on: Debian's, of years ago."""

from __future__ import annotations

import pytest

from tests.kernels.objects import LOAD
from tests.rdma.conftest import Side
from tests.rdma.rig import REPOSITORY

pytestmark = pytest.mark.evidence(feature="older kernels", on="real kernel, emulated hardware")


def test_every_probe_loads(receiver: Side) -> None:
    """The kernel's verifier takes every object there is."""
    printed = receiver.host.run(f"cd {REPOSITORY}; exec .venv/bin/python -c '{LOAD}'", 120)

    assert [] == [it for it in printed.splitlines() if not it.endswith(".bpf.o loaded")]
    assert "serving.bpf.o loaded" in printed


def test_doctor(sender: Side) -> None:
    """Nothing that observing takes is missing, and the RDMA device is seen."""
    report = sender.host.begin(f"cd {REPOSITORY}; exec .venv/bin/accel-exporter doctor").wait(600, statuses=(0, 1))

    failed = [line for line in report.splitlines() if line.startswith("fail") and "free to listen" not in line]
    assert [] == [line for line in failed if " addresses " not in line]  # the exporter itself has its address
    assert "RDMA devices: rxe0" in report
