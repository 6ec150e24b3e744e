"""The whole program where there is no /dev/kmsg, as in a container that is not privileged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.program.process import Exporter
from tests.support import PATIENCE

NO_DEVICES = 'mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec "$@"'
SOURCES = ('accel_node_fault_source_available{source="kernel_log"}', 'accel_exporter_xid_source{source="kmsg"}')


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_without_the_device(tmp_path: Path) -> None:
    """With the capabilities that it keeps it reads the kernel log all the same, through syslog(2)."""
    flags = ("--collector.disable-defaults", "--collector.faults", "--collector.xid")
    prefix = ("unshare", "--mount", "sh", "-c", NO_DEVICES, "-")
    exporter = Exporter(tmp_path, *flags, prefix=prefix)
    try:
        exporter.await_ready()
        exporter.await_(lambda: [1, 1] == [exporter.value(source) for source in SOURCES])
        assert "kernel log" not in exporter.log
    finally:
        exporter.process.kill()
        exporter.process.wait(PATIENCE)
