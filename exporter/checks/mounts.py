"""Checks of procfs and sysfs, and which other checks know nothing without them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from exporter.checks.finding import Answer, Status
from exporter.settings import Settings

_SIGN = {"procfs": "self", "sysfs": "devices"}
_OWN = {"procfs": Path("/proc"), "sysfs": Path("/sys")}

OWN: Mapping[str, tuple[str, ...]] = {
    "capabilities": ("procfs",),
    "probes": ("sysfs",),
    "uprobes": ("procfs",),
    "btf": ("sysfs",),
    "return probes": ("procfs", "sysfs"),
    "new processes": ("sysfs",),
    "pid namespace": ("procfs",),
    "memory": ("sysfs",),
    "tracefs": ("sysfs",),
}
"""The file systems at /proc and /sys that a check reads."""
GIVEN: Mapping[str, tuple[str, ...]] = {
    "uprobes": ("sysfs",),
    "pid namespace": ("procfs",),
    "mapped files": ("procfs",),
    "processes": ("procfs",),
    "nvidia": ("procfs",),
    "ipmi": ("sysfs",),
    "rdma": ("sysfs",),
    "cgroups": ("sysfs",),
}
"""The file systems at --path.procfs and --path.sysfs."""


def procfs(settings: Settings) -> Answer:
    return _mounted("procfs", "proc", settings.procfs)


def sysfs(settings: Settings) -> Answer:
    return _mounted("sysfs", "sysfs", settings.sysfs)


def unknown(check: str, settings: Settings) -> Answer | None:
    """Return the finding of a check that lacks a mounted file system, or None where the check can be made."""
    given = {"procfs": settings.procfs, "sysfs": settings.sysfs}
    needed = [_OWN[name] for name in OWN.get(check, ()) if _absent(name, _OWN[name])]
    needed += [given[name] for name in GIVEN.get(check, ()) if _absent(name, given[name])]
    if not needed:
        return None
    return Status.INFO, f"unknown: nothing can be read below {' and '.join(map(str, dict.fromkeys(needed)))}"


def _mounted(name: str, kind: str, given: Path) -> Answer:
    absent = [path for path in dict.fromkeys((_OWN[name], given)) if _absent(name, path)]
    if not absent:
        return Status.OK, f"{name} is mounted at {given}"
    remedy = f"mount -t {kind} {kind} {absent[0]}"
    if given in absent and given != _OWN[name]:
        remedy = f"mount the node's {name} at {given}, or change --path.{name}"
    return Status.FAIL, f"{name} is not mounted at {' and '.join(map(str, absent))}", remedy


def _absent(name: str, path: Path) -> bool:
    return not os.path.lexists(path / _SIGN[name])
