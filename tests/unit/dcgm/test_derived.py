"""Readings over several snapshots."""

from __future__ import annotations

from exporter.compat.dcgm.derived import MOST_XIDS, WINDOW_SECONDS, Derived
from exporter.nvml.snapshot import Event, GpuSnapshot
from tests.unit.dcgm.gpus import gpu, snapshot


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def xid(number: int, index: int = 0, kind: str = "xid") -> Event:
    return Event(f"GPU-{index}", 0.0, kind, number)


def test_xids() -> None:
    """Each GPU has its last Xid, counts by Xid, and counts of the last five minutes; 0 before the first Xid."""
    clock = Clock()
    derived = Derived(clock)
    assert (0, {}) == (derived.readings("GPU-0")["last_xid"], derived.readings("GPU-0")["xids"])

    for number in (13, 13, 79):
        derived.event(xid(number))
    derived.event(xid(48, 1))
    derived.event(xid(8, kind="ecc_double_bit"))
    clock.now += WINDOW_SECONDS + 1
    derived.event(xid(31))

    readings = derived.readings("GPU-0")
    assert (31, {"13": 2, "79": 1, "31": 1}) == (readings["last_xid"], readings["xids"])
    assert {"31": 1} == readings["xids_in_window"]
    assert 48 == derived.readings("GPU-1")["last_xid"]


def test_xids_are_bounded() -> None:
    """Counted numbers of Xids are bounded; the last Xid is known all the same."""
    derived = Derived()
    for number in range(MOST_XIDS + 50):
        derived.event(xid(number))

    assert MOST_XIDS == len(derived.readings("GPU-0")["xids"])  # type: ignore[arg-type]
    assert MOST_XIDS + 49 == derived.readings("GPU-0")["last_xid"]


def test_clock_events() -> None:
    """Readings with a reason are counted, and how often a reason began; one of the first reading did not begin."""
    clock = Clock()
    derived = Derived(clock)
    for at, reasons in ((1000.0, 0x4), (1010.0, 0x4), (1010.0, 0x4), (1020.0, 0x1), (1030.0, 0x24), (1040.0, 0)):
        clock.now = at
        derived.look(snapshot(gpu(at=at, fast={"clocks_event_reasons": reasons})))

    readings = derived.readings("GPU-0")
    assert {"power_cap": 3, "gpu_idle": 1, "sw_thermal": 1} == readings["clock_events"]
    assert {"gpu_idle": 1, "power_cap": 1, "sw_thermal": 1} == readings["clock_events_begun"]
    clock.now = 1010.0 + WINDOW_SECONDS + 5
    assert {"gpu_idle": 1, "power_cap": 1, "sw_thermal": 1} == derived.readings("GPU-0")["clock_events"]


def kib(tx: int | None, rx: int | None, at: float, links: dict[int, dict[str, int]] | None = None) -> GpuSnapshot:
    return snapshot(gpu(at=at, fast={"nvlink_tx_kib": tx, "nvlink_rx_kib": rx}, links=links))


def test_nvlink_rate() -> None:
    """The rate is that of DCGM: KiB of both directions since the reading before, by seconds and by 1000."""
    derived = Derived()
    derived.look(kib(1000, 1000, 100.0))
    assert "nvlink_mb_per_s" not in derived.readings("GPU-0")

    for _ in range(2):
        derived.look(kib(501_000, 251_000, 110.0))
        assert 75.0 == derived.readings("GPU-0")["nvlink_mb_per_s"]


def test_no_rate_from_a_counter_that_fell() -> None:
    """After a reload of the driver there is no rate before two further readings."""
    derived = Derived()
    for at, total in ((100.0, 9000), (110.0, 10), (120.0, 10_010)):
        derived.look(kib(total, 0, at))
        if at == 110:
            assert "nvlink_mb_per_s" not in derived.readings("GPU-0")
    assert 1.0 == derived.readings("GPU-0")["nvlink_mb_per_s"]


def test_no_rate_without_readings() -> None:
    """Without readings the last rate is not repeated, and no rate spans the gap."""
    derived = Derived()
    derived.look(kib(0, 0, 100.0))
    derived.look(kib(1000, 0, 110.0))
    derived.look(snapshot(gpu(state="lost")))
    assert "nvlink_mb_per_s" not in derived.readings("GPU-0")

    derived.look(kib(9000, 0, 120.0))
    assert "nvlink_mb_per_s" not in derived.readings("GPU-0")


def test_links() -> None:
    """Each link has a rate of its own; with readings of links only, as on NVLink 5, the total is their sum."""
    derived = Derived()
    for at, factor in ((100.0, 1), (110.0, 2)):
        links = {0: {"tx_bytes": 1024_000 * factor, "rx_bytes": 0}, 1: {"tx_kib": 500 * factor, "rx_kib": 500 * factor}}
        derived.look(kib(None, None, at, links=links))

    readings = derived.readings("GPU-0")
    assert (0.1, 0.1, 0.2) == tuple(readings[f"nvlink_{key}mb_per_s"] for key in ("0_", "1_", ""))


def test_missing_gpus_are_forgotten() -> None:
    """A GPU that is no longer in snapshots is forgotten."""
    derived = Derived()
    derived.event(xid(79, 7))
    derived.look(snapshot(gpu(0)))

    assert 0 == derived.readings("GPU-7")["last_xid"]
