"""The machine itself: boot time, CPUs and memory, a scheduled shutdown, and reports of other programs."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from exporter.faults import categories, metrics
from exporter.model import Sample
from exporter.small_files import content

SCHEDULED = Path("/run/systemd/shutdown/scheduled")
"""Written by systemd-logind (shutdown(8)): USEC= and MODE= of a shutdown to come."""
MOST_REPORTS = 256
DEVICES = ("gpu", "rdma_port", "nvlink")
"""Kinds of devices that can be expected of a node."""
_NUMBER = re.compile(r"[0-9]{1,6}", re.ASCII)
_BOOT_ID = re.compile(r"[0-9a-f-]{36}", re.ASCII)
_BOOT_TIME = re.compile(r"^btime ([0-9]{1,20})$", re.MULTILINE | re.ASCII)
_USEC = re.compile(r"^USEC=([0-9]{1,20})$", re.MULTILINE | re.ASCII)
_MODE = re.compile(r"^MODE=([a-z-]{1,20})$", re.MULTILINE | re.ASCII)
_RANGES = re.compile(r"[0-9]{1,6}(?:-[0-9]{1,6})?(?:,[0-9]{1,6}(?:-[0-9]{1,6})?)*", re.ASCII)
_MEMORY = re.compile(r"^MemTotal: +([0-9]{1,15}) kB$", re.MULTILINE | re.ASCII)
_REPORT = re.compile(r"([a-z0-9_]{1,64})\.([\w.:-]{1,64})", re.ASCII)
_TIME = re.compile(r"[0-9]{1,12}", re.ASCII)


def boot(proc: Path) -> Iterator[Sample]:
    """Yield the time and the id of the kernel's boot. Raises OSError when /proc cannot be read."""
    identity = (proc / "sys/kernel/random/boot_id").read_text(errors="replace").strip()
    if (found := _BOOT_TIME.search((proc / "stat").read_text(errors="replace"))) and _BOOT_ID.fullmatch(identity):
        yield metrics.BOOT.sample(int(found[1]), {"boot_id": identity})


def shutdown(scheduled: Path) -> Iterator[Sample]:
    """Yield the scheduled shutdown, if there is one. Raises OSError when the file `scheduled` cannot be read."""
    try:
        with scheduled.open("rb") as file:
            text = file.read(4096).decode("utf-8", "replace")
    except FileNotFoundError:
        return
    if (at := _USEC.search(text)) and (mode := _MODE.search(text)):
        yield metrics.SHUTDOWN.sample(int(at[1]) / 1e6, {"mode": mode[1]})


def processors(sys: Path) -> Iterator[Sample]:
    """Yield the number of online CPUs. Raises OSError when sysfs has no list of them."""
    path = sys / "devices/system/cpu/online"
    text = content(path).strip()
    if not _RANGES.fullmatch(text):
        raise OSError(errno.EINVAL, "is no list of CPUs", str(path))
    ends = [part.partition("-")[::2] for part in text.split(",")]
    yield metrics.CPUS.sample(sum(int(last or first) - int(first) + 1 for first, last in ends))


def memory(proc: Path) -> Iterator[Sample]:
    """Yield the size of the kernel's memory. Raises OSError when /proc/meminfo has no MemTotal."""
    path = proc / "meminfo"
    if not (found := _MEMORY.search(path.read_text(errors="replace"))):
        raise OSError(errno.EINVAL, "has no MemTotal", str(path))
    yield metrics.MEMORY.sample(int(found[1]) * 1024)


def reports(folder: Path) -> Iterator[Sample]:
    """Yield the reports of other programs, one file CATEGORY.COMPONENT each.

    Raises OSError when the folder cannot be read or a file is not named like that.
    """
    known = {it.label for it in categories.CATEGORIES}
    for path in sorted(folder.iterdir())[:MOST_REPORTS]:
        if path.name.startswith("."):
            continue
        found = _REPORT.fullmatch(path.name)
        if not found or found[1] not in known:
            raise OSError(errno.EINVAL, "is not named CATEGORY.COMPONENT (docs/faults.md)", str(path))
        if since := _since(path):
            yield metrics.REPORT.sample(since, {"category": found[1], "component": found[2]})


def _since(path: Path) -> float:
    """Return the Unix time in a file, or the time of the file's last change; 0 when it is missing or not regular."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return 0
        text = os.read(descriptor, 64).decode("ascii", "replace").strip()
        return int(text) if _TIME.fullmatch(text) else status.st_mtime
    finally:
        os.close(descriptor)


def expected(text: str) -> list[Sample]:
    """Return the devices that the node should have, from KIND=NUMBER, … with kinds of DEVICES.

    Raises ValueError when the text is anything else.
    """
    numbers: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        kind, _, number = (it.strip() for it in part.partition("="))
        if kind not in DEVICES or kind in numbers or not _NUMBER.fullmatch(number):
            raise ValueError(f"{part!r} is not KIND=NUMBER, each kind once; kinds are {', '.join(DEVICES)}")
        numbers[kind] = int(number)
    return [metrics.EXPECTED.sample(number, {"kind": kind}) for kind, number in numbers.items()]


def active_test(stamp: Path) -> Iterator[Sample]:
    """Yield the time at which an active test of the GPUs last passed. Raises OSError when `stamp` does not exist."""
    yield metrics.ACTIVE_TEST.sample(stamp.stat().st_mtime)
