"""Profiles as speedscope's file format (www.speedscope.app/file-format-schema.json): a sampled profile a type."""

from __future__ import annotations

import json

from exporter import __version__
from exporter.stack_profiles.bounds import bounded, printable
from exporter.stack_profiles.model import StackProfile
from exporter.views.stack_profiles.tree import group

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_UNITS = {"bytes": "bytes"}
"""Units that speedscope knows, by pprof's name; another is none."""

_Place = tuple[str, str, int]


def encode(profile: StackProfile, title: str, by: str = "") -> bytes:
    """Return the profile as JSON; values below 1 are left out, which the format has not."""
    frames: dict[_Place, int] = {}
    stacks = []
    for sample in bounded(profile).samples:
        places: list[_Place] = [(group(sample, by), "", 0)] if by else []
        places += [(printable(it.name), printable(it.file), it.line) for it in reversed(sample.stack)]
        stacks.append(([frames.setdefault(place, len(frames)) for place in places], sample.values))
    document = {
        "$schema": SCHEMA,
        "name": printable(title),
        "exporter": f"accel-exporter@{__version__}",
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(place) for place in frames]},
        "profiles": [_sampled(*kind, index, stacks) for index, kind in enumerate(profile.sample_types)],
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _frame(place: _Place) -> dict[str, str | int]:
    name, file, line = place
    known: dict[str, str | int] = {"name": name}
    if file:
        known["file"] = file
        if line:
            known["line"] = line
    return known


def _sampled(name: str, unit: str, index: int, stacks: list[tuple[list[int], tuple[int, ...]]]) -> dict[str, object]:
    kept = [(stack, values[index]) for stack, values in stacks if values[index] > 0]
    return {
        "type": "sampled",
        "name": printable(name),
        "unit": _UNITS.get(unit, "none"),
        "startValue": 0,
        "endValue": sum(value for _, value in kept),
        "samples": [stack for stack, _ in kept],
        "weights": [value for _, value in kept],
    }
