"""Structures of bpf/verbs*.h as ctypes has them: records of ring buffers, and keys and values of maps.

Only the fields that are read here; exporter/bpf/btf.py makes the classes from the object's types.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypedDict


class Device(Protocol):
    """struct verbs_device."""

    @property
    def name(self) -> bytes: ...


class QpControl(Protocol):
    """struct qp_control: a queue pair as its process set it up."""

    @property
    def device(self) -> Device: ...
    @property
    def peer_gid(self) -> Sequence[int]: ...

    created_ns: int
    number: int
    type: int
    state: int
    known: int
    peer: int
    send_psn: int
    receive_psn: int
    resets: int
    lid: int
    path_mtu: int
    port: int
    gid_index: int
    routed: int
    timeout: int
    retries: int
    rnr_retries: int


class QpKey(Protocol):
    """struct qp_key: a queue pair by its number."""

    tgid: int
    number: int
    context: int


class QpLifeKey(Protocol):
    """struct qp_life: one queue pair of its number."""

    created_ns: int

    @property
    def qp(self) -> QpKey: ...


class PostedKey(Protocol):
    """struct posted_key: what one queue pair posted with one opcode."""

    opcode: int

    @property
    def life(self) -> QpLifeKey: ...


class PostedCounts(Protocol):
    """struct posted: work requests of one opcode."""

    requests: int
    bytes: int
    packets: int
    unsized: int


class QpEnd(Protocol):
    """struct qp_end: what a destroyed queue pair had posted with one opcode, or how often it was posted to."""

    calls: int
    opcode: int

    @property
    def life(self) -> QpLifeKey: ...
    @property
    def qp(self) -> QpControl: ...
    @property
    def posted(self) -> PostedCounts: ...


class VerbsSpan(Protocol):
    """struct verbs_span: a work request that took long or failed."""

    begin_ns: int
    end_ns: int
    bytes: int
    message: int
    tgid: int
    tid: int
    opcode: int
    status: int
    received: int
    matched: int

    @property
    def qp(self) -> QpControl: ...


class LiveFunctions(Protocol):
    """struct live_functions: what a context points to."""

    poll_cq: int
    post_recv: int
    post_send: int


class LiveContext(Protocol):
    """struct live_context: the functions of a context of a process."""

    tgid: int

    @property
    def functions(self) -> LiveFunctions: ...


class ExtendedCalls(Protocol):
    """struct extended_calls: what a queue pair or completion queue points to, in the order of QP_CALLS or CQ_CALLS."""

    @property
    def functions(self) -> Sequence[int]: ...


class LearnedObject(Protocol):
    """struct learned_object: the calls of a queue pair or completion queue of a process."""

    tgid: int
    of_cq: int

    @property
    def calls(self) -> ExtendedCalls: ...


class PollBusy(Protocol):
    """struct poll_busy: a thread that polls too often in the file of a slot."""

    slot: int


class ControlKey(Protocol):
    """struct control_key: an object of a process by its address."""

    tgid: int
    address: int


class StateKey(Protocol):
    """struct state_key: changes of queue pairs to one state."""

    tgid: int
    state: int

    @property
    def device(self) -> Device: ...


class RegionKey(Protocol):
    """struct region_key: memory regions of one kind of memory."""

    tgid: int
    memory: int

    @property
    def device(self) -> Device: ...


class RegionTotal(Protocol):
    """struct region_total: bytes and calls of memory regions."""

    added: int
    removed: int
    untracked: int


class ContextKey(Protocol):
    """struct context_key: a device that a process has opened."""

    tgid: int
    context: int


class StatusKey(Protocol):
    """struct status_key: completions with one status."""

    tgid: int
    status: int
    context: int


class TimeKey(Protocol):
    """struct time_key: what was timed, enum timed."""

    tgid: int
    opcode: int
    context: int
    what: int


class CallsRow(Protocol):
    """struct calls: calls on a queue pair."""

    count: int


class TimeRow(Protocol):
    """struct time: durations."""

    sum_ns: int

    @property
    def slots(self) -> Sequence[int]: ...


class ControlRows(TypedDict):
    """The rows of the maps of the control path that are read, by the map's name."""

    qp_controls: Iterable[tuple[ControlKey, QpControl]]
    qp_states: Iterable[tuple[StateKey, int]]
    region_totals: Iterable[tuple[RegionKey, RegionTotal]]
    memory_missed: Iterable[tuple[int, int]]


class CountedRows(ControlRows):
    """The rows of all maps that are read."""

    contexts: Iterable[tuple[ContextKey, Device]]
    calls: Iterable[tuple[QpLifeKey, CallsRow]]
    posted: Iterable[tuple[PostedKey, PostedCounts]]
    completions: Iterable[tuple[StatusKey, int]]
    times: Iterable[tuple[TimeKey, TimeRow]]
