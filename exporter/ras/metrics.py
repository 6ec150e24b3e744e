"""The metrics of NCCL's RAS. They name communicators; nccl_communicator_info leads to their processes."""

from __future__ import annotations

from exporter.model import Kind, Metric

_COMMUNICATOR = ("comm_hash",)
_RANK = (*_COMMUNICATOR, "rank", "host")

QUERIES = Metric(
    "nccl.ras.queries",
    "Questions to the RAS of a job's rank 0 on this node, by outcome: answered, failed.",
    Kind.COUNTER,
    labels=("outcome",),
)
COMMUNICATORS = Metric(
    "nccl.ras.communicators",
    "Communicators that the jobs asked from this node told of, over all their nodes.",
    Kind.GAUGE,
)
DEAD = Metric(
    "nccl.ras.processes.dead",
    "Processes of these jobs that RAS has considered dead since it could not reach them for a minute.",
    Kind.GAUGE,
)
TIMEOUTS = Metric(
    "nccl.ras.timeouts",
    "Processes that RAS waited for in vain when it was last asked, summed over these jobs.",
    Kind.GAUGE,
)
SECONDS = Metric(
    "nccl.ras.collection", "Time that RAS took for its last answer, the longest of these jobs.", Kind.GAUGE, "s"
)
SIZE = Metric(
    "nccl.ras.communicator.ranks",
    "Ranks that the communicator was made with.",
    Kind.GAUGE,
    labels=_COMMUNICATOR,
    identity=_COMMUNICATOR,
)
MISSING = Metric(
    "nccl.ras.ranks.missing",
    "Ranks of the communicator that did not answer: dead (their process has not been reachable for a minute), "
    "unresponsive (not reachable now), absent (their process does not count itself in: starting or ending), or unknown "
    "(NCCL before 2.28.7 does not say which; it tells only of communicators that miss any).",
    Kind.GAUGE,
    labels=(*_COMMUNICATOR, "state"),
    identity=_COMMUNICATOR,
)
RANK_MISSING = Metric(
    "nccl.ras.rank.missing",
    "Always 1: this rank did not answer. host is the address that NCCL has for it, empty when it has none.",
    Kind.GAUGE,
    labels=(*_RANK, "state"),
    identity=_RANK,
)
CALLS = Metric(
    "nccl.ras.rank.collectives",
    "Collectives that the rank has launched on the communicator, by function, as NCCL counts them.",
    Kind.COUNTER,
    labels=(*_RANK, "collective"),
    identity=_RANK,
)
LAG = Metric(
    "nccl.ras.rank.lag",
    "Collectives that the rank is behind the first of its communicator. Ranks are asked within some milliseconds of "
    "each other: a lag that stays, or a communicator whose counts stand still, is what matters.",
    Kind.GAUGE,
    labels=_RANK,
    identity=_RANK,
)
ERRORS = Metric(
    "nccl.ras.ranks.failed",
    "Ranks with an error, by when (init, async) and ncclResult_t.",
    Kind.GAUGE,
    labels=(*_COMMUNICATOR, "phase", "code"),
    identity=_COMMUNICATOR,
)
