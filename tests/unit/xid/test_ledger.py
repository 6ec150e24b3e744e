"""Counting faults: live and replayed ones, bursts, and bounds."""

from __future__ import annotations

import threading

import pytest

from exporter.model import Labels, Metric, Sample
from exporter.series import FOLDED
from exporter.xid import metrics
from exporter.xid.decode import xid
from exporter.xid.faults import Family, Fault
from exporter.xid.ledger import MOST_SERIES, Ledger

A, B = "00000000:3B:00.0", "00000000:5E:00.0"


def ledger() -> Ledger:
    return Ledger(lambda device: {"pci_bus_id": device} if device else {})


def values(ledger: Ledger, metric: Metric) -> dict[tuple[str, str], object]:
    """A metric's values by GPU and code, those of the folded series by their action."""
    samples = [sample for sample in ledger.samples() if sample.metric is metric]
    return {(it.labels.get("pci_bus_id", "folded"), code(it)): it.value for it in samples}


def code(sample: Sample) -> str:
    return sample.labels.get("xid") or sample.labels.get("sxid") or sample.labels.get("action", "")


def test_counts() -> None:
    """Every fault counts, by GPU and code, and the newest time stays though an older one comes later."""
    told = ledger()
    for device, number, time in ((A, 79, 100.0), (A, 31, 200.0), (B, 31, 300.0), (B, 31, 290.0)):
        told.add(xid(device, number), time)

    assert {(A, "79"): 1, (A, "31"): 1, (B, "31"): 2} == values(told, metrics.XIDS)
    assert {(A, "79"): 100, (A, "31"): 200, (B, "31"): 300} == values(told, metrics.XID_LAST)


def test_replayed() -> None:
    """What is older than the start has its time and is in no counter; the counter is there, at 0, for the next one."""
    told = ledger()
    assert not told.add(xid(A, 79), 100.0, replayed=True)
    told.add(xid(A, 79), 100.0, replayed=True)

    assert [{(A, "79"): count} for count in (0, 2, 100, 0)] == [
        values(told, metric) for metric in (metrics.XIDS, metrics.XIDS_REPLAYED, metrics.XID_LAST, metrics.XID_BURSTS)
    ]
    told.add(xid(A, 79), 1000.0)
    assert {(A, "79"): 1} == values(told, metrics.XIDS) == values(told, metrics.XID_BURSTS)
    assert {(A, "79"): 2} == values(told, metrics.XIDS_REPLAYED)


@pytest.mark.parametrize(
    ("times", "bursts"),
    [((0, 1, 180, 360), 1), ((0, 181), 2), ((0, 100, 281, 282, 1000), 3), ((0, 200, 100), 2)],
)
def test_bursts(times: tuple[float, ...], bursts: int) -> None:
    """Three minutes of silence end a burst; the first fault after them starts another, and is told as such."""
    told = ledger()
    begun = [told.add(xid(A, 13), time) for time in times]

    assert {(A, "13"): bursts} == values(told, metrics.XID_BURSTS)
    assert bursts == sum(begun)


def test_burst_under_way_at_the_start() -> None:
    """A burst that goes on over the exporter's start is not another one."""
    told = ledger()
    told.add(xid(A, 13), 100.0, replayed=True)
    assert not told.add(xid(A, 13), 200.0)
    assert {(A, "13"): 0} == values(told, metrics.XID_BURSTS)


def test_bursts_of_two_gpus_are_two() -> None:
    """Bursts are of one code on one GPU."""
    told = ledger()
    assert [True, True, True, False] == [told.add(xid(*it), 1.0) for it in ((A, 13), (B, 13), (A, 31), (A, 13))]


def test_families() -> None:
    """SXids and lost GPUs have metrics of their own, and no bursts."""
    told = ledger()
    told.add(Fault(Family.SXID, A, 12028, "", {"sxid": "12028", "severity": "fatal", "category": "x"}), 5.0)
    told.add(Fault(Family.BUS_LOSS, "", 0, "", {"category": "faulty_gpu"}), 6.0)

    names = {sample.metric.name for sample in told.samples()} - {FOLDED.name}
    expected = {f"gpu.sxid.{it}" for it in ("errors", "replayed", "last_timestamp")}
    expected |= {"gpu.bus.losses", "gpu.bus.losses.replayed", "gpu.bus.loss.last_timestamp"}
    assert expected == names


def test_recovery() -> None:
    """What the driver asked for last is what counts, on each GPU."""
    told = ledger()
    for device, asked in ((A, 1), (B, 2), (A, 0)):
        told.add(Fault(Family.XID, device, 154, "", {"xid": "154", "category": "information"}, recovery=asked), 1.0)

    assert {(A, ""): 0, (B, ""): 2} == values(told, metrics.RECOVERY)


def test_labels_are_declared() -> None:
    """No sample has a label that its metric does not declare."""
    told = ledger()
    told.add(xid(A, 79), 1.0)
    for number in range(1000, 1400):
        told.add(xid(A, number), 1.0)
    assert [] == [sample for sample in told.samples() if set(sample.labels) - set(sample.metric.labels)]


def test_bound() -> None:
    """Beyond its room the ledger keeps action and category alone, counts all the same, and says so."""
    told = ledger()
    devices = [f"{number:08X}:00:00.0" for number in range(2 * MOST_SERIES)]
    for device in devices:
        told.add(xid(device, 79), 1.0)
    told.add(xid(devices[0], 79), 2.0)
    told.add(xid(devices[-1], 79), 3.0)

    counted = values(told, metrics.XIDS)
    assert MOST_SERIES + 1 == len(counted)
    assert (2, MOST_SERIES + 1) == (counted[devices[0], "79"], counted["folded", "RESTART_BM"])
    [folded] = [sample.value for sample in told.samples() if sample.metric is FOLDED]
    assert MOST_SERIES == folded
    [overflow] = [it.labels for it in told.samples() if it.metric is metrics.XIDS and "overflow" in it.labels]
    assert {"action": "RESTART_BM", "category": "faulty_gpu", "overflow": "true"} == overflow


def test_undescribed_codes_leave_room() -> None:
    """Codes that nobody describes are folded early: a known one that comes after them has a series of its own."""
    told = ledger()
    for number in range(1000, 99999, 7):
        told.add(xid(A, number), 1.0)
    told.add(xid(A, 79), 1.0)

    counted = values(told, metrics.XIDS)
    assert 1 == counted[A, "79"]
    assert len(counted) < 300
    assert len(range(1000, 99999, 7)) + 1 == sum(counted.values())  # type: ignore[call-overload]


def test_threads() -> None:
    """Faults told by several threads while others look are all counted."""
    told = ledger()

    def tell() -> None:
        for number in range(2000):
            told.add(xid(A, number % 50), float(number))

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        list(told.samples())
    assert 8000 == sum(values(told, metrics.XIDS).values())  # type: ignore[call-overload]


def test_names_may_come_later() -> None:
    """A GPU whose UUID becomes known has it on what was counted before."""
    known: dict[str, str] = {}
    told = Ledger(lambda device: {"pci_bus_id": device, **known})
    told.add(xid(A, 79), 1.0)
    known["gpu_uuid"] = "GPU-1"

    labels: list[Labels] = [sample.labels for sample in told.samples() if sample.metric is metrics.XIDS]
    assert ["GPU-1"] == [it["gpu_uuid"] for it in labels]
