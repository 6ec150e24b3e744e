"""Calls of Debian's libbz2 count exactly."""

from __future__ import annotations

from tests.support import PATIENCE
from tests.bpf.observed import Observed
from pathlib import Path

import pytest

from exporter.bpf.targets import Targets
from exporter.collectors.bzip2 import FLAGS, Bzip2
from exporter.resolve.process import ProcessTable
from tests.bpf.cuda_node import Script
from tests.nodes import make_node
from tests.support import until

pytestmark = [pytest.mark.needs_bpf]
NAME = "libbz2.so.1.0"
COMPRESS, EXPAND = "BZ2_bzBuffToBuffCompress", "BZ2_bzBuffToBuffDecompress"
CALLS = f"""
from ctypes import c_uint, create_string_buffer
data = create_string_buffer(100_000)
packed, length = create_string_buffer(200_000), c_uint(200_000)
for _ in range(23):
    length.value = 200_000
    assert 0 == lib.{COMPRESS}(packed, byref(length), data, 100_000, 9, 0, 0)
out = length.value
for _ in range(23):
    size_ = c_uint(100_000)
    assert 0 == lib.{EXPAND}(data, byref(size_), packed, length, 0, 0)
assert -8 == lib.{EXPAND}(data, byref(c_uint(1)), packed, length, 0, 0)
"""


def test_23_calls() -> None:
    """23 buffers are compressed and expanded, one does not fit: calls, bytes, times and errors are these."""
    targets = Targets()
    collector = Bzip2(make_node({flag.name: flag.default for flag in FLAGS}, ProcessTable(), targets))
    collector.start()
    try:
        targets.start()
        assert targets.scanned.wait(PATIENCE)
        observed = Observed(collector, targets, [])
        with Script(NAME, libraries=Path("/nonexistent")) as job:
            until(lambda: observed.attached(job.pid, ()), "attached")
            packed = job.run(CALLS)
            for metric, expected in (
                ("bzip2_calls_total", {COMPRESS: 23, EXPAND: 24}),
                ("bzip2_output_bytes_total", {COMPRESS: 23 * packed, EXPAND: 23 * 100_000}),
            ):
                found = observed.values(metric, job.pid)
                assert expected == {dict(labels)["api"]: value for labels, value in found.items()}
            for function, calls in {COMPRESS: 23, EXPAND: 24}.items():
                took = observed.value("bzip2_duration_seconds", job.pid, api=function)
                assert calls == sum(took.counts) and 0 < took.sum
            assert 1 == observed.value("bzip2_errors_total", job.pid, api=EXPAND, code="-8")
    finally:
        targets.close()
        collector.close()
