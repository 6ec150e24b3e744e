"""Parsing of the answers of NCCL's RAS."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.ras.report import Missing, Rank, RasCommunicator, ReportError, parse
from tests.standins import ras

pytestmark = pytest.mark.evidence(feature="NCCL RAS", on="stand-in")

# In the form of NCCL's documentation of RAS; NCCL 2.24 to 2.28.6 know no other.
TEXT = """\
NCCL version 2.26.2 compiled with CUDA 12.8
CUDA runtime version 12080, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE
    1         7         4         1         4        28   RUNNING      OK

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (f264af53edbe986) INCOMPLETE
  Missing communicator data from 2 ranks
  The missing ranks: 21,22

#1-3 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 12 ranks

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#1-4 (27a079b828ff1a76) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
"""


def test_json() -> None:
    """Each rank, its counts and its state; each missing one and why."""
    found = parse(
        ras.report(
            ras.communicator(0xAB, [ras.rank(0, 23), ras.rank(1, 22, error=6, host="unknown")], [ras.missing(2)]),
            ras.communicator(1 << 63, [], [ras.missing(0, dead=True), ras.missing(1, unresponsive=False)]),
            timeouts=3,
        )
    )

    calls = dict.fromkeys(ras.COUNTS, 0)
    first = RasCommunicator(
        "00000000000000ab",
        3,
        1,
        (
            Rank(0, "10.0.0.1", calls | {"AllReduce": 23}, 0, 0),
            Rank(1, "", calls | {"AllReduce": 22}, 0, 6),
        ),
        (Missing(2, "10.0.0.2", "unresponsive"),),
    )
    second = (Missing(0, "10.0.0.2", "dead"), Missing(1, "10.0.0.2", "absent"))
    assert (first, second) == (found.communicators[0], found.communicators[1].missing_ranks)
    assert ("8000000000000000", 2, 1, 3, 0.25, True) == (
        found.communicators[1].comm_hash,
        found.count,
        found.dead_processes,
        found.timeouts,
        found.seconds,
        found.whole,
    )


def test_text() -> None:
    """The text of older versions: how many communicators there are, and those that miss ranks."""
    found = parse(TEXT)

    expected = (
        RasCommunicator("0f264af53edbe986", None, 2, (), (Missing(21, "", ""), Missing(22, "", ""))),
        RasCommunicator("27a079b828ff1a75", None, 12),
    )
    assert expected == found.communicators
    assert ("2.26.2", 8, 1, 2, 2.05, False) == (
        found.version,
        found.count,
        found.dead_processes,
        found.timeouts,
        found.seconds,
        found.whole,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"communicators": None},
        {"communicators": [{}]},
        {"communicators": [[]]},
        {"ras": {}},
        {"ras": {"collection_time_sec": 10**400, "timeouts_count": 0}},
        {"communicators": [ras.communicator(1, [ras.rank(-1, 0)])]},
        {"communicators": [ras.communicator(1, [ras.rank(0, 1 << 64)])]},
        {"communicators": [ras.communicator(1, [ras.rank(0, 1)]) | {"hash": "0x1\n"}]},
        {"communicators": [ras.communicator(1, [ras.rank(True, 1)])]},
    ],
)
def test_other_json_is_refused(change: dict[str, object]) -> None:
    """An answer that is no report is one error, not half a report."""
    with pytest.raises(ReportError):
        parse(json.dumps(json.loads(ras.report()) | change))


@pytest.mark.parametrize(
    "line",
    [
        "Communicators... (1.2.3s)",
        "Communicators... (...s)",
        f"Communicators... ({'9' * 5000}s)",
        f"  {'9' * 5000} job processes are considered dead",
        f"Encountered {'9' * 5000} communication timeouts",
        f"#0-0 (1a) INCOMPLETE\n  Missing communicator data from {'9' * 5000} ranks\n  The missing ranks: 1",
        f"#0-0 (1a) INCOMPLETE\n  Missing communicator data from 1 rank\n  The missing rank: {'9' * 5000}",
        "#0-0 (1a) INCOMPLETE\n  Missing communicator data from 1 rank\n  The missing rank: ,,,",
    ],
)
def test_numbers_that_are_none(line: str) -> None:
    """A line with a number that is none, or too long for one, counts nothing; it ends no reading."""
    found = parse(f"Job summary\n===\n{line}\n")
    assert (0, 0, None) == (found.dead_processes, found.timeouts, found.seconds)
    assert not any(it.missing_ranks and it.missing > 1 for it in found.communicators)


@pytest.mark.parametrize("answer", ["", "hello", "[]", "{", "{" * 100_000, "[1]" * 10])
def test_other_answers_are_refused(answer: str) -> None:
    """Neither form: an error."""
    with pytest.raises(ReportError):
        parse(answer)


@given(st.text(max_size=300), st.integers(0, len(TEXT)))
def test_hostile_text(noise: str, at: int) -> None:
    """Whatever stands in the text, reading it ends, with a report or an error."""
    found = parse("Job summary" + TEXT[:at] + noise + TEXT[at:])

    assert all(len(it.comm_hash) == 16 for it in found.communicators)
