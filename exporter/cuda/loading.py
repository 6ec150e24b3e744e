"""Constants of the object of bpf/cuda/, and sizes of its maps, from the settings of the collector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STACK_IDS, ALLOCATION_BYTES = 16_384, 1 << 20
"""Threads that allocate, and bytes of a ring buffer, while profiles are on."""
_WITHOUT_SPANS = {
    **dict.fromkeys(("allocation_span_bytes", "copy_span_bytes", "wait_span_ns"), 1 << 62),
    "spans_per_second": 0,
    "profiled": 0,
}


def bounded_layer(settings: Mapping[str, Any]) -> str:
    """Return the API layer of which launches may be probed in windows: with both, the runtime's stay exact."""
    return "runtime" if settings["layers"] == "runtime" else "driver"


def constants(settings: Mapping[str, Any], live_rows: int, profiled: bool) -> dict[str, int]:
    """Return the values of the object's constants."""
    return {
        "allocation_span_bytes": settings["allocation-span-bytes"],
        "copy_span_bytes": settings["copy-span-bytes"],
        "wait_span_ns": round(settings["wait-span-seconds"] * 1e9),
        "spans_per_second": settings["spans-per-second"],
        "live_most": live_rows,
        "profiled": int(profiled),
        "launches_every": settings["profile-launches-every"] if profiled else 0,
        "launches_of": ("driver", "runtime").index(bounded_layer(settings)),  # enum layer of bpf/cuda/functions.h
    }


def without_spans(values: Mapping[str, int]) -> dict[str, int]:
    """Return these constants so that the programs make no spans and take no stacks."""
    return {**values, **_WITHOUT_SPANS}


def entries(live_rows: int, profiled: bool) -> dict[str, int]:
    """Return the sizes of maps that are not those of the source."""
    profiles = {"stack_ids": STACK_IDS, "allocations": ALLOCATION_BYTES} if profiled else {}
    return {"live": live_rows, **profiles}
