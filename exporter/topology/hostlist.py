"""Names in a hostlist expression of Slurm, such as node[001-032,040],login.

The notation is that of `scontrol show hostnames`: ranges in brackets, zeros in front give the width. A name is compared
with the expression, which is never expanded: it may stand for millions of names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LONGEST = 1 << 20
_MOST_BRACKETS = 4
_PART = re.compile(r"([^\[\],\s]*)\[([0-9,-]+)\]|([^\[\],\s]+)", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", re.ASCII)


def matches(expression: str, name: str) -> bool:
    """Return whether the expression has the name. Raises ValueError for an expression of another form."""
    if len(expression) > LONGEST:
        raise ValueError("a hostlist is too long")
    return any([_matches(element, name) for element in _elements(expression)])  # all: each is checked


def _elements(expression: str) -> Iterator[list[tuple[str, str]]]:
    """Yield the elements between commas outside of brackets: texts, each with the ranges that follow it, or none."""
    at, element = 0, list[tuple[str, str]]()
    while at < len(expression):
        if expression[at] == ",":
            if not element:
                raise ValueError(f"no hostlist: {expression[:80]!r}")
            yield element
            at, element = at + 1, []
            continue
        part = _PART.match(expression, at)
        if part is None or sum(bool(ranges) for _, ranges in element) == _MOST_BRACKETS:
            raise ValueError(f"no hostlist: {expression[:80]!r}")
        element.append((part[1] or part[3] or "", part[2] or ""))
        at = part.end()
    if not element:
        raise ValueError(f"no hostlist: {expression[:80]!r}")
    yield element


def _matches(element: list[tuple[str, str]], name: str) -> bool:
    pattern = "".join(re.escape(text) + ("([0-9]{1,10})" if ranges else "") for text, ranges in element)
    given = [[_bounds(each) for each in ranges.split(",")] for _, ranges in element if ranges]
    found = re.fullmatch(pattern, name, re.ASCII)
    if found is None:
        return False
    return all(any(_within(text, *one) for one in ranges) for text, ranges in zip(found.groups(), given, strict=True))


def _bounds(text: str) -> tuple[str, str]:
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ValueError(f"no range of a hostlist: {text[:80]!r}")
    return found[1], found[2] or found[1]


def _within(text: str, least: str, most: str) -> bool:
    """Return whether digits are in a range; wider numbers than the least have no zeros in front."""
    padded = len(text) == len(least) or (len(text) > len(least) and text[0] != "0")
    return padded and int(least) <= int(text) <= int(most)
