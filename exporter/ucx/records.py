"""Rows of the maps of bpf/ucx.bpf.c."""

from __future__ import annotations

from typing import Protocol

from exporter.call_collector import CountedMap, Function


class Calls(Protocol):
    """struct calls: calls of one function by result, and what they moved."""

    unseen: int
    completed: int
    pending: int
    failed: int
    bytes: int
    unsized: int


CALLS = CountedMap[Function, Calls]("calls")
