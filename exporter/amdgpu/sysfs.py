"""One reading of an AMD GPU in sysfs: Documentation/gpu/amdgpu of the kernel, and the comments that it takes from the
driver's source (amdgpu_pm.c, amdgpu_ras.c, amdgpu_vram_mgr.c).

A read may query the GPU's firmware and block. A file that is not there, or cannot be read, gives no sample.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path

from exporter.amdgpu import metrics
from exporter.model import Labels, Metric, Sample
from exporter.small_files import content, entries

DRIVER = "amdgpu"
MOST_CARDS, MOST_BLOCKS, MOST_SENSORS = 64, 64, 8
_MOST_TEXT = 128
_CARD = re.compile(r"card[0-9]{1,4}", re.ASCII)
BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,20}", re.ASCII)
_SIGNED = re.compile(r"-?[0-9]{1,9}", re.ASCII)
_BLOCK = re.compile(r"([a-z0-9_]{1,32})_err_count", re.ASCII)
_ERRORS = re.compile(r"^(ue|ce|de): ([0-9]{1,20})$", re.ASCII | re.MULTILINE)
_ERROR_TYPES = {"ue": "uncorrected", "ce": "corrected", "de": "deferred"}
_MEMORIES = ("vram", "vis_vram", "gtt")
_ENGINES = {"gpu": "gpu_busy_percent", "vram": "mem_busy_percent"}
_INFO = {
    "name": "product_name",
    "unique_id": "unique_id",
    "serial": "serial_number",
    "vbios": "vbios_version",
    "pci_device_id": "device",
}


def cards(sys: Path) -> list[str]:
    """Return the names of the cards that the driver amdgpu has. Raises OSError where the kernel has no DRM."""
    folder = sys / "class/drm"
    names = [it.name for it in folder.iterdir() if _CARD.fullmatch(it.name) and _driver(it) == DRIVER]
    return sorted(names, key=lambda name: int(name.removeprefix("card")))[:MOST_CARDS]


def read(path: Path) -> list[Sample]:
    """Read a card. Raises OSError when it does not exist any more, or is no PCI device (a partition of a GPU)."""
    device = path / "device"
    bus_id = device.resolve().name
    if not BUS_ID.fullmatch(bus_id):
        raise FileNotFoundError(errno.ENODEV, "no PCI device", str(path))
    labels = {"card": path.name, "pci_bus_id": bus_id}
    found = [metrics.INFO.sample(1, labels | {label: text(device / file) for label, file in _INFO.items()})]
    found += _memory(device, labels)
    suspended = text(device / "power/runtime_status") in ("suspended", "suspending")
    found.append(metrics.SUSPENDED.sample(int(suspended), labels))
    if not suspended:
        found += [*_busy(device, labels), *_sensors(device, labels), *_errors(device, labels)]
        found += _numbers(device / "pcie_replay_count", metrics.PCIE_REPLAYS, labels)
    return found


def text(path: Path) -> str:
    """Return the text of a short file, printable, or an empty string when the file cannot be read."""
    try:
        return "".join(it for it in content(path).strip()[:_MOST_TEXT] if it.isprintable())
    except OSError:
        return ""


def _driver(card: Path) -> str:
    link = card / "device/driver"
    return link.resolve().name if link.is_symlink() else ""


def _memory(device: Path, labels: Labels) -> Iterator[Sample]:
    for memory in _MEMORIES:
        own = {**labels, "memory": memory}
        yield from _numbers(device / f"mem_info_{memory}_used", metrics.MEMORY_USED, own)
        yield from _numbers(device / f"mem_info_{memory}_total", metrics.MEMORY_LIMIT, own)


def _busy(device: Path, labels: Labels) -> Iterator[Sample]:
    for engine, file in _ENGINES.items():
        percent = number(device / file)
        if percent is not None and percent <= 100:
            yield metrics.BUSY.sample(percent / 100, {**labels, "engine": engine})


def _sensors(device: Path, labels: Labels) -> Iterator[Sample]:
    """Yield the samples of the driver's hwmon device. Power is in microwatts there, temperatures in thousandths."""
    monitors = [it for it in entries(device / "hwmon")[:MOST_SENSORS] if text(it / "name") == DRIVER]
    for monitor in monitors[:1]:
        for kind, file in (("average", "power1_average"), ("momentary", "power1_input")):
            if (power := number(monitor / file)) is not None:
                yield metrics.POWER.sample(power / 1e6, {**labels, "kind": kind})
                break
        if (limit := number(monitor / "power1_cap")) is not None:
            yield metrics.POWER_LIMIT.sample(limit / 1e6, labels)
        for at in range(1, MOST_SENSORS + 1):
            degrees = _SIGNED.fullmatch(text(monitor / f"temp{at}_input"))
            if degrees:
                sensor = text(monitor / f"temp{at}_label") or f"temp{at}"
                yield metrics.TEMPERATURE.sample(int(degrees[0]) / 1000, {**labels, "sensor": sensor})
            if clock := text(monitor / f"freq{at}_label"):
                yield from _numbers(monitor / f"freq{at}_input", metrics.CLOCK, {**labels, "clock": clock})


def _errors(device: Path, labels: Labels) -> Iterator[Sample]:
    """Yield the errors of each block. While the driver cannot query them, the file has a sentence instead."""
    names = [found for it in entries(device / "ras") if (found := _BLOCK.fullmatch(it.name))]
    for name in names[:MOST_BLOCKS]:
        try:
            counts = _ERRORS.findall(content(device / "ras" / name[0]))
        except OSError:
            continue
        for kind, count in counts:
            if (value := int(count)) < 1 << 63:
                own = {**labels, "block": name[1], "error_type": _ERROR_TYPES[kind]}
                yield metrics.ERRORS.sample(value, own)


def _numbers(path: Path, metric: Metric, labels: Labels) -> Iterator[Sample]:
    value = number(path)
    if value is not None:
        yield metric.sample(value, labels)


def number(path: Path) -> int | None:
    """Return the number in a short file; None without one, or where the file cannot be read."""
    found = _NUMBER.fullmatch(text(path))
    return value if found and (value := int(found[0])) < 1 << 63 else None
