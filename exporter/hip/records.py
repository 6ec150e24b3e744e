"""Rows of the maps of bpf/hip/hip.bpf.c."""

from __future__ import annotations

from typing import Protocol

from exporter.call_collector import CountedMap, Duration, Function


class ApiKey(Function, Protocol):
    """struct api_key."""

    device: int


class CopyKey(Protocol):
    """struct copy_key."""

    direction: int
    device: int


class TotalKey(Protocol):
    """struct total_key."""

    memory: int
    device: int


class Devices(Protocol):
    """struct devices: of a process."""

    unsure: int


class Process(Protocol):
    """struct process: rows of its allocations, and calls that were not seen."""

    live: int
    missed: int
    execs: int
    own: int


class Launch(Protocol):
    """struct launch: launches by one function; 0 calls where there were some, and their number is not known."""

    calls: int
    last_ns: int


class Total(Protocol):
    """struct total: bytes that were allocated and freed."""

    allocated: int
    freed: int
    implicit: int
    untracked: int
    unmatched_frees: int
    resets: int


PROCESSES = CountedMap[object, Process]("processes")
LAUNCHES = CountedMap[ApiKey, Launch]("launches")
CALLS = CountedMap[ApiKey, int]("calls")
WAITS = CountedMap[ApiKey, Duration]("waits")
TOTALS = CountedMap[TotalKey, Total]("totals")
COPIES = CountedMap[CopyKey, int]("copies")
