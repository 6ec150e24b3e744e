"""Stacks merged from the root into a tree: what a flame graph shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from exporter.stack_profiles.bounds import bounded, labels, printable
from exporter.stack_profiles.model import Frame, StackProfile, StackSample

_ALONE = ("workload", "pod", "kind", "rank")
BY = {"process": ("comm", "pid"), "gpu": ("gpu_uuid",), **{label: (label,) for label in _ALONE}}
"""Groups that stacks can be put in, with the labels that identify a group."""


MOST_NODES = 100_000
"""Nodes of a tree; beyond them a stack ends in one more, DEEPER, under its last known caller."""
DEEPER = "[further calls]"


@dataclass(slots=True)
class FrameNode:
    """A frame under its callers: the value of it with all it calls (`total`), and of itself alone (`own`)."""

    name: str
    total: int = 0
    own: int = 0
    children: dict[str, FrameNode] = field(default_factory=dict)


def names(sample: StackSample, by: str = "") -> Iterator[str]:
    """Yield the names of a stack from the root to the leaf, below the group that `by` (a key of BY) puts it in."""
    if by:
        yield group(sample, by)
    for frame in reversed(sample.stack):
        yield label(frame)


def label(frame: Frame) -> str:
    """Return a frame's name with its place, such as `load (model.py:23)`, as py-spy has it."""
    name, file = printable(frame.name), printable(frame.file.rpartition("/")[2])
    return f"{name} ({file}:{frame.line})" if file and frame.line else name


def group(sample: StackSample, by: str) -> str:
    """Return the name of a sample's group, such as `train (4711)`; `no pod` where there is none."""
    known = labels(sample)
    first, *others = (known[name] for name in BY[by] if name in known) if any(map(known.get, BY[by])) else ("",)
    return " ".join((first, *(f"({text})" for text in others))) if first else f"no {by}"


def tree(profile: StackProfile, index: int = 0, by: str = "") -> FrameNode:
    """Return the root of all stacks with a value above 0 at `index` of the sample types; others are left out."""
    root, count = FrameNode("total"), 0
    shown = (sample for sample in bounded(profile).samples if sample.values[index] > 0)
    for sample in sorted(shown, key=lambda sample: -sample.values[index]):
        value, node = sample.values[index], root
        node.total += value
        for name in names(sample, by):
            full = name not in node.children and count >= MOST_NODES
            name = DEEPER if full else name
            count += name not in node.children
            node = node.children.setdefault(name, FrameNode(name))
            node.total += value
            if full:
                break
        node.own += value
    return root
