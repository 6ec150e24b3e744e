"""Stacks merged from the root into a tree: what a flame graph shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from exporter.stack_profiles.bounds import bounded, labels, printable
from exporter.stack_profiles.model import Frame, Profile, Sample

BY = {"process": ("comm", "pid"), "gpu": ("gpu_uuid",), "pod": ("pod",), "kind": ("kind",), "rank": ("rank",)}
"""What stacks can be grouped by, and the labels of that."""


@dataclass(slots=True)
class Node:
    """A frame under its callers: the value of it with all it calls (`total`), and of itself alone (`own`)."""

    name: str
    total: int = 0
    own: int = 0
    children: dict[str, Node] = field(default_factory=dict)


def names(sample: Sample, by: str = "") -> Iterator[str]:
    """Yield the names of a stack from the root to the leaf, below the group that `by` (a key of BY) puts it in."""
    if by:
        yield group(sample, by)
    for frame in reversed(sample.stack):
        yield label(frame)


def label(frame: Frame) -> str:
    """Return a frame's name with its place, such as `load (model.py:23)`, as py-spy has it."""
    name, file = printable(frame.name), printable(frame.file.rpartition("/")[2])
    return f"{name} ({file}:{frame.line})" if file and frame.line else name


def group(sample: Sample, by: str) -> str:
    """Return the name of a sample's group, such as `train (4711)`; `no pod` where there is none."""
    known = labels(sample)
    first, *others = (known[name] for name in BY[by] if name in known) if any(map(known.get, BY[by])) else ("",)
    return " ".join((first, *(f"({text})" for text in others))) if first else f"no {by}"


def tree(profile: Profile, index: int = 0, by: str = "") -> Node:
    """Return the root of all stacks with a value above 0 at `index` of the sample types; others are left out."""
    root = Node("total")
    for sample in bounded(profile).samples:
        if (value := sample.values[index]) <= 0:
            continue
        node = root
        node.total += value
        for name in names(sample, by):
            node = node.children.setdefault(name, Node(name))
            node.total += value
        node.own += value
    return root
