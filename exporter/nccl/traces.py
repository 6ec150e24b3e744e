"""Trace ids and span ids that every rank of a communicator computes alike, without a message to the others.

docs/decisions/0006-traces.md has which calls share a trace, and why that is sound.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import blake2b

from exporter.nccl.records import NcclSpan
from exporter.nccl.samples import Kinds

MOST_REMEMBERED = 8192
ORIGINS = ("unknown", "library", "creation")
"""enum origin of bpf/nccl/nccl.h: from where on a communicator's calls are numbered."""
_CREATION = ORIGINS.index("creation")
_ONE_SIDED = ("PutSignal", "Signal", "WaitSignal")
_TRACE, _SPAN, _GROUP = b"nccl trace", b"nccl span", b"nccl group"


class NotShared(Enum):
    """The reason why a call has a trace of its own."""

    COMMUNICATOR = "unknown_communicator"
    SEQUENCE = "unknown_sequence"
    REUSED = "reused_communicator"
    """A second communicator of the same hash in the process: NCCL before 2.24 gives it to splits of one color."""
    OWN = "own"
    """A group, or a one-sided call: nothing that ranks do together."""


@dataclass(frozen=True, slots=True)
class SpanContext:
    """The ids of a span, of its parent, and of the spans that it links to."""

    trace_id: str
    span_id: str
    parent_id: str = ""
    not_shared: NotShared | None = None
    links: tuple[tuple[str, str], ...] = ()
    parent_remote: bool = False
    """True if the parent is the span of another rank."""


def trace_id(cluster: str, *key: str | int) -> str:
    """Return the trace id of what `key` names, 32 hex digits. Samplers use its low 56 or 64 bits."""
    return _digest(_TRACE, 16, cluster, *key)


def span_id(trace: str, role: str | int, *more: int) -> str:
    """Return the id of a rank's span in a trace, 16 hex digits; `role` is the rank, or "send" and "recv" of a pair."""
    return _digest(_SPAN, 8, trace, role, *more)


def _digest(person: bytes, size: int, *key: str | int) -> str:
    text = "\0".join(map(str, key))
    digest = blake2b(text.encode("utf-8", "surrogateescape"), digest_size=size, person=person).digest()
    return (digest if any(digest) else b"\1" * size).hex()


class Traces:
    """Computes the contexts of this node's spans. `cluster` separates jobs of clusters that share a backend.

    One thread at a time.
    """

    def __init__(self, cluster: str = "") -> None:
        self._cluster, self._salt = cluster, secrets.token_hex(8)
        self.lives: OrderedDict[tuple[int, int, int, int], _Life] = OrderedDict()
        self.groups: OrderedDict[tuple[int, int], tuple[int, SpanContext]] = OrderedDict()

    def context(self, record: NcclSpan, kinds: Kinds) -> SpanContext:
        """Return the context of one call: a record of `nccl_spans` in bpf/nccl/nccl.bpf.c."""
        if record.kind == kinds.group_end:
            return self._group(record, secrets.token_hex(16))
        found = self._own_trace(record, kinds) or self._shared(record, kinds)
        if not record.group_ns:
            return found
        group = self._group(record, found.trace_id)
        return replace(found, links=((group.trace_id, group.span_id),))

    def _own_trace(self, record: NcclSpan, kinds: Kinds) -> SpanContext | None:
        reason = None
        if not record.who.hash:
            reason = NotShared.COMMUNICATOR
        elif kinds.names[record.kind] in _ONE_SIDED:
            reason = NotShared.OWN
        elif self._reused(record):
            reason = NotShared.REUSED
        elif kinds.is_collective(record.kind) and not record.origin:
            reason = NotShared.SEQUENCE
        return SpanContext(secrets.token_hex(16), secrets.token_hex(8), not_shared=reason) if reason else None

    def _shared(self, record: NcclSpan, kinds: Kinds) -> SpanContext:
        """Return a context in the shared trace. Its root is rank 0's span; of a pair, the sender's."""
        who, kind = record.who, kinds.names[record.kind]
        retry = (record.start_ns,) if record.code else ()  # a call that failed does not count: the next has its number
        communicator = (f"{who.hash:016x}", who.nranks)
        if kind in ("Send", "Recv"):
            ends = (who.rank, record.peer) if kind == "Send" else (record.peer, who.rank)
            trace = trace_id(self._cluster, *communicator, "p2p", *ends, record.sequence)
            root, own = span_id(trace, "send"), span_id(trace, kind.lower(), *retry)
            remote = kind == "Recv" and record.peer != who.rank
        else:
            function = f"captured {kind}" if record.captured else kind
            trace = trace_id(self._cluster, *communicator, function, record.sequence)
            root, own = span_id(trace, 0), span_id(trace, who.rank, *retry)
            remote = who.rank != 0
        return SpanContext(trace, own, "" if own == root else root, parent_remote=remote)

    def _reused(self, record: NcclSpan) -> bool:
        """Return whether the process had another communicator of this hash, so that numbers begin at 1 again."""
        key = (record.tgid, record.who.hash, record.who.rank, record.who.nranks)
        life = self.lives.setdefault(key, _Life(record.communicator, record.origin))
        self.lives.move_to_end(key)
        while len(self.lives) > MOST_REMEMBERED:
            self.lives.popitem(last=False)
        if not record.communicator:  # it has ended
            return life.reused
        if not life.since_ns:
            life.since_ns, life.origin = record.communicator, record.origin
        other = record.communicator != life.since_ns
        if other and _CREATION in (life.origin, record.origin):
            life.reused = True
        return other and life.reused

    def _group(self, record: NcclSpan, sampled_as: str) -> SpanContext:
        """Return the context of the group that a thread has open, made before the group ends: its calls link to it.

        A group is sampled when its first call is, since the last half of their trace ids is the same.
        """
        thread = (record.tgid, record.tid)
        begun, context = self.groups.get(thread, (0, None))
        if context is None or begun != record.group_ns:
            own = _digest(_GROUP, 16, self._salt, *thread, record.group_ns)
            context = SpanContext(own[:16] + sampled_as[16:], own[16:], not_shared=NotShared.OWN)
        if record.depth:
            self.groups[thread] = record.group_ns, context
            self.groups.move_to_end(thread)
            while len(self.groups) > MOST_REMEMBERED:
                self.groups.popitem(last=False)
        else:
            self.groups.pop(thread, None)
        return context


@dataclass(slots=True)
class _Life:
    since_ns: int
    origin: int
    reused: bool = False
