"""Decoding of faults from the messages of NVIDIA's driver in the kernel log.

Patterns match the beginning of a record, never its middle: names of processes, files and devices appear in the kernel
log too, and nobody who chooses such a name must be able to forge a fault.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from exporter.faults.xid import catalog, nvlink
from exporter.faults.xid.report import Attribute, DriverReport, Family
from exporter.kmsg.records import Record

WORDS = re.compile(b"NVRM:|SXid")
"""Found in every line that `FaultDecoder` knows."""

_BUS = r"(?:PCI:)?(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_XID = re.compile(
    rf"NVRM: Xid \({_BUS}[^)]{{0,32}}\)[^:]{{0,32}}: (?P<code>\d{{1,5}})\b(?:, )?(?P<details>.*)", re.DOTALL | re.ASCII
)
_SXID = re.compile(
    rf"nvidia-nvswitch(?P<switch>\d{{1,3}}): SXid \({_BUS}\): (?P<code>\d{{1,5}}), (?P<severity>Fatal|Non-fatal)\b"
    r"(?:, Link (?P<link>\d{1,3})\b)?",
    re.ASCII,
)
_OWNER = re.compile(r"NVRM: GPU at PCI:" + _BUS.replace("(?:PCI:)?", "") + r": (?P<uuid>GPU-[0-9a-f-]{36})\s*$")
_NAMED = re.compile(rf"NVRM: (?:GPU (?:at )?|The NVIDIA GPU ){_BUS}")
_LOST = re.compile(
    rf"(?:{_NAMED.pattern}[\w\s().,:-]{{0,200}}?|NVRM: (?:\(PCI ID: [0-9a-fA-F:]{{9}}\) )?(?:GPU |installed in this )?"
    r"(?:system )?(?:has )?)\bfallen off the bus",
    re.ASCII,
)
_PROCESS = re.compile(r"pid='?(?P<pid>\d{1,10})\b'?(?:, name=(?P<name>.{1,15}?)(?:,|$))?", re.DOTALL | re.ASCII)
_RECOVERY = re.compile(r"changed from 0x[0-9a-f]{1,8} \(.{0,40}?\) to 0x(?P<to>[0-9a-f]{1,8})\b", re.IGNORECASE)
_SAME_MESSAGE_NS = 1_000_000_000


def bus_id(text: str) -> str:
    """Returns a PCI bus id in the form that NVML prints. Raises ValueError for text of another form."""
    domain, bus, rest = text.split(":")
    device, _, function = rest.partition(".")
    return f"{int(domain, 16):08X}:{int(bus, 16):02X}:{int(device, 16):02X}.{int(function or '0', 16):X}"


class FaultDecoder:
    """Decoder of the records of one log, in order: older drivers report a lost GPU in several records."""

    def __init__(self) -> None:
        self._named, self._named_at = "", 0

    def report(self, record: Record) -> DriverReport | None:
        """Returns what a record reports; None for a record without a fault."""
        text = record.text
        if found := _XID.match(text):
            return _xid(bus_id(found["bus"]), int(found["code"]), found["details"])
        if found := _SXID.match(text):
            return _sxid(found)
        named = _NAMED.match(text)
        if named:
            self._named, self._named_at = bus_id(named["bus"]), record.time_ns
        if not _LOST.match(text):
            return None
        device = self._named if record.time_ns - self._named_at <= _SAME_MESSAGE_NS else ""
        return DriverReport(Family.BUS_LOSS, device, 0, "the GPU has left the bus", {"category": catalog.FAULTY_GPU})

    @staticmethod
    def owner(record: Record) -> tuple[str, str] | None:
        """Returns bus id and UUID of a GPU, which the driver prints just before an Xid; None for any other record."""
        found = _OWNER.match(record.text)
        return (bus_id(found["bus"]), found["uuid"]) if found else None


def xid(device: str, code: int) -> DriverReport:
    """Returns the report of an Xid without a message."""
    return _xid(device, code, "")


def _xid(device: str, code: int, message: str) -> DriverReport:
    known = catalog.xid(code)
    labels = {"xid": str(code), "action": known.action, "category": known.category}
    details: dict[str, Attribute] = {}
    recovery = None
    if code in nvlink.CODES and (decoded := nvlink.decode(message)):
        labels |= {"action": decoded.action, "category": decoded.category, "unit": decoded.unit}
        details |= {
            "gpu.xid.severity": decoded.severity,
            "gpu.xid.link": decoded.link,
            "gpu.xid.status": f"{decoded.status:#x}",
        }
        if decoded.reason is not None:
            details["gpu.xid.reason"] = decoded.reason
    elif code == 154 and (found := _RECOVERY.search(message)):
        recovery = int(found["to"], 16)
        labels["action"] = catalog.RECOVERIES.get(recovery, known.action)
    process = _PROCESS.match(message)
    return DriverReport(
        Family.XID,
        device,
        code,
        known.text,
        {name: value for name, value in labels.items() if value},
        details,
        int(process["pid"]) if process else None,
        (process["name"] or "").replace("<unknown>", "") if process else "",
        recovery,
    )


def _sxid(found: re.Match[str]) -> DriverReport:
    severity = found["severity"].lower().replace("-", "")
    labels: Mapping[str, str] = {
        "sxid": found["code"].lstrip("0") or "0",
        "severity": severity,
        "category": catalog.NETWORK,
        "nvswitch": found["switch"],
    }
    details: dict[str, Attribute] = {"gpu.sxid.link": int(found["link"])} if found["link"] else {}
    text = f"NVSwitch {found['switch']} reports a {severity} error"
    return DriverReport(Family.SXID, bus_id(found["bus"]), int(found["code"]), text, labels, details)
