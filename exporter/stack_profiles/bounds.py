"""Limits of profiles and of the names in them, which are those of other people's programs and may be anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate

from exporter.stack_profiles.model import LABELS, Frame, Stack, StackProfile, StackSample

MOST_SAMPLES = 20_000
"""Samples of a profile; the smallest ones are added up to one."""
MOST_PLACES = 500_000
"""Frames of all samples together."""
MOST_FRAMES = 512
"""Frames of a stack; those furthest from the leaf are one."""
MOST_NAME = 512
"""Characters of a function, a file or a label."""
REST = Frame("[stacks too small to be shown]")
FURTHER = Frame("[further frames]")
UNKNOWN = Frame("[unknown stack]")


def bounded(profile: StackProfile) -> StackProfile:
    """Return a profile of the same totals with MOST_SAMPLES samples and MOST_PLACES frames at most.

    Each sample has 1 to MOST_FRAMES frames.
    """
    samples = profile.samples
    if any(not 0 < len(sample.stack) <= MOST_FRAMES for sample in samples):
        samples = tuple(replace(sample, stack=_cut(sample.stack)) for sample in samples)
    if len(samples) > MOST_SAMPLES or sum(len(sample.stack) for sample in samples) > MOST_PLACES:
        samples = _largest(samples)
    return profile if samples is profile.samples else replace(profile, samples=samples)


def labels(sample: StackSample) -> Mapping[str, str]:
    """Return the known labels of a sample that have a value, printable and cut to MOST_NAME."""
    return {name: printable(sample.labels[name]) for name in LABELS if sample.labels.get(name)}


@lru_cache(16_384)
def printable(text: str) -> str:
    """Return a text that is valid UTF-8, on one line, and of MOST_NAME characters at most; others are escaped."""
    if len(text) > MOST_NAME:
        text = text[: MOST_NAME - 1] + "…"
    if text.isprintable():
        return text
    escaped = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return escaped if len(escaped) <= MOST_NAME else escaped[: MOST_NAME - 1] + "…"


def _largest(samples: tuple[StackSample, ...]) -> tuple[StackSample, ...]:
    """Return the largest samples within the limits, and the sum of the others as one."""
    ranked = sorted(samples, key=lambda sample: -abs(sample.values[0]))
    places = accumulate(len(sample.stack) for sample in ranked)
    kept = next((at for at, total in enumerate(places) if at >= MOST_SAMPLES - 1 or total > MOST_PLACES), len(ranked))
    values = tuple(map(sum, zip(*(sample.values for sample in ranked[kept:]), strict=True)))
    return (*ranked[:kept], StackSample((REST,), {}, values))


def _cut(stack: Stack) -> Stack:
    return (stack or (UNKNOWN,)) if len(stack) <= MOST_FRAMES else (*stack[: MOST_FRAMES - 1], FURTHER)
