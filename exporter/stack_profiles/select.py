"""Parts of profiles: what matches labels, and what changed between two moments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from exporter.stack_profiles.model import Stack, StackProfile, StackSample

Key = tuple[Stack, tuple[tuple[str, str], ...]]


def select(profile: StackProfile, labels: Mapping[str, str]) -> StackProfile:
    """Return the samples that have all these labels with these values."""
    if not labels:
        return profile
    kept = (it for it in profile.samples if all(it.labels.get(name) == value for name, value in labels.items()))
    return replace(profile, samples=tuple(kept))


def delta(before: StackProfile, after: StackProfile, falls: bool) -> StackProfile:
    """Return what changed from one profile to a later one of the same source, as samples other than 0.

    With `falls` (of memory in use) a value is below 0 where more was freed than allocated. Without (of counts since the
    start) what fell or is no longer there is left out: its process has ended.
    """
    earlier, later = added(before), added(after)
    if not falls:
        _unfold(earlier, later)
    samples = []
    for key in later | earlier if falls else later:
        now, then = later.get(key), earlier.get(key)
        values = now if then is None else tuple(b - a for a, b in zip(then, now or (0,) * len(then), strict=True))
        if values and any(values) and (falls or min(values) >= 0):
            samples.append(StackSample(key[0], dict(key[1]), values))
    start, end = (it.time_ns + it.duration_ns for it in (before, after))
    return replace(after, samples=tuple(samples), time_ns=start, duration_ns=max(0, end - start))


def _unfold(earlier: Mapping[Key, tuple[int, ...]], later: dict[Key, tuple[int, ...]]) -> None:
    """Take from samples without a process what was that of one before: the source adds up processes that ended."""
    for key, values in earlier.items():
        if key in later:
            continue
        kind = tuple(it for it in key[1] if it[0] == "kind")
        rest = next((it for it in ((key[0], kind), ((), kind)) if it != key and it in later), None)
        if rest:
            later[rest] = tuple(b - a for a, b in zip(values, later[rest], strict=True))


def key_of(sample: StackSample) -> Key:
    """Return what identifies a sample: its stack and its labels."""
    return sample.stack, tuple(sorted(sample.labels.items()))


def added(profile: StackProfile) -> dict[Key, tuple[int, ...]]:
    """Return the values by stack and labels, those of equal ones added up."""
    values: dict[Key, tuple[int, ...]] = {}
    for sample in profile.samples:
        key = key_of(sample)
        known = values.get(key)
        values[key] = sample.values if known is None else tuple(map(sum, zip(known, sample.values, strict=True)))
    return values
