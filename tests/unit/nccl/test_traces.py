"""All ranks name one collective alike, and nothing else so."""

from __future__ import annotations

from typing import Any

import pytest

from exporter.model import Span
from exporter.nccl import traces
from exporter.nccl.traces import NotShared, SpanContext, Traces, span_id, trace_id
from exporter.sampling import Sampler, Verdict
from tests.unit.nccl.records import KINDS, record


def name(call: Any, node: Traces | None = None) -> SpanContext:
    return (node or Traces()).context(call, KINDS)


def test_one_collective_is_one_trace() -> None:
    """Exporters that know nothing of each other give eight ranks one trace, eight spans, and rank 0's for root."""
    names = [name(record(rank=rank, sequence=7)) for rank in range(8)]
    assert 1 == len({it.trace_id for it in names})
    assert 8 == len({it.span_id for it in names})
    assert ["", *[names[0].span_id] * 7] == [it.parent_id for it in names]
    assert [None] * 8 == [it.not_shared for it in names]


def test_what_is_pinned() -> None:
    """Ids are those that other versions of the exporter give: a fleet is not updated at once."""
    found = name(record(rank=1, sequence=7))
    assert trace_id("", "0000000000000abc", 8, "AllReduce", 7) == found.trace_id == "cb40496b31b401f3531a83d7b15221b2"
    assert span_id(found.trace_id, 1) == found.span_id == "558607f12c2d4913"


@pytest.mark.parametrize(
    "other",
    [{"hash": 0xABD}, {"nranks": 9}, {"kind": "AlltoAll"}, {"sequence": 1}, {"captured": 1}, {"kind": "Init"}],
)
def test_other_calls_are_other_traces(other: dict[str, Any]) -> None:
    """Another communicator, function or number, or a call captured into a graph, is another trace."""
    assert name(record()).trace_id != name(record(**other)).trace_id


def test_clusters() -> None:
    """Two clusters that have the same communicator share no trace."""
    assert name(record(), Traces("a")).trace_id != name(record(), Traces("b")).trace_id


def test_a_pair() -> None:
    """A message is one trace of sender and receiver, apart from that of the other way and of other pairs."""
    sent = name(record("Send", 2, peer=5, sequence=3))
    got = name(record("Recv", 5, peer=2, sequence=3))
    assert (sent.trace_id, sent.span_id, "") == (got.trace_id, got.parent_id, sent.parent_id)
    others = [record("Send", 5, peer=2, sequence=3), record("Send", 2, peer=4, sequence=3), record("Send", 2, peer=5)]
    assert sent.trace_id not in {name(it).trace_id for it in others}
    to_itself = [name(record(kind, 1, peer=1)) for kind in ("Send", "Recv")]
    assert (1, 2) == (len({it.trace_id for it in to_itself}), len({it.span_id for it in to_itself}))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (record(hash=0), NotShared.COMMUNICATOR),
        (record(origin=0), NotShared.SEQUENCE),
        (record("Send", peer=1, origin=0), NotShared.SEQUENCE),
        (record("PutSignal", peer=1), NotShared.OWN),
        (record("GroupEnd", group_ns=1), NotShared.OWN),
    ],
)
def test_what_cannot_be_shared(call: Any, reason: NotShared) -> None:
    """If ranks cannot agree a call has a trace of its own, and the reason."""
    node = Traces()
    first, second = name(call, node), name(call, Traces())
    assert (reason, "") == (first.not_shared, first.parent_id)
    assert first.trace_id != second.trace_id


def test_numbers_that_the_library_gave() -> None:
    """A rank that was met late shares the trace of those that were seen from the start."""
    assert name(record(origin=1, sequence=9)).trace_id == name(record(rank=3, sequence=9)).trace_id


def test_operations_are_shared_whatever_their_number() -> None:
    """Init happens once for a communicator: all its ranks share one trace of it."""
    assert name(record("Init", origin=0)).trace_id == name(record("Init", 3)).trace_id


def test_a_communicator_of_a_hash_that_was_used() -> None:
    """Calls on a second communicator of one hash do not join the first one's; the first one's go on."""
    node = Traces()
    first = name(record(communicator=5), node)
    assert NotShared.REUSED is name(record(communicator=6), node).not_shared
    assert first == name(record(communicator=5), node)
    assert NotShared.REUSED is name(record("Destroy", communicator=0), node).not_shared
    other_rank = name(record(communicator=7, rank=1, tgid=100), node)
    assert first.trace_id == other_rank.trace_id


def test_a_late_communicator_met_again() -> None:
    """A communicator with numbers from the library is the same one when it is met again: they are read again."""
    node = Traces()
    assert [None, None] == [name(record(communicator=it, origin=1), node).not_shared for it in (5, 6)]


def test_groups() -> None:
    """Calls of a group link to its span, which is sampled as the first of them is; the next group is another."""
    node = Traces()
    calls = [name(record(sequence=it, group_ns=50, depth=1), node) for it in range(2)]
    end = name(record("GroupEnd", group_ns=50), node)
    assert [((end.trace_id, end.span_id),)] * 2 == [it.links for it in calls]
    assert calls[0].trace_id[16:] == end.trace_id[16:] and calls[0].trace_id != end.trace_id
    assert calls[0].trace_id != calls[1].trace_id
    assert end.trace_id != name(record("GroupEnd", group_ns=60), node).trace_id


def test_sampling_keeps_whole_traces() -> None:
    """A tenth is kept: of each collective all ranks or none, with their groups, and what was slow besides."""
    sampler = Sampler(0.1)
    verdicts: dict[int, set[Verdict]] = {}
    for rank in range(4):
        node = Traces()
        for number in range(500):
            call = name(record(rank=rank, sequence=number, group_ns=number + 1, depth=1), node)
            group = name(record("GroupEnd", rank=rank, group_ns=number + 1), node)
            verdicts.setdefault(number, set()).update(sampler.judge(span(it.trace_id)) for it in (call, group))
    assert {1} == {len(it) for it in verdicts.values()}
    assert 25 < sum(it == {Verdict.WHOLE} for it in verdicts.values()) < 80
    [left_out, *_] = (number for number, it in verdicts.items() if it == {Verdict.OUT})
    assert Verdict.PARTIAL is sampler.judge(span(name(record(sequence=left_out)).trace_id, slow=True))


def span(trace: str, slow: bool = False) -> Span:
    return Span("AllReduce", trace, "1" * 16, 0, 0, {}, {}, slow=slow)


def test_a_call_that_failed_is_not_taken_for_the_next() -> None:
    """The failed call is in the trace of the number that the next call has, as a span of its own."""
    failed, next_ = name(record(code=3)), name(record(start_ns=3000))
    assert failed.trace_id == next_.trace_id and failed.span_id != next_.span_id
    assert failed.parent_id == next_.span_id


def test_parents_of_other_ranks_are_remote() -> None:
    """Rank 0's span is remote to the other ranks, a sender's to its receiver; nobody's own span is."""
    collective = [name(record(rank=rank)) for rank in range(3)]
    failed = [name(record(rank=rank, code=3)) for rank in range(2)]
    pair = [name(record("Send", 2, peer=5)), name(record("Recv", 5, peer=2)), name(record("Recv", 1, peer=1))]
    grouped = name(record(rank=1, group_ns=7))

    assert [False, True, True] == [it.parent_remote for it in collective]
    assert [False, True] == [it.parent_remote for it in failed]
    assert [False, True, False] == [it.parent_remote for it in pair]
    assert grouped.parent_remote


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more communicators and groups are remembered than so many."""
    monkeypatch.setattr(traces, "MOST_REMEMBERED", 3)
    node = Traces()
    for i in range(10):
        name(record(hash=i + 1, tid=i, group_ns=i + 1, depth=1), node)
    assert (3, 3) == (len(node.lives), len(node.groups))


def test_ids_are_sampled_evenly() -> None:
    """A tenth of the traces is in the lowest tenth of the ids' last 56 bits, within chance."""
    bound = (1 << 56) // 10
    sampled = sum(int(trace_id("", "0000000000000abc", 8, "AllReduce", it)[-14:], 16) < bound for it in range(10_000))
    assert 850 < sampled < 1150
