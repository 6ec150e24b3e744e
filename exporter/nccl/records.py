"""Structures of bpf/nccl/nccl.h as ctypes has them: records of ring buffers, and keys and values of maps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypedDict

Text = bytes
"""Another name: a field is called `bytes` too."""


class RankIdentity(Protocol):
    """struct identity: a rank of a communicator. `hash` is 0 where it is not known."""

    hash: int
    rank: int
    nranks: int
    device: int


class NcclSpan(Protocol):
    """struct span: one call."""

    start_ns: int
    end_ns: int
    group_ns: int
    communicator: int
    sequence: int
    bytes: int
    stream: int
    tgid: int
    tid: int
    code: int
    type: int
    peer: int
    api: int
    kind: int
    origin: int
    depth: int
    captured: int
    partial: int

    @property
    def who(self) -> RankIdentity: ...
    @property
    def comm(self) -> Text: ...


class CallKey(Protocol):
    """struct call_key: calls of one kind."""

    tgid: int
    kind: int


class ErrorKey(Protocol):
    """struct error_key: an error of a function."""

    tgid: int
    code: int
    api: int


class LagKey(Protocol):
    """struct lag_key: a rank of a communicator."""

    hash: int
    tgid: int
    rank: int
    nranks: int


class CallsRow(Protocol):
    """struct calls: calls and bytes of one kind."""

    calls: int
    last_ns: int


class ErrorRow(Protocol):
    """struct error: calls that failed with one error."""

    calls: int
    last_ns: int


class DurationRow(Protocol):
    """struct duration: durations of calls of one kind."""

    sum_ns: int

    @property
    def slots(self) -> Sequence[int]: ...


class LagRow(Protocol):
    """struct lag: how much later than the first rank of the node a rank called."""

    sum_ns: int
    domain: int

    @property
    def slots(self) -> Sequence[int]: ...


class CommunicatorKey(Protocol):
    """struct comm_key: a communicator by its address."""

    tgid: int
    address: int


class CommunicatorRow(Protocol):
    """struct communicator: a communicator of a process."""

    domain: int
    origin: int
    unsure: int
    reused: int
    gap: int

    @property
    def who(self) -> RankIdentity: ...
    @property
    def calls(self) -> Sequence[int]: ...
    @property
    def waiting(self) -> Sequence[int]: ...


class Cookie(Protocol):
    """struct cookie: which function is called, of which library."""

    api: int
    kind: int
    library: int


class Flight(Protocol):
    """struct flight: a call that has not returned."""

    sp: int
    start_ns: int
    returning: int

    @property
    def cookie(self) -> Cookie: ...


class PendingRow(Protocol):
    """struct pending: unfinished work of a non-blocking communicator."""

    start_ns: int
    polled_ns: int
    api: int


class CountedRows(TypedDict):
    """The rows of the maps of counts, by the map's name."""

    calls: Iterable[tuple[CallKey, CallsRow]]
    errors: Iterable[tuple[ErrorKey, ErrorRow]]
    durations: Iterable[tuple[CallKey, DurationRow]]
    lags: Iterable[tuple[LagKey, LagRow]]
