"""The metrics of the CUDA probes."""

from __future__ import annotations

from exporter.model import Kind, Metric

ALLOCATED = Metric(
    "gpu.cuda.memory.allocations",
    "Bytes of successful allocations, by kind of memory: device (cuMemAlloc), pool (cuMemAllocAsync), vmm "
    "(cuMemCreate), managed, pinned_host (allocated or registered). What a framework reserves, not its tensors; memory "
    "that graphs allocate, and the driver's own, is not seen.",
    Kind.COUNTER,
    "By",
    labels=("api_layer", "memory"),
    process=True,
)
FREED = Metric(
    "gpu.cuda.memory.frees",
    "Bytes freed of allocations that were seen. implicit=true: not by a call, but because their context was "
    "destroyed or their process ended. Sum both for all, but for untracked memory.",
    Kind.COUNTER,
    "By",
    labels=("api_layer", "memory", "implicit"),
    process=True,
)
USED = Metric(
    "gpu.cuda.memory.usage",
    "Bytes allocated and not freed, as the probes saw it; allocations older than the probes are missing. Absent where "
    "a part of it is untracked, a call found no room in the table of calls in flight or was made on a signal stack "
    "inside another call, return probes were off for a while, another program replaced this one (exec), or a context "
    "was destroyed that may have been that of a part.",
    Kind.GAUGE,
    "By",
    labels=("api_layer", "memory"),
    process=True,
)
UNTRACKED = Metric(
    "gpu.cuda.memory.untracked",
    "Bytes of successful allocations for which the table of live allocations had no room, or their process had its "
    "share of it: part of the allocations, but not of frees. See --collector.cuda.live-allocations.",
    Kind.COUNTER,
    "By",
    labels=("api_layer", "memory"),
    process=True,
)
UNMATCHED_FREES = Metric(
    "gpu.cuda.memory.frees.unseen",
    "Successful frees of memory without a seen allocation: it is older than the probes, another process's, or "
    "untracked. `memory` is what the called function usually frees. Handles (cuMemRelease) are not among them: those "
    "not seen are usually imported ones.",
    Kind.COUNTER,
    labels=("api_layer", "memory"),
    process=True,
)
CALLS = Metric(
    "gpu.cuda.api.calls",
    "Calls by function, failed ones included. A runtime call makes driver calls: do not add the layers up.",
    Kind.COUNTER,
    labels=("api_layer", "api"),
    process=True,
)
ERRORS = Metric(
    "gpu.cuda.api.errors",
    "Calls that returned an error, by its number (code) and its constant in CUDA's headers (error, where it has one). "
    "Errors of launches, and of the runtime's copies, only with --collector.cuda.all-errors.",
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
    "Calls that launch a kernel: launches requested, not kernels that the GPU has run. Kernels of graphs are not "
    "counted. Absent for a process that is probed in windows while the number of launches between the windows is not "
    "known.",
    Kind.COUNTER,
    labels=("api_layer",),
    process=True,
)
GRAPH_LAUNCHES = Metric(
    "gpu.cuda.graph.launch.calls",
    "Calls that launch a graph, however many kernels it has.",
    Kind.COUNTER,
    labels=("api_layer",),
    process=True,
)
LAST_LAUNCH = Metric(
    "gpu.cuda.last_launch.timestamp",
    "Unix time of the newest call that launched a kernel or a graph. Some seconds late while launches are probed in "
    "windows (accel_exporter_probe_sampled_ratio).",
    Kind.GAUGE,
    "s",
    process=True,
)
COPIED = Metric(
    "gpu.cuda.memory.copies",
    "Bytes of copies that the driver accepted; a copy may still be under way. host_memory is the host side's: pageable "
    "is only for processes seen from their first call on, with all their host memory. Copies inside graphs and kernels "
    "are not seen.",
    Kind.COUNTER,
    "By",
    labels=("direction", "host_memory"),
    process=True,
)
WAITED = Metric(
    "gpu.cuda.sync_wait",
    "Time threads were blocked in calls that wait for the GPU. cuda* calls wait in cu* calls: never add the layers.",
    Kind.HISTOGRAM,
    "s",
    labels=("api_layer", "api"),
    process=True,
)
UNATTRIBUTED = Metric(
    "gpu.cuda.memory.unattributed",
    "Bytes that the process holds on the GPU according to NVML, less those that the probes on the driver count as in "
    "use (device, pool, vmm, managed): contexts, modules and kernels' local memory, arrays, what pools keep, "
    "libraries' own. Only of processes seen from their start; NVML's part is some seconds old.",
    Kind.GAUGE,
    "By",
    process=True,
)
SEEN_FROM_START = Metric(
    "gpu.cuda.seen_from_start",
    "1 for a process of which every call was seen; 0 for one that was running already, that replaced another program "
    "(exec) and may have made calls before this was noticed, or without return probes: memory it took before is in no "
    "metric of its own. 0 also while launches were left out (--overhead.max-ratio) of which the number is not known.",
    Kind.GAUGE,
    process=True,
)
COPIES_UNREAD = Metric(
    "gpu.cuda.memory.copies.unread",
    "Copies not counted in bytes because their description could not be read from the process, was too long, or is "
    "that of a batch of three-dimensional copies.",
    Kind.COUNTER,
)
