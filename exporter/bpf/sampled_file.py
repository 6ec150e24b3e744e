"""A library with symbols that are probed in windows, as passed to the governor."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SampledFile:
    """A library with symbols that may be probed in windows (exporter.governor)."""

    name: str
    """As in labels."""
    symbols: Collection[str]
    pids: Collection[int]
    """The processes that use it."""
    probe: Callable[[bool], None]
    """Attaches what these symbols have in windows, or detaches it."""
    keep: Callable[[Collection[int]], Collection[int]] = lambda _: ()
    """Keeps these symbols attached in just these processes, and returns those where they are."""
    restore: Callable[[], None] = lambda: None
    """Attaches all of them, as windows have ended."""
