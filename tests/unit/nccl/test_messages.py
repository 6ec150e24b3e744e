"""Cost of messages to a process, and estimates added to its counts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.governor.estimates import ProcessTally
from exporter.governor.processes import cpu_seconds
from exporter.nccl.activity import Activity, Calls
from exporter.nccl.functions import FUNCTIONS
from exporter.nccl.messages import Messages
from exporter.nccl.samples import Kinds
from tests.unit.priced import Probes

NAMES = (*dict.fromkeys(it.kind for it in FUNCTIONS if it.kind not in ("GroupEnd", "none")), "GroupEnd", "none")
KINDS = Kinds(dict(enumerate(NAMES)), group_end=NAMES.index("GroupEnd"), none=NAMES.index("none"))
SEND, RECV, REDUCE = (NAMES.index(name) for name in ("Send", "Recv", "AllReduce"))
PRICES = {"ncclSend": 1e-6, "ncclRecv": 2e-6, "ncclGroupStart": 3e-6, "ncclGroupEnd": 4e-6, "ncclAllReduce": 5e-6}


FIELDS = ("calls", "bytes", "bus_bytes", "unsized", "anonymous")


def of(kind: int, counts: Mapping[str, int]) -> dict[tuple[int, str], int]:
    """The counts of a kind as tallies have them."""
    return {(kind, name): count for name, count in counts.items()}


class Rows:
    """The map `calls`."""

    def __init__(self, rows: Mapping[tuple[int, int], Calls]) -> None:
        self._rows = rows

    def items(self) -> Iterator[tuple[Any, Any]]:
        for (tgid, kind), calls in self._rows.items():
            yield SimpleNamespace(tgid=tgid, kind=kind), SimpleNamespace(**calls._asdict())


def made(rows: Mapping[tuple[int, int], Calls], prices: Mapping[str, float] = PRICES) -> Messages:
    def cpu(pid: int) -> float:
        if pid == 9:
            raise OSError
        return 60.0 + pid

    hits = {"ncclSend": 10, "ncclRecv": 20, "ncclAllReduce": 1000}
    return Messages(Probes(prices), Rows(rows), lambda: hits, KINDS, cpu=cpu)  # type: ignore[arg-type]


def test_tallies() -> None:
    """Messages apart from other calls, of which another subject has the cost; nothing of an ended process."""
    rows = {
        (1, SEND): Calls(100, 4000, 4000, 1, 2, 77),
        (1, RECV): Calls(50, 2000, 2000, 0, 0, 78),
        (1, KINDS.group_end): Calls(10, 0, 0, 0, 0, 79),
        (1, REDUCE): Calls(7, 1, 1, 0, 0, 80),
        (3, SEND): Calls(5, 5, 5, 0, 0, 81),
        (9, SEND): Calls(6, 6, 6, 0, 0, 82),
    }
    found = made(rows).tallies([1, 2, 9])
    assert {1, 2} == found.keys()
    sent = dict(zip(FIELDS, (100, 4000, 4000, 1, 2), strict=True))
    received = dict(zip(FIELDS, (50, 2000, 2000, 0, 0), strict=True))
    assert of(SEND, sent) | of(RECV, received) == found[1].counts
    assert (10, 61.0) == (found[1].reference, found[1].cpu)
    assert pytest.approx(100e-6 + 100e-6) == found[1].cost
    assert 0 == found[1].other
    assert ProcessTally({}, 0, 0, 0, 62.0) == found[2]


def test_the_cost_of_all_messages() -> None:
    """Other calls are not in it; without prices it is not known."""
    assert pytest.approx(10e-6 + 40e-6) == made({}).sampled_cost()
    assert made({}, {"ncclSend": 1e-6}).sampled_cost() is None


def test_estimates_are_added() -> None:
    """To each kind its own; the time of the newest call stays, and a kind without estimates."""
    messages = made({})
    activity = Activity(calls={SEND: Calls(1, 2, 3, 4, 5, 6), REDUCE: Calls(9, 9, 9, 9, 9, 9)})
    messages.add(activity, of(SEND, dict(zip(FIELDS, (10, 20, 30, 40, 50), strict=True))))
    assert {SEND: Calls(11, 22, 33, 44, 55, 6), REDUCE: Calls(9, 9, 9, 9, 9, 9)} == activity.calls
    messages.add(activity, of(RECV, {"calls": 1, "bytes": 2, "bus_bytes": 3}))
    assert Calls(1, 2, 3, 0, 0, 0) == activity.calls[RECV]
    before = dict(activity.calls)
    messages.add(activity, {})
    assert before == activity.calls
    messages.add(activity, None)
    unknown = {SEND: Calls(0, 0, 0, 0, 0, 6), RECV: Calls(0, 0, 0, 0, 0, 0)}
    assert {**unknown, REDUCE: Calls(9, 9, 9, 9, 9, 9)} == activity.calls


def test_the_last_tally_has_the_last_known_cpu_time() -> None:
    activity = Activity(calls={SEND: Calls(1, 2, 3, 4, 5, 6)})
    last = made({}).last(1, activity)(ProcessTally({}, 0, 0, 0, 33.0))
    assert of(SEND, dict(zip(FIELDS, (1, 2, 3, 4, 5), strict=True))) == last.counts and 33.0 == last.cpu


def test_the_clock_of_a_process() -> None:
    """Rises with what the process does; a pid that no process can have is an error."""
    before = cpu_seconds(os.getpid())
    sum(range(100_000))
    assert before < cpu_seconds(os.getpid())
    with pytest.raises(OSError):
        cpu_seconds((1 << 22) + 1)
