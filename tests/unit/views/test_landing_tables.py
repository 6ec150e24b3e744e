"""Rows of the tables of the page at /: RDMA, GPUs, NCCL ranks and faults."""

from __future__ import annotations

import time

import pytest

from exporter.model import Distribution, Kind, Metric, Sample
from exporter.views.landing import LandingPage
from tests.unit.views.test_landing import Reader, row


def sample(metric: str, value: float | Distribution, /, **labels: str) -> Sample:
    return Sample(Metric(metric, "", Kind.GAUGE, labels=tuple(labels)), labels, value)


def works(collector: str) -> Sample:
    return sample("accel_exporter.collector.success", 1, collector=collector)


@pytest.mark.parametrize(
    ("info", "peer"),
    [
        ({"peer_qp": "418", "peer_gid": "fe80:0000:0000:0000:0000:0000:0000:0008"}, "418 at fe80::8"),
        ({"peer_qp": "418", "peer_gid": "0000:0000:0000:0000:0000:ffff:0a00:0001"}, "418 at 10.0.0.1"),
        ({"peer_qp": "418", "peer_gid": "x", "peer_pod": "p", "peer_namespace": "n"}, "418 at n/p"),
        ({"peer_qp": "418", "peer_lid": "12"}, "418 at LID 12"),
        ({"peer_qp": "418"}, "418"),
        ({}, "–"),
    ],
)
def test_queue_pair(info: dict[str, str], peer: str) -> None:
    """The row of a queue pair has its bytes in all opcodes, its peer, its state, and the NACK ratio of its port."""
    who = {"pid": "7", "comm": "nccl", "device": "mlx5_0", "qp": "200"}
    page = LandingPage().render(
        [
            sample("rdma.qp.state", 3, **who, port="1", **info),
            sample("rdma.send", 1024, **who, opcode="SEND"),
            sample("rdma.send", 2048, **who, opcode="RDMA_WRITE"),
            sample("rdma.send.work_requests", 3, **who, opcode="SEND"),
            sample("rdma.nack", 0.01, device="mlx5_0", port="1", kind="rnr"),
            sample("rdma.nack", 0.02, device="mlx5_0", port="1", kind="sequence"),
            sample("rdma.nack", 0.5, device="mlx5_0", port="2", kind="rnr"),
        ],
        [],
    )
    [_, found] = Reader(page[page.index('id="rdma"') :]).rows[:2]

    assert ["7", "nccl", "host", "mlx5_0/1", "200", peer, "RTS", "–", "3.0 KiB", "3", "3 %"] == found


def test_queue_pair_that_sent_nothing_and_ports_that_differ() -> None:
    """Without a post there is no number, and no ratio where it is not known which port of two it uses."""
    page = LandingPage().render(
        [
            sample("rdma.qp.state", 9, pid="7", device="mlx5_0", qp="200"),
            sample("rdma.nack", 0.01, device="mlx5_0", port="1", kind="rnr"),
            sample("rdma.nack", 0.5, device="mlx5_0", port="2", kind="rnr"),
        ],
        [],
    )
    found = Reader(page[page.index('id="rdma"') :]).rows[1]

    assert ["mlx5_0", "200", "–", "", "–", "–", "–", "–"] == found[3:]


def test_queue_pairs_in_profile_node() -> None:
    """Failed ones and then the busiest, with their rate; sums over a process's queue pairs are no row."""
    who = {"pid": "7", "comm": "nccl", "device": "mlx5_0"}
    page = LandingPage().render(
        [
            sample("rdma.send", 3072, **who, peer_gid="x"),
            sample("rdma.send.work_requests", 3, **who, opcode="SEND"),
            sample("rdma.qp.busiest", 1024, **who, qp="201", peer_qp="1"),
            sample("rdma.qp.busiest", 2048, **who, qp="202", peer_qp="2"),
            sample("rdma.qp.state", 6, **who, qp="200"),
        ],
        [],
    )
    found = Reader(page[page.index('id="rdma"') :]).rows[1:4]

    assert [
        ["200", "–", "ERR", "–", "–", "–"],
        ["202", "2", "", "2.0 KiB", "–", "–"],
        ["201", "1", "", "1.0 KiB", "–", "–"],
    ] == [one[4:10] for one in found]
    assert 'id="ports"' in page[page.index(">201<") :]


def test_port() -> None:
    """The link and what the device counts; kinds of acknowledgements are added up."""
    port = {"device": "mlx5_0", "port": "1"}
    page = LandingPage().render(
        [
            sample("rdma.link.state", 4, **port),
            sample("rdma.link.speed", 50e9, **port),
            sample("rdma.packets.sent", 5000, **port),
            sample("rdma.naks.received", 2, **port, kind="rnr"),
            sample("rdma.naks.received", 3, **port, kind="sequence"),
            sample("rdma.link.state", 1, device="mlx5_1", port="1"),
        ],
        [],
    )
    up, down = row(page, "mlx5_0/1"), row(page, "mlx5_1/1")

    assert ["active", "400 Gb/s", "–", "5\u202f000", "5", "–"] == list(up.values())[1:]
    assert ["down", "–", "–", "–", "–", "–"] == list(down.values())[1:]


def test_gpu_with_its_xids() -> None:
    """Xids are those of the GPU by UUID, or by bus where that is all the log has; without the collector a dash."""
    gpu = {"gpu": "0", "gpu_uuid": "GPU-a"}
    samples = [
        sample("hw.gpu.info", 1, **gpu, name="H100", pci_bus_id="0000:18:00.0"),
        sample("hw.status", 0, **gpu, state="ok"),
        sample("hw.status", 1, **gpu, state="lost"),
        sample("hw.gpu.utilization", 0.5, **gpu, task="general"),
        sample("hw.gpu.memory.usage", 3 << 30, **gpu),
        sample("hw.gpu.memory.limit", 80 << 30, **gpu),
        sample("hw.temperature", 61.4, **gpu, sensor="gpu"),
        sample("hw.temperature", 99, **gpu, sensor="memory"),
        sample("hw.power", 412.6, **gpu),
        sample("gpu.xid.errors", 2, **gpu, xid="94"),
        sample("gpu.xid.errors", 1, pci_bus_id="0000:18:00.0", xid="79"),
        sample("gpu.xid.errors", 5, gpu="1", gpu_uuid="GPU-b", pci_bus_id="0000:19:00.0", xid="31"),
        sample("gpu.xid.errors", 5, gpu_uuid="", pci_bus_id="", xid="13"),
    ]
    expected = ["0", "H100", "lost", "50 %", "3.0 GiB of 80.0 GiB", "61 °C", "413 W"]

    assert [*expected, "3 (79, 94)"] == list(row(LandingPage().render([*samples, works("xid")], []), "0").values())
    assert [*expected, "–"] == list(row(LandingPage().render(samples, []), "0").values())


def test_gpu_that_answers_nothing() -> None:
    """A GPU of which only the name is known has dashes, and 0 Xids only where Xids are looked for."""
    page = LandingPage().render([sample("hw.gpu.info", 1, gpu="0", gpu_uuid="GPU-a", name="H100"), works("xid")], [])
    assert ["0", "H100", "–", "–", "–", "–", "–", "0"] == list(row(page, "0").values())


def test_ranks_are_in_order_with_their_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of a communicator are sorted as numbers; the lag is the mean, and unknown is a dash."""
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    rank = {"comm_hash": "c0ffee", "nranks": "12"}
    page = LandingPage().render(
        [
            sample("nccl.communicator.info", 1, pid="9", rank="10", **rank),
            sample("nccl.communicator.info", 1, pid="8", rank="9", **rank),
            sample("nccl.rank.arrival_lag", Distribution((1.0,), (3, 1), 0.14), pid="8", comm_hash="c0ffee", rank="9"),
            sample("nccl.rank.calls_behind", 4, pid="8", comm_hash="c0ffee", rank="9"),
            sample("nccl.last_call.timestamp", 990, pid="8"),
            sample("nccl.errors", 2, pid="8", api="x"),
            sample("nccl.errors", 3, pid="8", api="y"),
        ],
        [],
    )
    rows = Reader(page[page.index('id="nccl"') :]).rows[1:3]

    assert ["c0ffee", "9 of 12", "8", "", "host", "–", "35 ms", "4", "10 s ago", "5"] == rows[0]
    assert ["c0ffee", "10 of 12", "9", "", "host", "–", "–", "–", "–", "0"] == rows[1]


def test_faults_newest_first_and_blind_spots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults that were seen, the newest first, those from before the start apart; what is not read is named."""
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    kinds = [{"category": "nic", "component": f"mlx5_{n}", "signal": f"s{n}"} for n in range(3)]
    samples = [
        *(sample("accel.node.fault", value, **kind) for value, kind in zip((2, 0, 0), kinds, strict=True)),
        sample("accel.node.fault.replayed", 5, **kinds[1]),
        sample("accel.node.fault.last_timestamp", 900, **kinds[0]),
        sample("accel.node.fault.last_timestamp", 940, **kinds[1]),
        sample("accel.node.fault.source_available", 0, source="edac"),
        sample("accel.node.fault.source_available", 1, source="kmsg"),
        works("faults"),
    ]
    page = LandingPage().render(samples, [])
    rows = Reader(page[page.index('id="faults"') :]).rows[1:3]

    assert [["s1", "nic", "mlx5_1", "0", "5", "60 s ago"], ["s0", "nic", "mlx5_0", "2", "0", "100 s ago"]] == rows
    assert "Not read on this node: edac." in page
    assert '<a class="bad" href="#faults">1 fault</a>' in page


def test_no_faults_is_not_unknown() -> None:
    """The sentence that there is no fault is shown only where they are looked for."""
    assert "no faults" in LandingPage().render([works("faults")], [])
    assert "faults unknown" in LandingPage().render([], [])
    assert "Unknown: collector faults does not work or is disabled." in LandingPage().render([], [])
