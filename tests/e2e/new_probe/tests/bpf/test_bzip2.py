"""Calls of Debian's libbz2 count exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.collectors.bzip2 import FLAGS, Bzip2
from tests.bpf.cuda_node import Script
from tests.bpf.observed import running
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
    with running(Bzip2, FLAGS) as observed, Script(NAME, libraries=Path("/nonexistent")) as job:
        until(lambda: observed.attached(job.pid, ()), "attached")
        packed = job.run(CALLS)
        assert {COMPRESS: 23, EXPAND: 24} == observed.by("bzip2_calls_total", job.pid, "api")
        assert {COMPRESS: 23 * packed, EXPAND: 23 * 100_000} == observed.by("bzip2_output_bytes_total", job.pid, "api")
        for function, calls in {COMPRESS: 23, EXPAND: 24}.items():
            took = observed.value("bzip2_duration_seconds", job.pid, api=function)
            assert calls == sum(took.counts) and 0 < took.sum
        assert 1 == observed.value("bzip2_errors_total", job.pid, api=EXPAND, code="-8")
