"""The table of all readings: what the child reads, and what the parent shows. docs/gpu.md has details."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from exporter.nvml.reading import Reading
from exporter.nvml.readings import errors, gpm, links, use
from exporter.nvml.snapshot import FAST, SLOW

GPU: Mapping[str, tuple[Reading, ...]] = {
    FAST: (*use.FAST, *errors.FAST, *links.FAST, *gpm.FAST),
    SLOW: (*use.SLOW, *errors.SLOW, *links.SLOW),
}
"""Readings of each GPU by set."""
WITHOUT_GPM = use.WITHOUT_GPM
LINK: Mapping[str, tuple[Reading, ...]] = {FAST: links.LINK_FAST, SLOW: links.LINK_SLOW}
"""Readings of each NVLink by set."""
MIG_MEMORY, GPM = use.MEMORY, gpm.FAST
"""Readings of each MIG device, in the fast set."""

GPU_BY_KEY = {reading.key: reading for reading in (*GPU[FAST], *GPU[SLOW], *WITHOUT_GPM)}
LINK_BY_KEY = {reading.key: reading for reading in (*LINK[FAST], *LINK[SLOW])}
MIG_BY_KEY = {
    reading.key: replace(reading, metric=reading.mig[0], labels=reading.mig[1])
    for reading in (*MIG_MEMORY, *GPM)
    if reading.mig is not None
}
"""Readings of MIG devices that have series of their own."""
