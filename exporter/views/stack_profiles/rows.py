"""Rows of a flame graph as Grafana's panel takes them: depth first, each with its level (Grafana's manual, Flame graph,
"Supported data formats"): level, value, self and label are required, and the order of the rows is the tree's.
"""

from __future__ import annotations

import heapq
from typing import TypedDict

from exporter.stack_profiles.model import StackProfile
from exporter.views.stack_profiles.tree import FrameNode, tree

MOST_ROWS = 10_000
SMALLER = "[smaller ones]"


class TreeRow(TypedDict):
    level: int
    value: int
    self: int
    label: str


def rows(profile: StackProfile, index: int = 0, by: str = "") -> list[TreeRow]:
    """Return the rows of one value of a profile; where there are more than MOST_ROWS, the smallest are added up to one
    row under their caller.
    """
    root = tree(profile, index, by)
    least = _least(root)
    out: list[TreeRow] = []
    waiting: list[tuple[int, FrameNode]] = [(0, root)]
    while waiting:
        level, node = waiting.pop()
        out.append({"level": level, "value": node.total, "self": node.own, "label": node.name})
        shown = [child for child in node.children.values() if child.total > least]
        small = sum(child.total for child in node.children.values() if child.total <= least)
        below = sorted(shown, key=lambda child: child.total)
        if small:
            below.insert(0, FrameNode(SMALLER, small, small))
        waiting += [(level + 1, child) for child in below]
    return out


def _least(root: FrameNode) -> int:
    """Return the value that a node has to be above, so that at most MOST_ROWS are; 0 where there are not so many.

    A child is not above its caller, so what is left is a tree. A row of small ones is added to half of them at most.
    """
    totals: list[int] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        totals.append(node.total)
        waiting += node.children.values()
    return heapq.nlargest(MOST_ROWS // 2, totals)[-1] if len(totals) > MOST_ROWS else 0
