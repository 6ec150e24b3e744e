"""Counts of faults: live and replayed ones, bursts, and bounds."""

from __future__ import annotations

import threading

import pytest

from exporter.faults.xid import metrics
from exporter.faults.xid.counts import MOST_SERIES, DriverCounts
from exporter.faults.xid.decode import xid
from exporter.faults.xid.report import DriverReport, Family
from exporter.model import Labels, Metric, Sample
from exporter.series import FOLDED

A, B = "00000000:3B:00.0", "00000000:5E:00.0"


def fault_counts() -> DriverCounts:
    return DriverCounts(lambda device: {"pci_bus_id": device} if device else {})


def values(fault_counts: DriverCounts, metric: Metric) -> dict[tuple[str, str], object]:
    """Returns the values of a metric by GPU and code; values of folded series by action."""
    samples = [sample for sample in fault_counts.samples() if sample.metric is metric]
    return {(it.labels.get("pci_bus_id", "folded"), code(it)): it.value for it in samples}


def code(sample: Sample) -> str:
    return sample.labels.get("xid") or sample.labels.get("sxid") or sample.labels.get("action", "")


def test_counts() -> None:
    """Every fault counts, by GPU and code, and the newest time stays though an older one comes later."""
    counts = fault_counts()
    for device, number, time in ((A, 79, 100.0), (A, 31, 200.0), (B, 31, 300.0), (B, 31, 290.0)):
        counts.add(xid(device, number), time)

    assert {(A, "79"): 1, (A, "31"): 1, (B, "31"): 2} == values(counts, metrics.XIDS)
    assert {(A, "79"): 100, (A, "31"): 200, (B, "31"): 300} == values(counts, metrics.XID_LAST)


def test_replayed() -> None:
    """A replayed fault has a time and is in no counter; the counter is there, at 0, for the next fault."""
    counts = fault_counts()
    assert not counts.add(xid(A, 79), 100.0, replayed=True)
    counts.add(xid(A, 79), 100.0, replayed=True)

    assert [{(A, "79"): count} for count in (0, 2, 100, 0)] == [
        values(counts, metric) for metric in (metrics.XIDS, metrics.XIDS_REPLAYED, metrics.XID_LAST, metrics.XID_BURSTS)
    ]
    counts.add(xid(A, 79), 1000.0)
    assert {(A, "79"): 1} == values(counts, metrics.XIDS) == values(counts, metrics.XID_BURSTS)
    assert {(A, "79"): 2} == values(counts, metrics.XIDS_REPLAYED)


@pytest.mark.parametrize(
    ("times", "bursts"),
    [((0, 1, 180, 360), 1), ((0, 181), 2), ((0, 100, 281, 282, 1000), 3), ((0, 200, 100), 2)],
)
def test_bursts(times: tuple[float, ...], bursts: int) -> None:
    """Three minutes of silence end a burst; `add` returns True for the first fault of the next one."""
    counts = fault_counts()
    begun = [counts.add(xid(A, 13), time) for time in times]

    assert {(A, "13"): bursts} == values(counts, metrics.XID_BURSTS)
    assert bursts == sum(begun)


def test_burst_under_way_at_the_start() -> None:
    """A burst that goes on over the exporter's start is not another one."""
    counts = fault_counts()
    counts.add(xid(A, 13), 100.0, replayed=True)
    assert not counts.add(xid(A, 13), 200.0)
    assert {(A, "13"): 0} == values(counts, metrics.XID_BURSTS)


def test_bursts_of_two_gpus_are_two() -> None:
    """Bursts are of one code on one GPU."""
    counts = fault_counts()
    assert [True, True, True, False] == [counts.add(xid(*it), 1.0) for it in ((A, 13), (B, 13), (A, 31), (A, 13))]


def test_families() -> None:
    """SXids and lost GPUs have metrics of their own, and no bursts."""
    counts = fault_counts()
    counts.add(DriverReport(Family.SXID, A, 12028, "", {"sxid": "12028", "severity": "fatal", "category": "x"}), 5.0)
    counts.add(DriverReport(Family.BUS_LOSS, "", 0, "", {"category": "faulty_gpu"}), 6.0)

    names = {sample.metric.name for sample in counts.samples()} - {FOLDED.name}
    expected = {f"gpu.sxid.{it}" for it in ("errors", "replayed", "last_timestamp")}
    expected |= {"gpu.bus.losses", "gpu.bus.losses.replayed", "gpu.bus.loss.last_timestamp"}
    assert expected == names


def test_recovery() -> None:
    """The driver's last request counts, on each GPU."""
    counts = fault_counts()
    for device, recovery in ((A, 1), (B, 2), (A, 0)):
        counts.add(
            DriverReport(Family.XID, device, 154, "", {"xid": "154", "category": "information"}, recovery=recovery), 1.0
        )

    assert {(A, ""): 0, (B, ""): 2} == values(counts, metrics.RECOVERY)


def test_labels_are_declared() -> None:
    """No sample has a label that its metric does not declare."""
    counts = fault_counts()
    counts.add(xid(A, 79), 1.0)
    for number in range(1000, 1400):
        counts.add(xid(A, number), 1.0)
    assert [] == [sample for sample in counts.samples() if set(sample.labels) - set(sample.metric.labels)]


def test_bound() -> None:
    """Faults beyond MOST_SERIES are counted by action and category alone, and the number of folded series is shown."""
    counts = fault_counts()
    devices = [f"{number:08X}:00:00.0" for number in range(2 * MOST_SERIES)]
    for device in devices:
        counts.add(xid(device, 79), 1.0)
    counts.add(xid(devices[0], 79), 2.0)
    counts.add(xid(devices[-1], 79), 3.0)

    counted = values(counts, metrics.XIDS)
    assert MOST_SERIES + 1 == len(counted)
    assert (2, MOST_SERIES + 1) == (counted[devices[0], "79"], counted["folded", "RESTART_BM"])
    [folded] = [sample.value for sample in counts.samples() if sample.metric is FOLDED]
    assert MOST_SERIES == folded
    [overflow] = [it.labels for it in counts.samples() if it.metric is metrics.XIDS and "overflow" in it.labels]
    assert {"action": "RESTART_BM", "category": "faulty_gpu", "overflow": "true"} == overflow


def test_undescribed_codes_leave_room() -> None:
    """Codes outside the catalog are folded early: a later code of the catalog has a series of its own."""
    counts = fault_counts()
    for number in range(1000, 99999, 7):
        counts.add(xid(A, number), 1.0)
    counts.add(xid(A, 79), 1.0)

    counted = values(counts, metrics.XIDS)
    assert 1 == counted[A, "79"]
    assert len(counted) < 300
    assert len(range(1000, 99999, 7)) + 1 == sum(counted.values())  # type: ignore[call-overload]


def test_threads() -> None:
    """Faults added by several threads during scrapes are all counted."""
    counts = fault_counts()

    def add() -> None:
        for number in range(2000):
            counts.add(xid(A, number % 50), float(number))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        list(counts.samples())
    assert 8000 == sum(values(counts, metrics.XIDS).values())  # type: ignore[call-overload]


def test_names_may_come_later() -> None:
    """A UUID that becomes known later is on the series of earlier faults."""
    known: dict[str, str] = {}
    counts = DriverCounts(lambda device: {"pci_bus_id": device, **known})
    counts.add(xid(A, 79), 1.0)
    known["gpu_uuid"] = "GPU-1"

    labels: list[Labels] = [sample.labels for sample in counts.samples() if sample.metric is metrics.XIDS]
    assert ["GPU-1"] == [it["gpu_uuid"] for it in labels]
