"""The metrics of the NCCL probes."""

from __future__ import annotations

from exporter.model import Kind, Metric

_MEMBER = ("comm_hash", "rank")

_ESTIMATED = " Estimates of Send and Recv while accel_exporter_probe_sampled_ratio is below 1."
CALLS = Metric(
    "nccl.collective.calls",
    "Calls by collective (point-to-point and one-sided calls too), failed ones and those of groups that were only "
    "simulated included. A call is a request: replays of CUDA graphs make none. What one NCCL function calls of NCCL "
    "is not counted again." + _ESTIMATED,
    Kind.COUNTER,
    labels=("collective",),
    process=True,
)
BYTES = Metric(
    "nccl.collective.bytes",
    "Bytes that the calls named, failed ones too: count times size of the type, which for AllGather, ReduceScatter, "
    "AlltoAll, Gather and Scatter is one rank's part." + _ESTIMATED,
    Kind.COUNTER,
    "By",
    labels=("collective",),
    process=True,
)
BUS_BYTES = Metric(
    "nccl.collective.bus",
    "Bytes that each rank has to move for these calls whatever the algorithm, as nccl-tests defines them for its bus "
    "bandwidth: AllReduce 2(n-1)/n of the buffer, AllGather, ReduceScatter, AlltoAll, Gather and Scatter (n-1) parts, "
    "all others the bytes. Absent for a process with communicators that cannot be read." + _ESTIMATED,
    Kind.COUNTER,
    "By",
    labels=("collective",),
    process=True,
)
UNSIZED = Metric(
    "nccl.collective.unsized.calls",
    "Calls without counted bytes: of a type that is not known here, or with counts that could not be read.",
    Kind.COUNTER,
    labels=("collective",),
    process=True,
)
ANONYMOUS = Metric(
    "nccl.collective.anonymous.calls",
    "Calls with a communicator that could not be read: their bus bytes are not counted, and they belong to no "
    "nccl_communicator_info.",
    Kind.COUNTER,
    labels=("collective",),
    process=True,
)
GROUPS = Metric("nccl.groups", "Outermost groups that were closed with ncclGroupEnd.", Kind.COUNTER, process=True)
ENQUEUE = Metric(
    "nccl.enqueue",
    "Host time in the call, which only enqueues: not the time of the transfer. Inside a group a call returns at once, "
    "and the work is done in the outermost ncclGroupEnd (collective=GroupEnd). Of Send and Recv only with "
    "--collector.nccl.message-spans.",
    Kind.HISTOGRAM,
    "s",
    labels=("collective",),
    process=True,
)
OPERATION = Metric(
    "nccl.communicator.operation",
    "Host time in calls that make, change or end communicators: Init (every form of ncclCommInit*), Split, Shrink, "
    "Grow, Finalize, Revoke, Destroy, Abort. Inside a group, and where communicators are "
    "non-blocking, they return early.",
    Kind.HISTOGRAM,
    "s",
    labels=("operation",),
    process=True,
)
LAST_CALL = Metric(
    "nccl.last_call.timestamp",
    "Unix time at which the newest collective was called, or the newest outermost group closed. Some seconds late for "
    "a Send or Recv outside of groups while accel_exporter_probe_sampled_ratio is below 1.",
    Kind.GAUGE,
    "s",
    process=True,
)
IN_FLIGHT = Metric(
    "nccl.calls.in_flight",
    "Threads that are inside an NCCL call now, other than Send and Recv without --collector.nccl.message-spans. Absent "
    "where return probes may not be used.",
    Kind.GAUGE,
    process=True,
)
COMMUNICATOR = Metric(
    "nccl.communicator.info",
    "Always 1: the process is this rank of a communicator with so many ranks. comm_hash is what NCCL's log, Inspector "
    "and RAS call it; cuda_device the GPU as the process numbers them, absent until it is known.",
    Kind.GAUGE,
    labels=("comm_hash", "rank", "nranks", "cuda_device"),
    identity=_MEMBER,
    process=True,
)
LAG = Metric(
    "nccl.rank.arrival_lag",
    "How much later this rank called a collective than the first rank of its communicator on this node that called the"
    " same one: host time, not that of GPUs, of a call in a group when its outermost group ends. Of every call that "
    "all ranks number alike; Send, Recv, one-sided calls and those captured into graphs are none, nor is one of a "
    "group that was only simulated, one after a group of the communicator that failed, one that the first rank "
    "called more than 128 calls ago, one on a second communicator of the same hash in the process, or one for which "
    "the table of arrivals had no room. Only where the node has two ranks of the communicator or more, of one user in "
    "one job or pod.",
    Kind.HISTOGRAM,
    "s",
    labels=_MEMBER,
    identity=_MEMBER,
    process=True,
    classic=True,
)
BEHIND = Metric(
    "nccl.rank.calls_behind",
    "Collectives (Broadcast, Reduce, AllGather, ReduceScatter, AllReduce) that another rank of the communicator on "
    "this node has called and this one not yet; compared as nccl_rank_arrival_lag_seconds is. A value "
    "that stays above 0 means that the other ranks wait for this one.",
    Kind.GAUGE,
    labels=_MEMBER,
    identity=_MEMBER,
    process=True,
)
UNSAMPLED = Metric(
    "nccl.spans.unsampled",
    "Calls without a span because their trace is left out by all ranks, to keep to --collector.nccl.spans-per-second. "
    "Absent while spans are not exported.",
    Kind.COUNTER,
    "{span}",
)
ERRORS = Metric(
    "nccl.errors",
    "Calls that returned an error, by function (api), its number (code) and its constant in nccl.h (error, where it "
    "has one). ncclCommGetAsyncError counts an error of a communicator once, when it first gives it; Send and Recv "
    "none without --collector.nccl.message-spans, unless the ncclGroupEnd around them fails.",
    Kind.COUNTER,
    labels=("api", "code", "error"),
    process=True,
)
LAST_ERROR = Metric(
    "nccl.last_error.timestamp",
    "Unix time of the newest call that returned this error.",
    Kind.GAUGE,
    "s",
    labels=("api", "code", "error"),
    process=True,
)
