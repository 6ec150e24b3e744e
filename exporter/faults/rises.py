"""Faults by comparison: a counter of the hardware that has risen, a state that has become a bad one."""

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
class Rise:
    """A value that only rises when something is wrong; `component` names the labels that say what failed.

    `only` are labels that the sample has to have. A state is bad above `most`, one with a `least` below that. One that
    may be bad for ever where nothing is used (`unused`) is a fault only after it was good. `alert` looks at the metric
    itself; without it one looks at node_fault_last_timestamp_seconds.
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
    unused: bool = False
    alert: str = ""


_GPU = ("gpu_uuid",)
_PORT = ("device", "port")
_UNHEALTHY = "GpuUnhealthy"
RISES: tuple[Rise, ...] = (
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
    *(
        Rise(
            f"ipmi_{name}",
            category,
            f"the management controller says that a sensor of {what} is critical",
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
    Rise(
        "nvme_not_live",
        rows.SSD,
        "an NVMe drive's controller is not live: it is resetting, dead or being removed",
        "see the kernel log beside it; drain the node and replace the drive when it stays so",
        metrics.NVME_LIVE,
        ("device",),
        least=1,
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
    Rise(
        "rdma_link_down",
        rows.NETWORK,
        "a link of an RDMA device that was active is not any more",
        "see the switch's side; cable, module, or the switch itself when many nodes tell it",
        rdma.STATE,
        _PORT,
        least=4,
        unused=True,
        alert="RdmaLinkDown",
    ),
    Rise(
        "rdma_link_flap",
        rows.NETWORK,
        "a link of an RDMA device went down, if only for a moment",
        "once may be the switch's maintenance; again and again is cable or module",
        rdma.DOWNED,
        _PORT,
    ),
    Rise(
        "gpu_hbm_uncorrected",
        rows.HBM,
        "NVML counts an error of a GPU's memory that ECC could not correct",
        "end its jobs and reset the GPU, so that the row is replaced",
        gpu.ECC,
        _GPU,
        (("error_type", "uncorrected"), ("lifetime", "volatile"), ("location", "dram")),
        alert="GpuEccUncorrectable",
    ),
    Rise(
        "gpu_row_remap_failed",
        rows.HBM,
        "a row of a GPU's memory could not be replaced by a spare one",
        "replace the GPU",
        gpu.REMAP_FAILURE,
        _GPU,
        alert="GpuRowRemapFailed",
    ),
    *(
        Rise(
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
        Rise(f"gpu_{state}", category, meaning, action, gpu.STATUS, _GPU, (("state", state),), alert=alert)
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
    Rise(
        "gpu_recovery_asked",
        rows.FAULTY_GPU,
        "the driver asks for a recovery of a GPU (gpu_recovery_action)",
        "do it as soon as its jobs have ended",
        gpu.RECOVERY,
        _GPU,
        alert="GpuRecoveryActionNeeded",
    ),
)
"""What sysfs and NVML count. Corrected errors are no faults: they are in their own metrics."""


class Rises:
    """Remembers what was last seen: what was there at the first look was there before, and does not count as new."""

    def __init__(self, tell: Callable[[Fault, int], None]) -> None:
        self._tell = tell
        self._last: dict[tuple[str, str], float] = {}
        self._lasting: set[tuple[str, str]] = set()

    def see(self, samples: Iterable[Sample], now: float) -> None:
        """`now` is wall time in seconds. A bad state that lasts is told at each look, 0 times: it is still there."""
        by_metric: dict[Metric, list[Rise]] = {}
        for rise in RISES:
            by_metric.setdefault(rise.metric, []).append(rise)
        for sample in samples:
            for rise in by_metric.get(sample.metric, ()):
                if all(sample.labels.get(name) == value for name, value in rise.only):
                    self._compare(rise, sample, now)

    def _compare(self, rise: Rise, sample: Sample, now: float) -> None:
        assert isinstance(sample.value, int | float)
        component = " ".join(part for name in rise.component if (part := sample.labels.get(name, ""))) or "unknown"
        value = max(0, sample.value - rise.most) if rise.least is None else int(sample.value < rise.least)
        before = self._last.get((rise.name, component))
        self._last[rise.name, component] = value
        fault = Fault(rise.category, component, rise.name, now)
        if sample.metric.kind is Kind.COUNTER:
            if before is not None and (risen := value if value < before else value - before):
                self._tell(fault, int(risen))
        else:
            self._state(rise, fault, before, value)

    def _state(self, rise: Rise, fault: Fault, before: float | None, value: float) -> None:
        key = (rise.name, fault.component)
        if not value:
            self._lasting.discard(key)
        elif before is None and not rise.unused:
            self._lasting.add(key)
            self._tell(replace(fault, replayed=True), 1)
        elif before is not None and value > before:
            self._lasting.add(key)
            self._tell(fault, 1)
        elif key in self._lasting:
            self._tell(fault, 0)
