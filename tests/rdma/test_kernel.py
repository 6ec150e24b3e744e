"""The exporter on another kernel than the one the other tests run on: Debian's, of years ago."""

from __future__ import annotations

import pytest

from tests.rdma.conftest import Side
from tests.rdma.rig import REPOSITORY

pytestmark = pytest.mark.evidence(feature="older kernels", on="real kernel, emulated hardware")


def test_every_probe_loads(receiver: Side) -> None:
    """The kernel's verifier takes every object there is."""
    program = (
        "from exporter.bpf.libbpf import Object, BpfError; from pathlib import Path; import os\n"
        "for path in sorted(Path('exporter/bpf/objects', os.uname().machine).glob('*.o')):\n"
        "    try: Object(path).close()\n"
        "    except BpfError as error: print(path.name, str(error)[-900:])\n"
    )

    refused = receiver.host.run(f'cd {REPOSITORY}; exec .venv/bin/python -c "{program}"', 120)

    assert "" == refused


def test_doctor(sender: Side) -> None:
    """Nothing that observing takes is missing, and the RDMA device is seen."""
    report = sender.host.begin(f"cd {REPOSITORY}; exec .venv/bin/accel-exporter doctor").wait(600, statuses=(0, 1))

    failed = [line for line in report.splitlines() if line.startswith("fail") and "free to listen" not in line]
    assert [] == [line for line in failed if " addresses " not in line]  # the exporter itself has its address
    assert "RDMA devices: rxe0" in report
