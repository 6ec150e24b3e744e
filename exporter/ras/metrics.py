"""The metrics of NCCL's RAS. Their labels name communicators; nccl_communicator_info joins these to processes."""

from __future__ import annotations

from exporter.model import Kind, Metric

_COMMUNICATOR = ("comm_hash",)
_RANK = (*_COMMUNICATOR, "rank", "host")

QUERIES = Metric(
    "nccl.ras.queries",
    "Queries to the RAS of a job's rank 0 on this node, by outcome: answered, failed.",
    Kind.COUNTER,
    labels=("outcome",),
)
COMMUNICATORS = Metric(
    "nccl.ras.communicators",
    "Communicators reported by the jobs queried from this node, over all nodes of the jobs.",
    Kind.GAUGE,
)
DEAD = Metric(
    "nccl.ras.processes.dead",
    "Processes that RAS considers dead, because it could not reach them for a minute; the sum of the jobs queried "
    "from this node.",
    Kind.GAUGE,
)
TIMEOUTS = Metric(
    "nccl.ras.timeouts",
    "Processes that did not answer RAS in time for its last report; the sum of the jobs queried from this node.",
    Kind.GAUGE,
)
SECONDS = Metric(
    "nccl.ras.collection",
    "Time that RAS took for its last answer; the longest of the jobs queried from this node.",
    Kind.GAUGE,
    "s",
)
SIZE = Metric(
    "nccl.ras.communicator.ranks",
    "Number of ranks with which the communicator was created.",
    Kind.GAUGE,
    labels=_COMMUNICATOR,
    identity=_COMMUNICATOR,
)
MISSING = Metric(
    "nccl.ras.ranks.missing",
    "Ranks of the communicator that did not answer, by state: dead (process not reachable for a minute), unresponsive "
    "(not reachable now), absent (process not in the communicator: starting or ending), unknown (NCCL before 2.28.7 "
    "reports no state, and only communicators with missing ranks).",
    Kind.GAUGE,
    labels=(*_COMMUNICATOR, "state"),
    identity=_COMMUNICATOR,
)
RANK_MISSING = Metric(
    "nccl.ras.rank.missing",
    "Always 1: a rank that did not answer. host is its address according to NCCL, empty where NCCL has none.",
    Kind.GAUGE,
    labels=(*_RANK, "state"),
    identity=_RANK,
)
CALLS = Metric(
    "nccl.ras.rank.collectives",
    "Collectives that the rank launched on the communicator, by function, as NCCL counts them.",
    Kind.COUNTER,
    labels=(*_RANK, "collective"),
    identity=_RANK,
)
LAG = Metric(
    "nccl.ras.rank.lag",
    "Number of collectives by which the rank is behind the first rank of its communicator. Ranks are queried within "
    "some milliseconds of each other: only a lag that stays, or counts of a communicator that do not rise, are a sign "
    "of a fault.",
    Kind.GAUGE,
    labels=_RANK,
    identity=_RANK,
)
ERRORS = Metric(
    "nccl.ras.ranks.failed",
    "Ranks with an error, by phase (init, async) and ncclResult_t (code).",
    Kind.GAUGE,
    labels=(*_COMMUNICATOR, "phase", "code"),
    identity=_COMMUNICATOR,
)
