"""Profiles as collapsed stacks (Brendan Gregg's FlameGraph, stackcollapse-*.pl): frames from the root, joined by
semicolons, a space, and the value; a line for each stack. flamegraph.pl, inferno and speedscope read it.
"""

from __future__ import annotations

from collections import Counter

from exporter.stack_profiles.bounds import bounded
from exporter.stack_profiles.model import Profile
from exporter.views.stack_profiles.tree import names


def encode(profile: Profile, index: int = 0, by: str = "") -> bytes:
    """Return the lines of one value of a profile, sorted; values below 1 are left out, which the format has not."""
    lines: Counter[str] = Counter()
    for sample in bounded(profile).samples:
        if sample.values[index] > 0:
            lines[";".join(name.replace(";", ":") for name in names(sample, by))] += sample.values[index]
    return "".join(f"{stack} {value}\n" for stack, value in sorted(lines.items())).encode()
