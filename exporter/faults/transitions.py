"""Faults found by comparing two readings: a hardware counter that has increased, a state that has turned bad."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from exporter.faults import categories as rows
from exporter.faults import metrics
from exporter.faults.ledger import Fault
from exporter.infiniband import metrics as rdma
from exporter.model import Kind, Metric, Sample
from exporter.nvml import metrics as gpu


@dataclass(frozen=True, slots=True)
class Condition:
    """A fault condition on the samples of `metric`; `component` names the labels that identify the failed component.

    `only` are labels that a sample must have. For a counter each increase is a fault. A gauge is a state: bad above
    `most`, or below `least` where that is set; of `bits` each bit is a state. With `unused` a state is a fault only
    after it was good, because an unused part of the machine may stay in the bad state for ever. `alert` names an alert
    on the metric itself; other conditions are covered by alerts on accel_node_fault_last_timestamp_seconds.
    """

    name: str
    category: str
    meaning: str
    action: str
    metric: Metric
    component: tuple[str, ...]
    only: tuple[tuple[str, str], ...] = ()
    most: int = 0
    least: int | None = None
    bits: bool = False
    unused: bool = False
    alert: str = ""


_GPU = ("gpu_uuid",)
_PORT = ("device", "port")
_UNHEALTHY = "GpuUnhealthy"
CONDITIONS: tuple[Condition, ...] = (
    Condition(
        "pcie_nonfatal",
        rows.EXPANSION,
        "a PCIe device reported an error that was not corrected, though its link stayed up",
        "see which device and its upstream ports; reseat it, or replace riser or device",
        metrics.AER,
        ("pci_bus_id",),
        (("type", "nonfatal"),),
    ),
    Condition(
        "pcie_fatal",
        rows.EXPANSION,
        "a PCIe device reported an error that made its link unusable",
        "drain the node; reseat the device, or replace riser or device",
        metrics.AER,
        ("pci_bus_id",),
        (("type", "fatal"),),
    ),
    Condition(
        "dimm_uncorrected",
        rows.MEMORY,
        "memory of the machine had an error that was not corrected",
        "drain the node and replace the DIMM",
        metrics.EDAC,
        ("controller", "dimm"),
        (("type", "uncorrected"),),
    ),
    Condition(
        "sensor_alarm",
        rows.CHASSIS,
        "a temperature, fan, voltage or power supply of the machine is out of its limits",
        "see the sensor's name; check fans, air flow and power supplies",
        metrics.ALARM,
        ("chip", "sensor"),
    ),
    *(
        Condition(
            f"ipmi_{name}",
            category,
            f"the management controller reports that a sensor of {what} is critical",
            action,
            metrics.IPMI,
            ("sensor",),
            (("category", category),),
            most=1,
        )
        for name, category, what, action in (
            ("chassis", rows.CHASSIS, "temperature, fans, voltage or the board", "check fans, air flow and the board"),
            ("power_supply", rows.POWER, "a power supply", "check its cable and feed; replace it"),
            ("slot", rows.EXPANSION, "a slot, a card or the bus", "reseat the card, or replace riser or card"),
            ("processor", rows.CPU, "a CPU", "read the controller's event log; replace the CPU when it comes back"),
            ("memory", rows.MEMORY, "a memory module", "read the controller's event log; replace the module"),
            ("drive", rows.SSD, "a drive bay", "replace the drive"),
        )
    ),
    Condition(
        "nvme_not_live",
        rows.SSD,
        "an NVMe drive's controller is not live: it is resetting, dead or being removed",
        "see the kernel log beside it; drain the node and replace the drive when it stays so",
        metrics.NVME_LIVE,
        ("device",),
        least=1,
    ),
    Condition(
        "nvme_critical_warning",
        rows.SSD,
        "an NVMe drive warns of itself: spare blocks, temperature, reliability or writing",
        "replace the drive; for temperature check air flow",
        metrics.NVME_WARNING,
        ("device",),
        bits=True,
    ),
    Condition(
        "nvme_media_errors",
        rows.SSD,
        "an NVMe drive could not return data that had been written",
        "replace the drive",
        metrics.NVME_MEDIA,
        ("device",),
    ),
    Condition(
        "rdma_link_down",
        rows.NETWORK,
        "a link of an RDMA device that was active is not any more",
        "see the switch's side; cable, module, or the switch itself when many nodes report it",
        rdma.STATE,
        _PORT,
        least=4,
        unused=True,
        alert="RdmaLinkDown",
    ),
    Condition(
        "rdma_link_flap",
        rows.NETWORK,
        "a link of an RDMA device went down, if only for a moment",
        "once may be the switch's maintenance; again and again is cable or module",
        rdma.DOWNED,
        _PORT,
    ),
    Condition(
        "gpu_hbm_uncorrected",
        rows.HBM,
        "NVML counts an error of a GPU's memory that ECC could not correct",
        "end its jobs and reset the GPU, so that the row is replaced",
        gpu.ECC,
        _GPU,
        (("error_type", "uncorrected"), ("lifetime", "volatile"), ("location", "dram")),
        alert="GpuEccUncorrectable",
    ),
    Condition(
        "gpu_row_remap_failed",
        rows.HBM,
        "a row of a GPU's memory could not be replaced by a spare one",
        "replace the GPU",
        gpu.REMAP_FAILURE,
        _GPU,
        alert="GpuRowRemapFailed",
    ),
    *(
        Condition(
            f"gpu_sram_{kind}",
            rows.SRAM,
            f"NVML counts an error of a GPU's caches or registers that {kind.upper()} found and could not correct",
            "reset the GPU; replace it when gpu_ecc_sram_threshold_exceeded is 1",
            gpu.ECC,
            _GPU,
            (("error_type", f"uncorrected_{kind}"), ("lifetime", "volatile"), ("location", "sram")),
            alert="GpuEccUncorrectable",
        )
        for kind in ("parity", "secded")
    ),
    *(
        Condition(f"gpu_{state}", category, meaning, action, gpu.STATUS, _GPU, (("state", state),), alert=alert)
        for state, category, meaning, action, alert in (
            (
                "lost",
                rows.FAULTY_GPU,
                "a GPU does not answer NVML any more",
                "reboot; reseat or replace it",
                _UNHEALTHY,
            ),
            ("failed", rows.FAULTY_GPU, "a GPU needs a reset, or nothing of it can be read", "reset it", _UNHEALTHY),
            (
                "stalled",
                rows.PROCESSOR,
                "an NVML call about a GPU does not return, which its firmware has to answer",
                "drain the node; reset the GPU or reboot",
                "GpuNvmlStalled",
            ),
        )
    ),
    Condition(
        "gpu_recovery_asked",
        rows.FAULTY_GPU,
        "the driver requests a recovery of a GPU (gpu_recovery_action)",
        "do it as soon as its jobs have ended",
        gpu.RECOVERY,
        _GPU,
        alert="GpuRecoveryActionNeeded",
    ),
)
"""Conditions on values of sysfs and NVML. Corrected errors are no faults: they are in their own metrics."""


class Transitions:
    """Detects conditions by comparing each reading with the one before. A fault in the first reading is replayed."""

    def __init__(self, add: Callable[[Fault, int], None]) -> None:
        """`add` receives each fault and its number of occurrences."""
        self._add = add
        self._last: dict[tuple[str, str], float] = {}
        self._lasting: set[tuple[str, str]] = set()

    def observe(self, samples: Iterable[Sample], now: float) -> None:
        """Compare one reading, taken at the wall time `now` in seconds. A bad state that lasts occurs 0 times more."""
        by_metric: dict[Metric, list[Condition]] = {}
        for condition in CONDITIONS:
            by_metric.setdefault(condition.metric, []).append(condition)
        for sample in samples:
            for condition in by_metric.get(sample.metric, ()):
                if all(sample.labels.get(name) == value for name, value in condition.only):
                    self._compare(condition, sample, now)

    def _compare(self, condition: Condition, sample: Sample, now: float) -> None:
        assert isinstance(sample.value, int | float)
        parts = (sample.labels.get(name, "") for name in condition.component)
        component = " ".join(filter(None, parts)) or "unknown"
        least = condition.least
        value = max(0, sample.value - condition.most) if least is None else int(sample.value < least)
        before = self._last.get((condition.name, component))
        self._last[condition.name, component] = value
        fault = Fault(condition.category, component, condition.name, now)
        if sample.metric.kind is Kind.COUNTER:
            if before is not None and (increase := value if value < before else value - before):
                self._add(fault, int(increase))
        else:
            self._state(condition, fault, before, value)

    def _state(self, condition: Condition, fault: Fault, before: float | None, value: float) -> None:
        key = (condition.name, fault.component)
        if not value:
            self._lasting.discard(key)
        elif before is None and not condition.unused:
            self._lasting.add(key)
            self._add(replace(fault, replayed=True), 1)
        elif before is not None and (int(value) & ~int(before) if condition.bits else value > before):
            self._lasting.add(key)
            self._add(fault, 1)
        elif key in self._lasting:
            self._add(fault, 0)


class KeptTransitions:
    """The transitions of each source. They outlast the source: a lasting condition is no new one after a reload."""

    MOST_SOURCES = 1024

    def __init__(self, add: Callable[[Fault, int], None]) -> None:
        """`add` is that of Transitions."""
        self._add = add
        self._of: dict[str, Transitions] = {}

    def of(self, source: str) -> Transitions:
        """Return a source's transitions. Those of the source that was first seen longest ago make room."""
        if source not in self._of and len(self._of) >= self.MOST_SOURCES:
            del self._of[next(iter(self._of))]
        return self._of.setdefault(source, Transitions(self._add))
