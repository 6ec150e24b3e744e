"""The metrics of the probes of AMD's HIP runtime: stems, units and labels are those of exporter/cuda/metrics.py."""

from __future__ import annotations

from exporter.model import Kind, Metric

ALLOCATED = Metric(
    "gpu.hip.memory.allocations",
    "Bytes of successful allocations, by kind of memory: device (hipMalloc), pool (hipMallocAsync), managed, "
    "pinned_host (allocated or registered). What a framework reserves, not its tensors; arrays, memory of "
    "hipMemCreate, memory that graphs allocate, and the runtime's own, is not seen.",
    Kind.COUNTER,
    "By",
    labels=("memory",),
    process=True,
)
FREED = Metric(
    "gpu.hip.memory.frees",
    "Bytes freed of allocations that were seen. implicit=true: not by a call that was seen, but because their process"
    " ended or their address was allocated once more. Sum both for all, but for untracked memory.",
    Kind.COUNTER,
    "By",
    labels=("memory", "implicit"),
    process=True,
)
USED = Metric(
    "gpu.hip.memory.usage",
    "Bytes allocated and not freed, as the probes saw it; allocations older than the probes are missing. Absent where"
    " a part of it is untracked, a call found no room in the table of calls in flight or was made on a signal stack "
    "inside another call, a call did not return (longjmp, a cancelled thread), return probes were off for a while, "
    "another program replaced this one (exec), or hipDeviceReset was called.",
    Kind.GAUGE,
    "By",
    labels=("memory",),
    process=True,
)
UNTRACKED = Metric(
    "gpu.hip.memory.untracked",
    "Bytes of successful allocations for which the table of live allocations had no room, or their process had its "
    "share of it: part of the allocations, but not of frees.",
    Kind.COUNTER,
    "By",
    labels=("memory",),
    process=True,
)
UNMATCHED_FREES = Metric(
    "gpu.hip.memory.frees.unseen",
    "Successful frees of memory without a seen allocation: it is older than the probes, another process's, or "
    "untracked. `memory` is what the called function usually frees.",
    Kind.COUNTER,
    labels=("memory",),
    process=True,
)
SEEN_FROM_START = Metric(
    "gpu.hip.seen_from_start",
    "1 for a process of which every call on memory was seen; 0 for one that was running already, for one that replaced "
    "another program (exec) and may have made calls before this was noticed, without return probes, and where bytes in "
    "use are absent: memory of other calls is in no metric.",
    Kind.GAUGE,
    process=True,
)
CALLS = Metric(
    "gpu.hip.api.calls",
    "Calls by function, failed ones included. Of a function that another one calls, that call is not counted, unless"
    " return probes may not be used or the table of calls in flight is full.",
    Kind.COUNTER,
    labels=("api",),
    process=True,
)
ERRORS = Metric(
    "gpu.hip.api.errors",
    "Calls that returned an error, by its number (code) and its constant in HIP's headers (error, where it has one). "
    "Errors that launches return are not seen. Absent where return probes may not be used.",
    Kind.COUNTER,
    labels=("api", "code", "error"),
    process=True,
)
LAST_ERROR = Metric(
    "gpu.hip.api.last_error.timestamp",
    "Unix time of the newest call that returned this error.",
    Kind.GAUGE,
    "s",
    labels=("api", "code", "error"),
    process=True,
)
LAUNCHES = Metric(
    "gpu.hip.kernel.launch.calls",
    "Calls that launch a kernel, failed ones included: launches requested, not kernels that the GPU has run. One that"
    " launches on several devices is one call. Kernels of graphs are not counted.",
    Kind.COUNTER,
    process=True,
)
GRAPH_LAUNCHES = Metric(
    "gpu.hip.graph.launch.calls",
    "Calls that launch a graph, failed ones included, however many kernels it has.",
    Kind.COUNTER,
    process=True,
)
LAST_LAUNCH = Metric(
    "gpu.hip.last_launch.timestamp",
    "Unix time of the newest call that launched a kernel or a graph.",
    Kind.GAUGE,
    "s",
    process=True,
)
COPIED = Metric(
    "gpu.hip.memory.copies",
    "Bytes of copies that HIP accepted; a copy may still be under way. direction is that of the function's name or "
    "its hipMemcpyKind: unknown for hipMemcpyDefault and for hip_Memcpy2D. Copies inside graphs and kernels are not "
    "seen. Absent where return probes may not be used.",
    Kind.COUNTER,
    "By",
    labels=("direction",),
    process=True,
)
WAITED = Metric(
    "gpu.hip.sync_wait",
    "Time threads were blocked in calls that wait for the GPU, failed calls included. Absent where return probes may "
    "not be used.",
    Kind.HISTOGRAM,
    "s",
    labels=("api",),
    process=True,
)
COPIES_UNREAD = Metric(
    "gpu.hip.memory.copies.unread",
    "Copies that HIP accepted and that are not counted in bytes: of arrays in three dimensions, in batches, described"
    " by a HIP_MEMCPY3D, or by a structure that could not be read from the process.",
    Kind.COUNTER,
)
