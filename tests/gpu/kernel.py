"""1. Does this kernel load BPF programs and uprobes?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from exporter.bpf import privileges
from exporter.bpf.calibrate import calibrate
from exporter.bpf.libbpf import BpfError, run_time_statistics
from exporter.bpf.multi import supported
from exporter.model import Unavailable
from tests.gpu.machine import Machine
from tests.gpu.outcome import FAILED, OK, REPORTED, Row

NUMBER = 1
BTF = Path("/sys/kernel/btf/vmlinux")
TRACEFS = Path("/sys/kernel/tracing/uprobe_events"), Path("/sys/kernel/debug/tracing/uprobe_events")


def run(machine: Machine) -> Iterator[Row]:
    release = os.uname()
    lacking = ", ".join(privileges.missing()) or "none"
    yield Row(NUMBER, "kernel", REPORTED, f"{release.release} {release.machine}, capabilities missing: {lacking}")
    yield Row(NUMBER, "BTF of the kernel", REPORTED, f"{BTF}: {'there' if BTF.exists() else 'absent'}")
    yield Row(NUMBER, "tracefs", REPORTED, "there" if any(it.exists() for it in TRACEFS) else "absent")
    try:
        run_time_statistics().close()
    except BpfError as error:
        yield Row(NUMBER, "bpf()", FAILED, str(error))
        return
    yield Row(NUMBER, "bpf()", OK, "answers")
    yield Row(NUMBER, "multi-uprobe links", REPORTED, "yes" if supported() else "no: a perf event for each probe")
    try:
        costs = calibrate()
    except Unavailable as error:
        yield Row(NUMBER, "a uprobe fires", FAILED, str(error))
        return
    shown = f"{costs.emulated * 1e9:.0f} ns a hit where emulated, {costs.stepped * 1e9:.0f} ns where stepped"
    yield Row(NUMBER, "a uprobe fires", OK, shown)
