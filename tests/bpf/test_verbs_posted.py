"""Data sent by a port beyond observed posts: the collector's counts against a device's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exporter.infiniband import drivers, metrics
from exporter.infiniband.device import RdmaDevice
from tests.bpf.verbs_node import Job, attached, build_standins, observe
from tests.support import until
from tests.unit.infiniband.trees import PMA, Tree, count, write

pytestmark = pytest.mark.needs_bpf

SEND, READ = 2, 4


def test_bytes_that_nobody_posted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Port counters less SENDs and WRITEs, to the byte; what ended stays taken off, and a miss begins a new count."""
    monkeypatch.setattr("exporter.infiniband.device.POSTED_SECONDS", 0.0)
    name = f"standin{os.getpid()}"  # others on this machine post on standin0
    monkeypatch.setenv("STANDIN_DEVICE", name)
    build_standins()
    port = Tree(tmp_path).device(name, "mlx5_core")
    count(port / "counters", PMA, {"port_xmit_data": 250})
    with observe() as observed:
        posted, missed = observed.collector.node.posted, [0]
        observed.collector.missed = lambda: tuple(missed) or None  # others may miss something
        device = RdmaDevice(tmp_path / "class/infiniband" / name, drivers.load(), posted, None, False)

        def unattributed() -> list[float]:
            return [it.value for it in device.read() if it.metric is metrics.UNATTRIBUTED]

        with attached(observed, Job()) as job:
            job.create()
            job.connect()
            job.post(8, 2, opcode=SEND, size=100)
            assert [0] == unattributed()
            job.post(8, 3, opcode=SEND, size=1000)
            job.post(8, 1, opcode=READ, size=5000)
            write(port / "counters/port_xmit_data", 250 + 900)  # 4 bytes each
            assert [600] == unattributed()
            job.post(0, 1, size=400)  # of a queue pair from before, the port is not known: the device has only one
            assert 0 == job.step("destroy", 8)
            until(lambda: observed.value("rdma_send_bytes_total", job.pid, opcode="SEND"), "moved")
            write(port / "counters/port_xmit_data", 250 + 1000)
            assert [600] == unattributed()
            missed[0] += 1
            write(port / "counters/port_xmit_data", 250 + 5000)
            assert [600] == unattributed()
            job.process.kill()
            job.process.wait()
        until(lambda: job.pid not in observed.collector.ledger, "the end noticed")
        write(port / "counters/port_xmit_data", 250 + 5010)
        assert [640] == unattributed()
        missed.clear()
        assert [] == unattributed()
        missed.append(1)
        assert [640] == unattributed()
    assert [] == unattributed()


def test_what_could_not_be_read_is_missed() -> None:
    """A chain that could not be read makes what was posted uncertain, from then on it is certain again."""
    build_standins()
    with observe() as observed, attached(observed, Job()) as job:
        until(lambda: observed.collector.missed() is not None, "certain")
        before = observed.collector.object.globals()["requests_unread"]
        job.step("hostile", 3)
        until(lambda: (observed.collector.missed() or (before,))[0] > before, "missed")
