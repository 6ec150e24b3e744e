"""The metrics of the CUDA probes."""

from __future__ import annotations

from exporter.model import Kind, Metric

ALLOCATED = Metric(
    "gpu.cuda.memory.allocations",
    "Bytes of successful allocations, by kind of memory: device (cuMemAlloc), pool (cuMemAllocAsync), vmm "
    "(cuMemCreate), managed, pinned_host (allocated or registered). For a framework these are its reservations, not "
    "its tensors. Memory that graphs allocate, and the driver's own, is not seen.",
    Kind.COUNTER,
    "By",
    labels=("api_layer", "memory"),
    process=True,
)
FREED = Metric(
    "gpu.cuda.memory.frees",
    "Bytes freed of allocations that were seen. implicit=true: freed without a call, because the context was "
    "destroyed or the process ended. The sum over implicit is all freed memory, except untracked memory.",
    Kind.COUNTER,
    "By",
    labels=("api_layer", "memory", "implicit"),
    process=True,
)
USED = Metric(
    "gpu.cuda.memory.usage",
    "Bytes allocated and not freed, as the probes saw them; allocations older than the probes are missing. Absent "
    "where a part is untracked, a call found no room in the table of calls in flight or was made on a signal stack "
    "inside another call, return probes were off for a while, another program replaced the process's program (exec), "
    "a destroyed context may have been the context of a part, or allocations were probed in windows "
    "(--overhead.max-ratio).",
    Kind.GAUGE,
    "By",
    labels=("api_layer", "memory"),
    process=True,
)
UNTRACKED = Metric(
    "gpu.cuda.memory.untracked",
    "Bytes of successful allocations that the table of live allocations did not take: it was full, or the process had "
    "its share of it. Or that were taken out of it, as allocations were probed in windows (--overhead.max-ratio). "
    "Included in the allocations, but not in the frees. See --collector.cuda.live-allocations.",
    Kind.COUNTER,
    "By",
    labels=("api_layer", "memory"),
    process=True,
)
UNMATCHED_FREES = Metric(
    "gpu.cuda.memory.frees.unseen",
    "Successful frees without a seen allocation: memory older than the probes, of another process, or untracked. "
    "`memory` is the kind that the called function usually frees. Handles (cuMemRelease) are not counted: a handle "
    "without a seen allocation is usually an imported one.",
    Kind.COUNTER,
    labels=("api_layer", "memory"),
    process=True,
)
CALLS = Metric(
    "gpu.cuda.api.calls",
    "Calls by function, failed calls included. A runtime call makes driver calls: do not add the layers. Estimates "
    "for functions with an accel_exporter_probe_sampled_ratio below 1, and absent while these are unknown.",
    Kind.COUNTER,
    labels=("api_layer", "api"),
    process=True,
)
ERRORS = Metric(
    "gpu.cuda.api.errors",
    "Calls that returned an error, by its number (code) and its constant in CUDA's headers (error; absent where there "
    "is none). Errors of launches and of the runtime's copies are counted only with --collector.cuda.all-errors.",
    Kind.COUNTER,
    labels=("api_layer", "api", "code", "error"),
    process=True,
)
LAST_ERROR = Metric(
    "gpu.cuda.api.last_error.timestamp",
    "Unix time of the newest call that returned this error.",
    Kind.GAUGE,
    "s",
    labels=("api_layer", "api", "code", "error"),
    process=True,
)
LAUNCHES = Metric(
    "gpu.cuda.kernel.launch.calls",
    "Kernel launch calls: launches requested, not kernels that the GPU has run. Kernels of graphs are not counted. "
    "Absent for a process probed in windows while the number of launches between the windows is unknown.",
    Kind.COUNTER,
    labels=("api_layer",),
    process=True,
)
GRAPH_LAUNCHES = Metric(
    "gpu.cuda.graph.launch.calls",
    "Graph launch calls: one each, however many kernels the graph has.",
    Kind.COUNTER,
    labels=("api_layer",),
    process=True,
)
LAST_LAUNCH = Metric(
    "gpu.cuda.last_launch.timestamp",
    "Unix time of the newest call that launched a kernel or a graph. Some seconds late while launches are probed in "
    "windows (see accel_exporter_probe_sampled_ratio).",
    Kind.GAUGE,
    "s",
    process=True,
)
COPIED = Metric(
    "gpu.cuda.memory.copies",
    "Bytes of copies that the driver accepted; a copy may still be in progress. host_memory is the kind of host "
    "memory; pageable appears only for processes observed from their first call on with all their host memory seen. "
    "Copies inside graphs and kernels are not seen. Absent for a process while copies are probed in windows "
    "(--overhead.max-ratio), and without those of this time.",
    Kind.COUNTER,
    "By",
    labels=("direction", "host_memory"),
    process=True,
)
WAITED = Metric(
    "gpu.cuda.sync_wait",
    "Time that threads were blocked in calls that wait for the GPU. cuda* calls wait in cu* calls: do not add the "
    "layers. Absent for a process while waits are probed in windows (--overhead.max-ratio), and without those of this "
    "time.",
    Kind.HISTOGRAM,
    "s",
    labels=("api_layer", "api"),
    process=True,
)
UNATTRIBUTED = Metric(
    "gpu.cuda.memory.unattributed",
    "GPU memory of the process according to NVML, minus the memory in use that the driver probes count (device, pool, "
    "vmm, managed): contexts, modules, local memory of kernels, arrays, memory kept by pools, memory of libraries. "
    "Only for processes seen from their start; the value from NVML is some seconds old.",
    Kind.GAUGE,
    "By",
    process=True,
)
SEEN_FROM_START = Metric(
    "gpu.cuda.seen_from_start",
    "1 for a process with every call seen; 0 for a process that was already running, that replaced its program (exec) "
    "and may have made calls before this was noticed, or without return probes: memory allocated earlier has no "
    "metric of its own. 0 also if an unknown number of launches is in no count, or copies, waits or allocations were "
    "probed in windows (--overhead.max-ratio). Absent in the first fraction of a second, until the exporter has "
    "noticed the process.",
    Kind.GAUGE,
    process=True,
)
COPIES_UNREAD = Metric(
    "gpu.cuda.memory.copies.unread",
    "Copies without counted bytes: the description could not be read from the process, was too long, or describes a "
    "batch of three-dimensional copies.",
    Kind.COUNTER,
)
