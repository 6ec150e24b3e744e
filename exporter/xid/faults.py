"""What can be counted: a fault, whoever told it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from exporter.model import Labels

Attribute = str | int | float | bool


class Family(Enum):
    XID = "xid"
    SXID = "sxid"
    BUS_LOSS = "bus_loss"


@dataclass(frozen=True, slots=True)
class Fault:
    """`device` is a PCI bus id as NVML prints it (00000000:3B:00.0), a GPU's UUID when only that is known, or empty.

    `labels` are the family's own, `details` what only its span carries. `pid` and `name` are the process that the
    driver names, None and empty when it names none; `recovery` is the number that an Xid 154 asks for.
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
        """What to do, of catalog.ACTIONS; empty when nothing is known."""
        return self.labels.get("action", "")
