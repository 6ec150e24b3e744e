"""Structures of bpf/cuda/cuda.h as ctypes has them: records of ring buffers, and keys and values of maps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypedDict

Text = bytes
"""Another name: a field is called `bytes` too."""


class CudaSpan(Protocol):
    """struct span: one call."""

    start_ns: int
    end_ns: int
    bytes: int
    address: int
    context: int
    tgid: int
    tid: int
    code: int
    api: int
    memory: int
    direction: int
    host: int
    device: int

    @property
    def comm(self) -> Text: ...


class ContextEnd(Protocol):
    """struct context_end: a context that took with it what was allocated in it before."""

    context: int
    before_ns: int
    tgid: int


class CallKey(Protocol):
    """struct call_key: a function of a process, on a device."""

    tgid: int
    api: int
    device: int


class ErrorKey(Protocol):
    """struct error_key: an error of a function."""

    tgid: int
    api: int
    device: int
    code: int


class TotalKey(Protocol):
    """struct total_key: memory of one kind, allocated in one layer."""

    tgid: int
    layer: int
    memory: int
    device: int


class CopyKey(Protocol):
    """struct copy_key: copies in one direction."""

    tgid: int
    direction: int
    host: int
    device: int


class LaunchRow(Protocol):
    """struct launch: launches by one function."""

    calls: int
    last_ns: int


class ErrorRow(Protocol):
    """struct error: calls that failed with one error."""

    calls: int
    last_ns: int


class WaitRow(Protocol):
    """struct wait: durations of one function."""

    sum_ns: int

    @property
    def slots(self) -> Sequence[int]: ...


class TotalRow(Protocol):
    """struct total: bytes that were allocated and freed."""

    allocated: int
    freed: int
    implicit: int
    untracked: int
    doubtful: int
    unmatched_frees: int


class DevicesRow(Protocol):
    """struct devices: where a process was seen to have a context."""

    used: int
    first: int
    since_ns: int


class Cookie(Protocol):
    """struct cookie: which function is called, of which library."""

    api: int
    library: int


class Flight(Protocol):
    """struct flight: a call that has not returned."""

    sp: int
    start_ns: int
    returning: int

    @property
    def cookie(self) -> Cookie: ...


class CountedRows(TypedDict):
    """The rows of the maps of counts, by the map's name."""

    launches: Iterable[tuple[CallKey, LaunchRow]]
    calls: Iterable[tuple[CallKey, int]]
    errors: Iterable[tuple[ErrorKey, ErrorRow]]
    waits: Iterable[tuple[CallKey, WaitRow]]
    totals: Iterable[tuple[TotalKey, TotalRow]]
    copies: Iterable[tuple[CopyKey, int]]
