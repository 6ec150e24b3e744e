"""Profiles as the JSON that the page /flamegraph reads: samples that refer to tables of frames and of labels."""

from __future__ import annotations

import json

from exporter.stack_profiles.bounds import bounded, labels, printable
from exporter.stack_profiles.model import Frame, StackProfile


def encode(profile: StackProfile) -> bytes:
    """Return the document.

    Keys: types (name and unit of each), time and duration in seconds, comments, frames (name, file, line, kind,
    module), labels, and samples: the frames from the root to the leaf, the labels, and the values.
    """
    profile = bounded(profile)
    frames: dict[Frame, int] = {}
    known: dict[tuple[tuple[str, str], ...], int] = {}
    samples = [
        (
            [frames.setdefault(frame, len(frames)) for frame in reversed(sample.stack)],
            known.setdefault(tuple(labels(sample).items()), len(known)),
            sample.values,
        )
        for sample in profile.samples
    ]
    made = {
        "types": [tuple(map(printable, kind)) for kind in profile.sample_types],
        "time": profile.time_ns / 1e9,
        "duration": profile.duration_ns / 1e9,
        "comments": [*map(printable, profile.comments)],
        "frames": [
            (printable(it.name), printable(it.file), it.line, it.kind, printable(it.module.rpartition("/")[2]))
            for it in frames
        ],
        "labels": [dict(pairs) for pairs in known],
        "samples": samples,
    }
    return json.dumps(made, ensure_ascii=False, separators=(",", ":")).encode()
