"""The table of readings: keys, sources and series, each declared once."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pynvml
import pytest

from exporter.compat.dcgm.derived import Derived
from exporter.compat.dcgm.fields import FIELDS as DCGM_FIELDS
from exporter.model import Kind
from exporter.nvml import readings
from exporter.nvml.child.queries import MIG_QUERIES, QUERIES, WITHOUT_GPM, field_requests, link_queries
from exporter.nvml.reading import Call, FieldValue, GpmCount, GpmMean, Reading
from exporter.nvml.snapshot import FAST, SLOW

ROOT = Path(__file__).parents[3]
GPU = (*readings.GPU[FAST], *readings.GPU[SLOW], *readings.WITHOUT_GPM)
LINK = (*readings.LINK[FAST], *readings.LINK[SLOW])
WITHOUT_SERIES = {"clocks_event_reasons", "ecc_pending", "memory_bus_bits"} | {
    f"fabric_{it}" for it in ("status", "health", "clique", "cluster")
}
"""Readings that other series are derived from, or that only the series of dcgm-exporter show."""


@pytest.mark.parametrize("table", [GPU, LINK], ids=["gpu", "link"])
def test_keys(table: tuple[Reading, ...]) -> None:
    """No two readings have the same key, and none has the same series as another but as its duplicate."""
    keys = Counter(reading.key for reading in table)
    series = Counter(
        (reading.metric.name, *sorted(reading.labels.items()), isinstance(reading.source, GpmMean))
        for reading in table
        if reading.metric is not None and not reading.duplicate_of
    )

    assert {1} == set(keys.values())
    assert {1} == set(series.values())
    assert {reading.duplicate_of for reading in table if reading.duplicate_of} <= keys.keys()


def test_each_reading_is_shown() -> None:
    """Every reading has a series, but those that others derive from."""
    assert WITHOUT_SERIES == {reading.key for reading in GPU if reading.metric is None}
    assert not [reading.key for reading in LINK if reading.metric is None]


def test_each_reading_is_read() -> None:
    """The child requests every reading of the table, and calls every fallback."""
    links = {key for name in (FAST, SLOW) for query in link_queries(name, 3) for key in query.takes}
    links |= {it.key for name in (FAST, SLOW) for it in field_requests(name, 4) if it.link == 3}
    gpu = {it.key for name in (FAST, SLOW) for it in field_requests(name, 0)}
    gpu |= {key for query in (*QUERIES[FAST], *QUERIES[SLOW], *WITHOUT_GPM) for key in query.takes}
    gpu |= {reading.key for reading in readings.GPM}
    fallbacks = {reading.fallback.function for reading in GPU if reading.fallback is not None}

    assert {reading.key for reading in LINK} == links
    assert {reading.key for reading in GPU} == gpu
    assert fallbacks <= {query.call.function for name in (FAST, SLOW) for query in QUERIES[name]}
    assert {"memory_bytes", "memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes"} == {
        key for query in MIG_QUERIES for key in query.takes
    }


def test_sources_exist() -> None:
    """nvidia-ml-py has every field and function of the table."""
    fields = {reading.source.name.format(link=0) for reading in (*GPU, *LINK) if isinstance(reading.source, FieldValue)}
    calls = [call for reading in (*GPU, *LINK) for call in (reading.source, reading.fallback) if isinstance(call, Call)]

    assert [] == [name for name in fields if not hasattr(pynvml, f"NVML_FI_{name}")]
    assert [] == [call.function for call in calls if not hasattr(pynvml, call.function)]
    assert [] == [call.structure for call in calls if call.structure and not hasattr(pynvml, call.structure)]


def test_counts_are_counters() -> None:
    """A count of NVML is a counter, a mean is none."""
    for reading in readings.GPM:
        assert reading.metric is not None
        assert (reading.metric.kind == Kind.COUNTER) == isinstance(reading.source, GpmCount), reading.key


def test_dcgm_keys() -> None:
    """The fields of dcgm-exporter that are numbers are keys of the table, or derived."""
    others = {*Derived().readings(""), "nvlink_mb_per_s", *(f"nvlink_{link}_mb_per_s" for link in range(18))}
    keys = {field.key for field in DCGM_FIELDS if field.kind is not None}

    assert keys - others <= {reading.key for reading in GPU}


def test_keys_in_use() -> None:
    """Keys that other modules look up in a snapshot are in the table."""
    used = {
        key
        for path in (ROOT / "exporter").rglob("*.py")
        for key in re.findall(r'\bgpu\.value\("(\w+)"', path.read_text())
    }

    assert {"memory_bytes", "recovery_action"} <= used <= {reading.key for reading in GPU}


def _loaded(module: str) -> set[str]:
    program = f"import sys, {module}; print(*(name for name in sys.modules if name.startswith('exporter.')))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_processes_share_declarations_only() -> None:
    """The exporter imports nothing of the child's folder, and the child only what both processes need to know."""
    child = {name for name in _loaded("exporter.nvml.child.worker") if not name.startswith("exporter.nvml.child")}
    shared = {f"exporter.nvml{name}" for name in ("", ".codes", ".metrics", ".reading", ".readings", ".snapshot")}
    shared |= {f"exporter.nvml.readings.{name}" for name in ("errors", "gpm", "links", "use")}

    assert not [name for name in _loaded("exporter.collectors.nvml") if name.startswith("exporter.nvml.child")]
    assert shared == {name for name in child if name.startswith("exporter.nvml")}
