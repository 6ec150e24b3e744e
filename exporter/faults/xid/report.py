"""A report of NVIDIA's driver, from either source: the kernel log, or an event of NVML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from exporter.faults.ledger import Fault
from exporter.model import Labels

Attribute = str | int | float | bool


class Family(Enum):
    XID = "xid"
    SXID = "sxid"
    BUS_LOSS = "bus_loss"


@dataclass(frozen=True, slots=True)
class DriverReport:
    """A report of a fault by NVIDIA's driver.

    `device` is a PCI bus id in NVML's form (00000000:3B:00.0), a GPU's UUID when only the UUID is known, or empty.
    `labels` are those of the family's metrics, `details` are attributes of the span only. `pid` and `name` are the
    process that the driver names; None and empty without one. `recovery` is the number that an Xid 154 requests.
    """

    family: Family
    device: str
    code: int
    text: str
    labels: Labels
    details: Mapping[str, Attribute] = field(default_factory=dict)
    pid: int | None = None
    name: str = ""
    recovery: int | None = None

    @property
    def action(self) -> str:
        """Action to take, of catalog.ACTIONS; empty when the catalog has none."""
        return self.labels.get("action", "")

    def fault(self, time: float, replayed: bool) -> Fault:
        """Return the fault of the node, of wall time `time` in seconds."""
        signal = self.family.value if self.family is Family.BUS_LOSS else f"{self.family.value}_{self.code}"
        return Fault(self.labels["category"], self.device or "unknown", signal, time, replayed)
