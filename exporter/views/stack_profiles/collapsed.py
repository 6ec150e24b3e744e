"""Profiles as collapsed stacks (Brendan Gregg's FlameGraph, stackcollapse-*.pl): frames from the root, joined by
semicolons, a space, and the value; a line for each stack. flamegraph.pl, inferno and speedscope read it.
"""

from __future__ import annotations

from collections import Counter

from exporter.stack_profiles.bounds import REST, bounded
from exporter.stack_profiles.model import StackProfile
from exporter.views.stack_profiles.tree import names

MOST_CHARACTERS = 16 << 20
"""Characters of all lines, about; the values of further stacks are added up to one line."""


def encode(profile: StackProfile, index: int = 0, by: str = "") -> bytes:
    """Return the lines of one value of a profile, sorted; values below 1 are left out, which the format has not."""
    lines: Counter[str] = Counter()
    left = MOST_CHARACTERS
    shown = (sample for sample in bounded(profile).samples if sample.values[index] > 0)
    for sample in sorted(shown, key=lambda sample: -sample.values[index]):
        stack = ";".join(name.replace(";", ":") for name in names(sample, by)) if left > 0 else REST.name
        left -= len(stack)
        lines[stack] += sample.values[index]
    return "".join(f"{stack} {value}\n" for stack, value in sorted(lines.items())).encode()
