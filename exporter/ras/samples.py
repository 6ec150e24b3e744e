"""Reports of RAS as samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from exporter.model import Sample
from exporter.ras import metrics
from exporter.ras.report import STATES, RasCommunicator, Report

_FINE = (0, 7)
"""ncclSuccess, ncclInProgress."""


def samples(reports: Sequence[Report]) -> Iterator[Sample]:
    """Yield the samples of the jobs' reports. Without a report there is none: the state of jobs is unknown."""
    if not reports:
        return
    yield metrics.COMMUNICATORS.sample(sum(report.count for report in reports))
    yield metrics.DEAD.sample(sum(report.dead_processes for report in reports))
    yield metrics.TIMEOUTS.sample(sum(report.timeouts for report in reports))
    if times := [report.seconds for report in reports if report.seconds is not None]:
        yield metrics.SECONDS.sample(max(times))
    for report in reports:
        for comm in report.communicators:
            yield from _missing(comm, report.whole)
            yield from _ranks(comm)


def _missing(comm: RasCommunicator, whole: bool) -> Iterator[Sample]:
    labels = {"comm_hash": comm.comm_hash}
    if whole:
        states = Counter(rank.state for rank in comm.missing_ranks)
        yield from (metrics.MISSING.sample(states[state], labels | {"state": state}) for state in STATES)
    else:
        yield metrics.MISSING.sample(comm.missing, labels | {"state": "unknown"})
    for rank in comm.missing_ranks:
        yield metrics.RANK_MISSING.sample(
            1, labels | {"rank": str(rank.rank), "host": rank.host, "state": rank.state or "unknown"}
        )


def _ranks(comm: RasCommunicator) -> Iterator[Sample]:
    labels = {"comm_hash": comm.comm_hash}
    if comm.size is not None:
        yield metrics.SIZE.sample(comm.size, labels)
    failed = Counter(("init", rank.init_state) for rank in comm.ranks if rank.init_state not in _FINE)
    failed += Counter(("async", rank.async_error) for rank in comm.ranks if rank.async_error not in _FINE)
    for (phase, code), ranks in failed.items():
        yield metrics.ERRORS.sample(ranks, labels | {"phase": phase, "code": str(code)})
    first = max((sum(rank.calls.values()) for rank in comm.ranks), default=0)
    for rank in comm.ranks:
        own = labels | {"rank": str(rank.rank), "host": rank.host}
        yield metrics.LAG.sample(first - sum(rank.calls.values()), own)
        for function, calls in rank.calls.items():
            yield metrics.CALLS.sample(calls, own | {"collective": function})
