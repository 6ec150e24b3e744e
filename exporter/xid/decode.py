"""Faults out of what NVIDIA's driver says in the kernel log.

Patterns are held against a record's beginning, never its middle: names of processes, files and devices appear in the
kernel log too, and whoever chooses them must not be able to tell us of a fault.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from exporter.kmsg.records import Record
from exporter.xid import catalog, nvlink
from exporter.xid.faults import Attribute, Family, Fault

WORDS = re.compile(b"NVRM:|SXid")
"""Every line that `Decoder` knows has one of these."""

_BUS = r"(?:PCI:)?(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_XID = re.compile(
    rf"NVRM: Xid \({_BUS}[^)]{{0,32}}\)[^:]{{0,32}}: (?P<code>\d{{1,5}})\b(?:, )?(?P<said>.*)", re.DOTALL | re.ASCII
)
_SXID = re.compile(
    rf"nvidia-nvswitch(?P<switch>\d{{1,3}}): SXid \({_BUS}\): (?P<code>\d{{1,5}}), (?P<severity>Fatal|Non-fatal)\b"
    r"(?:, Link (?P<link>\d{1,3})\b)?",
    re.ASCII,
)
_OWNER = re.compile(r"NVRM: GPU at PCI:" + _BUS.replace("(?:PCI:)?", "") + r": (?P<uuid>GPU-[0-9a-f-]{36})\s*$")
_NAMED = re.compile(rf"NVRM: (?:GPU (?:at )?|The NVIDIA GPU ){_BUS}")
_PROCESS = re.compile(r"pid='?(?P<pid>\d{1,10})\b'?(?:, name=(?P<name>.{1,15}?)(?:,|$))?", re.DOTALL | re.ASCII)
_RECOVERY = re.compile(r"changed from 0x[0-9a-f]{1,8} \(.{0,40}?\) to 0x(?P<to>[0-9a-f]{1,8})\b", re.IGNORECASE)
_LOST = "fallen off the bus"
_SAME_MESSAGE_NS = 1_000_000_000


def bus_id(text: str) -> str:
    """A PCI bus id in the form in which NVML prints it; ValueError when it is none."""
    domain, bus, rest = text.split(":")
    device, _, function = rest.partition(".")
    return f"{int(domain, 16):08X}:{int(bus, 16):02X}:{int(device, 16):02X}.{int(function or '0', 16):X}"


class Decoder:
    """Record after record of one log: older drivers tell of a lost GPU in several of them."""

    def __init__(self) -> None:
        self._named, self._named_at = "", 0

    def fault(self, record: Record) -> Fault | None:
        """The fault of which a record tells; None when it tells of none."""
        text = record.text
        if found := _XID.match(text):
            return _xid(bus_id(found["bus"]), int(found["code"]), found["said"])
        if found := _SXID.match(text):
            return _sxid(found)
        if not text.startswith("NVRM:"):
            return None
        named = _NAMED.match(text)
        if named:
            self._named, self._named_at = bus_id(named["bus"]), record.time_ns
        if _LOST not in text:
            return None
        device = self._named if record.time_ns - self._named_at <= _SAME_MESSAGE_NS else ""
        return Fault(Family.BUS_LOSS, device, 0, "the GPU has left the bus", {"category": catalog.FAULTY_GPU})

    @staticmethod
    def owner(record: Record) -> tuple[str, str] | None:
        """The bus id and the UUID of a GPU that the driver is about to tell an Xid of; None for any other record."""
        found = _OWNER.match(record.text)
        return (bus_id(found["bus"]), found["uuid"]) if found else None


def xid(device: str, code: int) -> Fault:
    """An Xid of which no more than its code is known."""
    return _xid(device, code, "")


def _xid(device: str, code: int, said: str) -> Fault:
    known = catalog.xid(code)
    labels = {"xid": str(code), "action": known.action, "category": known.category}
    details: dict[str, Attribute] = {}
    recovery = None
    if code in nvlink.CODES and (decoded := nvlink.decode(said)):
        labels |= {"action": decoded.action, "category": decoded.category, "unit": decoded.unit}
        details |= {
            "gpu.xid.severity": decoded.severity,
            "gpu.xid.link": decoded.link,
            "gpu.xid.status": f"{decoded.status:#x}",
        }
        if decoded.reason is not None:
            details["gpu.xid.reason"] = decoded.reason
    elif code == 154 and (found := _RECOVERY.search(said)):
        recovery = int(found["to"], 16)
        labels["action"] = catalog.RECOVERIES.get(recovery, known.action)
    process = _PROCESS.match(said)
    return Fault(
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


def _sxid(found: re.Match[str]) -> Fault:
    severity = found["severity"].lower().replace("-", "")
    labels: Mapping[str, str] = {
        "sxid": found["code"].lstrip("0") or "0",
        "severity": severity,
        "category": catalog.NETWORK,
        "nvswitch": found["switch"],
    }
    details: dict[str, Attribute] = {"gpu.sxid.link": int(found["link"])} if found["link"] else {}
    text = f"NVSwitch {found['switch']} reports a {severity} error"
    return Fault(Family.SXID, bus_id(found["bus"]), int(found["code"]), text, labels, details)
