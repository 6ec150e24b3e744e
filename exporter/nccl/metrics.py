"""The metrics of the NCCL probes."""

from __future__ import annotations

from exporter.model import Kind, Metric

_MEMBER = ("comm_hash", "rank")

_ESTIMATED = " Estimates while accel_exporter_probe_sampled_ratio is below 1."
CALLS = Metric(
    "nccl.collective.calls",
    "Calls by collective (point-to-point and one-sided calls included), with failed calls and calls of groups that "
    "were only simulated. A call is a request: replays of CUDA graphs make none. A call that one NCCL function makes "
    "to another is not counted again." + _ESTIMATED,
    Kind.COUNTER,
    labels=("collective",),
    process=True,
)
BYTES = Metric(
    "nccl.collective.bytes",
    "Bytes that the calls named, failed calls included: count times the size of the type; for AllGather, "
    "ReduceScatter, AlltoAll, Gather and Scatter one rank's part." + _ESTIMATED,
    Kind.COUNTER,
    "By",
    labels=("collective",),
    process=True,
)
BUS_BYTES = Metric(
    "nccl.collective.bus",
    "Bytes that each rank has to move for these calls with any algorithm, as nccl-tests defines bus bandwidth: "
    "AllReduce 2(n-1)/n of the buffer; AllGather, ReduceScatter, AlltoAll, Gather and Scatter (n-1) parts; all others "
    "the bytes. Absent for a process with communicators that cannot be read." + _ESTIMATED,
    Kind.COUNTER,
    "By",
    labels=("collective",),
    process=True,
)
UNSIZED = Metric(
    "nccl.collective.unsized.calls",
    "Calls without counted bytes: their data type is unknown to the exporter, their counts could not be read, or are "
    "more than 8 TiB.",
    Kind.COUNTER,
    labels=("collective",),
    process=True,
)
ANONYMOUS = Metric(
    "nccl.collective.anonymous.calls",
    "Calls with a communicator that could not be read. Their bus bytes are not counted, and they belong to no "
    "nccl_communicator_info.",
    Kind.COUNTER,
    labels=("collective",),
    process=True,
)
GROUPS = Metric(
    "nccl.groups", "Outermost groups that were closed with ncclGroupEnd." + _ESTIMATED, Kind.COUNTER, process=True
)
ENQUEUE = Metric(
    "nccl.enqueue",
    "Host time in the call, which only enqueues: not the time of the transfer. Inside a group a call returns at once, "
    "and the outermost ncclGroupEnd (collective=GroupEnd) does the work. For Send and Recv only with "
    "--collector.nccl.message-spans. Absent while collectives of the process are in windows.",
    Kind.HISTOGRAM,
    "s",
    labels=("collective",),
    process=True,
)
OPERATION = Metric(
    "nccl.communicator.operation",
    "Host time in calls that create, change or end communicators: Init (every form of ncclCommInit*), Split, Shrink, "
    "Grow, Finalize, Revoke, Destroy, Abort. Inside a group, and with non-blocking communicators, the calls return "
    "early.",
    Kind.HISTOGRAM,
    "s",
    labels=("operation",),
    process=True,
)
LAST_CALL = Metric(
    "nccl.last_call.timestamp",
    "Unix time of the newest call of a collective or end of an outermost group. Some seconds late while "
    "accel_exporter_probe_sampled_ratio is below 1.",
    Kind.GAUGE,
    "s",
    process=True,
)
IN_FLIGHT = Metric(
    "nccl.calls.in_flight",
    "Threads that are inside an NCCL call now, without Send and Recv unless --collector.nccl.message-spans is on, plus "
    "non-blocking communicators for which the newest call of ncclCommGetAsyncError returned ncclInProgress, if this "
    "call is less than a minute ago. Absent where return probes may not be used, and while collectives of the process "
    "are in windows.",
    Kind.GAUGE,
    process=True,
)
COMMUNICATOR = Metric(
    "nccl.communicator.info",
    "Always 1: rank of the process in a communicator, and the communicator's number of ranks. comm_hash identifies "
    "the communicator as NCCL's log, Inspector and RAS do; cuda_device is the GPU in the process's own numbering, "
    "absent until it is known.",
    Kind.GAUGE,
    labels=("comm_hash", "rank", "nranks", "cuda_device"),
    identity=_MEMBER,
    process=True,
)
LAG = Metric(
    "nccl.rank.arrival_lag",
    "Host time by which this rank called a collective later than the first rank of its communicator on this node; for "
    "a call in a group, the end of the outermost group counts. Only calls that all ranks number alike, and only where "
    "the node has two or more ranks of the communicator, of one user in one job or pod. Without Send, Recv, one-sided "
    "calls, calls captured into graphs, calls of a group that was only simulated, calls after a failed group of the "
    "communicator, calls that the first rank made more than 128 calls ago, calls on a second communicator with an "
    "equal hash in the process, calls for which the table of arrivals had no room, and calls while collectives of a "
    "rank are in windows.",
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
    "this node has called, and this rank not yet; compared like nccl_rank_arrival_lag_seconds, and absent for a rank "
    "with collectives in windows. A value that stays above 0 means that the other ranks wait for this one.",
    Kind.GAUGE,
    labels=_MEMBER,
    identity=_MEMBER,
    process=True,
)
SEEN_FROM_START = Metric(
    "nccl.seen_from_start",
    "1 if every NCCL call of the process was seen, or is in an estimate of Send and Recv; 0 if not: it called NCCL "
    "before it was first observed, or its collectives were in windows to stay within --overhead.max-ratio. Then "
    "enqueue times and errors lack calls. Absent until this is known.",
    Kind.GAUGE,
    process=True,
)
UNSAMPLED = Metric(
    "nccl.spans.unsampled",
    "Calls without a span, because all ranks left their trace out to stay within --collector.nccl.spans-per-second. "
    "Absent while spans are not exported.",
    Kind.COUNTER,
    "{span}",
)
ERRORS = Metric(
    "nccl.errors",
    "Calls that returned an error, by function (api), number (code) and constant in nccl.h (error; absent where there "
    "is none). An error of a communicator counts once for ncclCommGetAsyncError, when it is first returned. Without "
    "--collector.nccl.message-spans errors of Send and Recv are not counted, unless the ncclGroupEnd around them "
    "fails. Errors of collectives and groups are absent while these are in windows.",
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
