"""The metrics of the probes of AMD's HIP runtime: stems, units and labels are those of exporter/cuda/metrics.py."""

from __future__ import annotations

from exporter.amdgpu import metrics as amdgpu
from exporter.model import Kind, Metric

RUNTIME = {"runtime": "hip"}
"""The labels of every series of a process, which keep the series apart where a query adds them to CUDA's."""
OWN = (*RUNTIME, *amdgpu.GPU)
"""The names of the labels that every series of a process has, besides those of the process."""

ALLOCATED = Metric(
    "gpu.hip.memory.allocations",
    "Bytes of successful allocations, by kind of memory: device (hipMalloc), pool (hipMallocAsync), managed, "
    "pinned_host (allocated or registered). For a framework these are its reservations, not its tensors. Arrays, "
    "memory of hipMemCreate, memory that graphs allocate, and the runtime's own, is not seen.",
    Kind.COUNTER,
    "By",
    labels=(*OWN, "memory"),
    process=True,
)
FREED = Metric(
    "gpu.hip.memory.frees",
    "Bytes freed of allocations that were seen. implicit=true: freed without a seen call, because the process ended "
    "or the address was allocated once more. The sum over implicit is all freed memory, except untracked memory.",
    Kind.COUNTER,
    "By",
    labels=(*OWN, "memory", "implicit"),
    process=True,
)
USED = Metric(
    "gpu.hip.memory.usage",
    "Bytes allocated and not freed, as the probes saw them; allocations older than the probes are missing. Absent "
    "where a part is untracked, a call found no room in the table of calls in flight or was made on a signal stack "
    "inside another call, a call did not return (longjmp, a cancelled thread), return probes were off for a while, "
    "another program replaced the process's program (exec), or hipDeviceReset was called for the device.",
    Kind.GAUGE,
    "By",
    labels=(*OWN, "memory"),
    process=True,
)
UNTRACKED = Metric(
    "gpu.hip.memory.untracked",
    "Bytes of successful allocations that the table of live allocations did not take: it was full, or the process had "
    "its share of it. Included in the allocations, but not in the frees.",
    Kind.COUNTER,
    "By",
    labels=(*OWN, "memory"),
    process=True,
)
UNMATCHED_FREES = Metric(
    "gpu.hip.memory.frees.unseen",
    "Successful frees without a seen allocation: memory older than the probes, of another process, or untracked. "
    "`memory` is the kind that the called function usually frees.",
    Kind.COUNTER,
    labels=(*OWN, "memory"),
    process=True,
)
SEEN_FROM_START = Metric(
    "gpu.hip.seen_from_start",
    "1 for a process with every call on memory seen; 0 for a process that was already running, that replaced its "
    "program (exec) and may have made calls before this was noticed, without return probes, and where "
    "gpu_hip_memory_usage_bytes is absent: memory of unseen calls is in no metric. 0 also if an unknown number of "
    "launches is in no count (--overhead.max-ratio).",
    Kind.GAUGE,
    labels=OWN,
    process=True,
)
CALLS = Metric(
    "gpu.hip.api.calls",
    "Calls by function, failed calls included. A call that one HIP function makes to another is not counted, unless "
    "return probes may not be used or the table of calls in flight is full.",
    Kind.COUNTER,
    labels=(*OWN, "api"),
    process=True,
)
ERRORS = Metric(
    "gpu.hip.api.errors",
    "Calls that returned an error, by its number (code) and its constant in HIP's headers (error; absent where there "
    "is none). Errors that launches return are not seen. Absent where return probes may not be used.",
    Kind.COUNTER,
    labels=(*OWN, "api", "code", "error"),
    process=True,
)
LAST_ERROR = Metric(
    "gpu.hip.api.last_error.timestamp",
    "Unix time of the newest call that returned this error.",
    Kind.GAUGE,
    "s",
    labels=(*OWN, "api", "code", "error"),
    process=True,
)
LAUNCHES = Metric(
    "gpu.hip.kernel.launch.calls",
    "Kernel launch calls, failed calls included: launches requested, not kernels that the GPU has run. A launch on "
    "several devices is one call. Kernels of graphs are not counted.",
    Kind.COUNTER,
    labels=OWN,
    process=True,
)
GRAPH_LAUNCHES = Metric(
    "gpu.hip.graph.launch.calls",
    "Graph launch calls, failed calls included: one each, however many kernels the graph has.",
    Kind.COUNTER,
    labels=OWN,
    process=True,
)
LAST_LAUNCH = Metric(
    "gpu.hip.last_launch.timestamp",
    "Unix time of the newest call that launched a kernel or a graph.",
    Kind.GAUGE,
    "s",
    labels=OWN,
    process=True,
)
COPIED = Metric(
    "gpu.hip.memory.copies",
    "Bytes of copies that HIP accepted; a copy may still be in progress. direction comes from the function's name or "
    "its hipMemcpyKind: unknown for hipMemcpyDefault and for hip_Memcpy2D. Copies inside graphs and kernels are not "
    "seen. Absent where return probes may not be used.",
    Kind.COUNTER,
    "By",
    labels=(*OWN, "direction"),
    process=True,
)
WAITED = Metric(
    "gpu.hip.sync_wait",
    "Time that threads were blocked in calls that wait for the GPU, failed calls included. Absent where return probes "
    "may not be used.",
    Kind.HISTOGRAM,
    "s",
    labels=(*OWN, "api"),
    process=True,
)
COPIES_UNREAD = Metric(
    "gpu.hip.memory.copies.unread",
    "Copies that HIP accepted, without counted bytes: copies of arrays in three dimensions, in batches, described by "
    "a HIP_MEMCPY3D, or described by a structure that could not be read from the process.",
    Kind.COUNTER,
)
