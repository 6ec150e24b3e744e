"""Faults by comparison: a counter of the hardware that has risen, a state that has become a bad one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from exporter.faults import categories as rows
from exporter.faults import metrics
from exporter.faults.ledger import Fault
from exporter.model import Kind, Metric, Sample


@dataclass(frozen=True, slots=True)
class Rise:
    """A value that only rises when something is wrong; `component` names the labels that say what failed.

    `only` are labels that the sample has to have.
    """

    name: str
    category: str
    meaning: str
    action: str
    metric: Metric
    component: tuple[str, ...]
    only: tuple[tuple[str, str], ...] = ()


RISES = (
    Rise(
        "pcie_nonfatal",
        rows.EXPANSION,
        "a PCIe device told of an error that was not corrected, though its link stayed",
        "see which device and its upstream ports; reseat it, or replace riser or device",
        metrics.AER,
        ("pci_bus_id",),
        (("type", "nonfatal"),),
    ),
    Rise(
        "pcie_fatal",
        rows.EXPANSION,
        "a PCIe device told of an error that made its link unusable",
        "drain the node; reseat the device, or replace riser or device",
        metrics.AER,
        ("pci_bus_id",),
        (("type", "fatal"),),
    ),
    Rise(
        "dimm_uncorrected",
        rows.MEMORY,
        "memory of the machine had an error that was not corrected",
        "drain the node and replace the DIMM",
        metrics.EDAC,
        ("controller", "dimm"),
        (("type", "uncorrected"),),
    ),
    Rise(
        "sensor_alarm",
        rows.CHASSIS,
        "a temperature, fan, voltage or power supply of the machine is out of its limits",
        "see the sensor's name; check fans, air flow and power supplies",
        metrics.ALARM,
        ("chip", "sensor"),
    ),
    Rise(
        "nvme_critical_warning",
        rows.SSD,
        "an NVMe drive warns of itself: spare blocks, temperature, reliability or writing",
        "replace the drive; for temperature check air flow",
        metrics.NVME_WARNING,
        ("device",),
    ),
    Rise(
        "nvme_media_errors",
        rows.SSD,
        "an NVMe drive could not give back what was written",
        "replace the drive",
        metrics.NVME_MEDIA,
        ("device",),
    ),
)
"""What sysfs counts. Corrected errors are no faults: they are in their own metrics."""


class Rises:
    """Remembers what was last seen. A counter's first value is from before and no fault; a bad state is one at once."""

    def __init__(self, tell: Callable[[Fault, int], None]) -> None:
        self._tell = tell
        self._last: dict[tuple[str, str], float] = {}

    def see(self, samples: Iterable[Sample], now: float) -> None:
        """`now` is wall time in seconds. A counter that fell began anew, and what it shows came since."""
        by_metric: dict[Metric, list[Rise]] = {}
        for rise in RISES:
            by_metric.setdefault(rise.metric, []).append(rise)
        for sample in samples:
            for rise in by_metric.get(sample.metric, ()):
                if all(sample.labels.get(name) == value for name, value in rise.only):
                    self._compare(rise, sample, now)

    def _compare(self, rise: Rise, sample: Sample, now: float) -> None:
        assert isinstance(sample.value, int | float)
        component = " ".join(part for name in rise.component if (part := sample.labels.get(name, "")))
        key, value = (rise.name, component), sample.value
        counter = sample.metric.kind is Kind.COUNTER
        before = self._last.get(key, value if counter else 0)
        self._last[key] = value
        risen = value if counter and value < before else value - before
        if risen > 0:
            self._tell(Fault(rise.category, component or "unknown", rise.name, now), int(risen) if counter else 1)
