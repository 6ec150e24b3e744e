"""Memory errors (EDAC), sensors out of their limits (hwmon) and the state of NVMe drives, from sysfs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from exporter.faults import metrics
from exporter.model import Sample
from exporter.small_files import content

MOST = 1024
_CONTROLLER = re.compile(r"mc[0-9]{1,4}", re.ASCII)
_DIMM = re.compile(r"(?:dimm|rank)[0-9]{1,4}", re.ASCII)
_ALARM = re.compile(
    r"((?:temp|fan|in|curr|power|intrusion)[0-9]{1,3})(?:_(?:crit|emergency|lcrit|max|min|cap))?_alarm", re.ASCII
)
_NVME = re.compile(r"nvme[0-9]{1,4}", re.ASCII)
_COUNT = re.compile(r"[0-9]{1,20}", re.ASCII)


def edac(sys: Path) -> Iterator[Sample]:
    """Yield the errors of the memory controllers, by module where the driver has modules.

    Raises OSError when no EDAC driver is loaded: memory errors are unknown then, not absent.
    """
    folder = sys / "devices/system/edac/mc"
    controllers = _named(folder, _CONTROLLER)
    if not controllers:
        raise FileNotFoundError(2, "no memory controller", str(folder))
    for controller in controllers:
        labels = _labels(folder / controller, _named(folder / controller, _DIMM))
        for kind, prefix in (("corrected", "ce"), ("uncorrected", "ue")):
            total = _count(folder / controller / f"{prefix}_count")
            of_modules = 0
            for dimm, label in labels.items():
                count = _count(folder / controller / dimm / f"dimm_{prefix}_count")
                if count is not None:
                    of_modules += count
                    yield metrics.EDAC.sample(count, {"controller": controller, "dimm": label, "type": kind})
            if total is not None and (total > of_modules or not of_modules):
                # Errors without a known module; the controller's total includes those of modules.
                without = {"controller": controller, "dimm": "", "type": kind}
                yield metrics.EDAC.sample(max(0, total - of_modules), without)


def _labels(controller: Path, dimms: list[str]) -> dict[str, str]:
    """Return the label of each module, which is its own: firmware may give all the same one."""
    given = {dimm: _text(controller / dimm / "dimm_label") for dimm in dimms}
    often = Counter(given.values())
    return {dimm: label if label and often[label] == 1 else f"{label} {dimm}".strip() for dimm, label in given.items()}


def hwmon(sys: Path) -> Iterator[Sample]:
    """Yield the alarms of the machine's sensors. Raises OSError when there is no hwmon."""
    folder = sys / "class/hwmon"
    for entry in sorted(folder.iterdir())[:MOST]:
        chip = _text(entry / "name") or entry.name
        alarms: dict[str, int] = {}
        for name in _files(entry):
            if found := _ALARM.fullmatch(name):
                label = _text(entry / f"{found[1]}_label") or found[1]
                if (alarm := _count(entry / name)) is not None:
                    alarms[label] = max(alarms.get(label, 0), alarm)
        for label, alarm in alarms.items():
            yield metrics.ALARM.sample(int(alarm > 0), {"chip": f"{chip}_{entry.name}", "sensor": label})


def nvme(sys: Path) -> Iterator[Sample]:
    """Yield the states of NVMe controllers. Raises OSError when the kernel has no NVMe class."""
    folder = sys / "class/nvme"
    folder.stat()
    for device in _named(folder, _NVME):
        state = _text(folder / device / "state")
        if state:
            yield metrics.NVME_LIVE.sample(int(state == "live"), {"device": device, "state": state})


def _named(folder: Path, pattern: re.Pattern[str]) -> list[str]:
    return [name for name in _files(folder) if pattern.fullmatch(name)]


def _files(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())[:MOST]
    except NotADirectoryError:
        return []


def _count(path: Path) -> int | None:
    text = _text(path)
    return int(text) if _COUNT.fullmatch(text) else None


def _text(path: Path) -> str:
    """Return the text of a small file, printable and short, or an empty string when the file cannot be read."""
    try:
        text = content(path).strip()
    except OSError:
        return ""
    return text[:128] if text.isprintable() else ""
