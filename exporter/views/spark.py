"""Small plots of the last minutes, as SVG inside of a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from math import isfinite

Points = Sequence[tuple[float, float]]
"""Ages in seconds, the oldest first, and values; one that is not finite is a gap."""
_WIDTH, _HEIGHT, _EDGE = 240.0, 40.0, 2.0


def spark(points: Points, seconds: float, what: str, text: Callable[[float], str], top: float = 0.0) -> str:
    """Return an SVG plot of the last seconds, from 0 up to the highest value or `top`; empty where nothing is known.

    The title, for screen readers, has `what` is plotted and its highest and newest value as `text` writes them.
    """
    known = [value for _, value in points if isfinite(value)]
    if not known:
        return ""
    highest = max(known)
    scale = max(highest, top) or 1.0
    runs = [[(_x(age, seconds), _y(value, scale)) for age, value in run] for run in _runs(points)]
    lines = "".join(_line(run) for run in runs)
    areas = "".join(_area(run) for run in runs if len(run) > 1)
    newest = text(points[-1][1]) if isfinite(points[-1][1]) else "unknown"
    title = f"{what}, last {seconds / 60:.0f} minutes: highest {text(highest)}, now {newest}"
    return (
        f'<svg class="p" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" preserveAspectRatio="none" role="img">'
        f'<title>{escape(title)}</title><path class="a" d="{areas}"/><path class="l" d="{lines}"/></svg>'
    )


def _runs(points: Points) -> Iterator[list[tuple[float, float]]]:
    """Yield the stretches of points without a gap."""
    run: list[tuple[float, float]] = []
    for age, value in points:
        if isfinite(value):
            run.append((age, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _x(age: float, seconds: float) -> float:
    return min(max(_WIDTH * (1 - age / seconds), 0.0), _WIDTH)


def _y(value: float, scale: float) -> float:
    return _HEIGHT - _EDGE - max(value, 0.0) / scale * (_HEIGHT - 2 * _EDGE)


def _line(run: Sequence[tuple[float, float]]) -> str:
    """A point by itself is a line of no length, which its round ends make a dot."""
    points = run if len(run) > 1 else [*run, *run]
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _area(run: Sequence[tuple[float, float]]) -> str:
    return f"{_line(run)}L{run[-1][0]:.1f} {_HEIGHT:.0f}L{run[0][0]:.1f} {_HEIGHT:.0f}Z"
