"""Effects of 23 calls of each function of tests/bpf/cuda_calls.py on the exporter's page, and of three that fail."""

from __future__ import annotations

from collections import Counter

from exporter.model import Distribution
from exporter.views.prometheus import name as metric_name
from tests.bpf import cuda_calls as declared
from tests.bpf.cuda_calls import FAILED, FAILING, PITCH, SIZES, layer
from tests.bpf.cuda_node import Script
from tests.bpf.observed import Observed

CALLS, ERRORS = "gpu_cuda_api_calls_total", "gpu_cuda_api_errors_total"
KERNELS, GRAPHS = "gpu_cuda_kernel_launch_calls_total", "gpu_cuda_graph_launch_calls_total"
WAITED, COPIED = "gpu_cuda_sync_wait_seconds", "gpu_cuda_memory_copies_bytes_total"
ALLOCATED, USED = "gpu_cuda_memory_allocations_bytes_total", "gpu_cuda_memory_usage_bytes"
FREED, UNSEEN = "gpu_cuda_memory_frees_bytes_total", "gpu_cuda_memory_frees_unseen_total"
UNREAD = "gpu_cuda_memory_copies_unread_total"
COUNTED = {CALLS, ERRORS, KERNELS, GRAPHS, WAITED, COPIED, ALLOCATED, USED, FREED, UNSEEN}
ALL, BYTES = len(SIZES), sum(SIZES)
ERROR_NAMES = {
    "driver": {"2": "CUDA_ERROR_OUT_OF_MEMORY", "999": "CUDA_ERROR_UNKNOWN"},
    "runtime": {"2": "cudaErrorMemoryAllocation", "999": "cudaErrorUnknown"},
}
Counts = Counter[str]


def series(metric: str, **labels: str) -> str:
    return f"{metric} " + " ".join(f"{label}={value}" for label, value in sorted(labels.items()) if value)


def calls(name: str, count: int = ALL + FAILING, gpu: str = "0", errors: int = FAILING) -> Counts:
    """Calls of a function, of which three fail or none does."""
    labels = {"api_layer": layer(name), "api": name, "gpu": gpu}
    found = Counter({series(CALLS, **labels): count})
    if errors:
        code = str(declared.code(name))
        found[series(ERRORS, **labels, code=code, error=ERROR_NAMES[layer(name)][code])] = errors
    return found


def other(name: str, count: int, gpu: str = "0") -> Counts:
    """Calls of another function than the one that is tried: none fails."""
    return calls(name, count, gpu, errors=0)


def launched(on_first: int, on_second: int = 0) -> Counts:
    counts = {"0": on_first, "1": on_second}
    launches = Counter({series(KERNELS, api_layer="driver", gpu=gpu): count for gpu, count in counts.items()})
    return launches + other("cuLaunchKernel", on_first, "0") + other("cuLaunchKernel", on_second, "1")


def memory(of: str, kind: str, size: int, freed: int = 0, gpu: str = "0", implicit: str = "") -> Counts:
    """Bytes allocated by calls of a layer, and of these the freed ones."""
    labels = {"api_layer": of, "memory": kind, "gpu": gpu}
    found = Counter({series(ALLOCATED, **labels): size, series(USED, **labels): size})
    return together(found, freed_bytes(of, kind, freed, gpu, implicit))


def freed_bytes(of: str, kind: str, size: int, gpu: str = "0", implicit: str = "") -> Counts:
    labels = {"api_layer": of, "memory": kind, "gpu": gpu}
    return Counter({series(FREED, **labels, implicit=implicit): size, series(USED, **labels): -size})


def copied(to_device: int, from_device: int, on_device: int) -> Counts:
    return Counter(
        {
            series(COPIED, direction="h2d", host_memory="pinned", gpu="0"): to_device,
            series(COPIED, direction="d2h", host_memory="pinned", gpu="0"): from_device,
            series(COPIED, direction="d2d", gpu="0"): on_device,
        }
    )


def by_way(factor: int) -> Counts:
    """The bytes of 7 copies to the device, 11 from it and 5 on it."""
    return copied(sum(SIZES[:7]) * factor, sum(SIZES[7:18]) * factor, sum(SIZES[18:]) * factor)


def together(*parts: Counts) -> Counts:
    whole: Counts = Counter()
    for part in parts:
        whole.update(part)
    return whole


class Tried:
    """A process that calls the libraries, and what that changes on the exporter's page."""

    def __init__(self, observed: Observed, script: Script, every_error: bool) -> None:
        self.observed, self.script, self.every_error = observed, script, every_error
        self.expected = self.state()

    def state(self) -> Counts:
        found = Counts()
        for it in self.observed.samples():
            name, value = metric_name(it.metric), it.value
            if name == UNREAD or (name in COUNTED and it.labels.get("pid") == str(self.script.pid)):
                own = {key: it.labels[key] for key in (*it.metric.labels, "gpu") if key in it.labels}
                found[series(name, **own)] += sum(value.counts) if isinstance(value, Distribution) else int(value)
        return found

    def check(self, *expected: Counts, does: str, of: tuple[str, ...]) -> None:
        """Run a function of cuda_caller.py or cuda_device_caller.py, which changes these numbers and no others."""
        self.script.run(f"{does}(*{of!r})")
        for it in expected:
            self.expected.update(it)

    def settle(self) -> None:
        """Compare all numbers with what is expected by now."""
        found = self.state()
        every = found.keys() | self.expected.keys()
        wrong = {it: (found[it], self.expected[it]) for it in every if found[it] != self.expected[it]}
        assert {} == wrong, "found, expected"

    def counted(self, of: str) -> dict[str, int]:
        """Return the counts of calls of a layer by function."""
        found = Counts()
        for it in self.observed.samples():
            if metric_name(it.metric) == CALLS and it.labels["pid"] == str(self.script.pid):
                found[it.labels["api"]] += int(it.value) if it.labels["api_layer"] == of else 0
        return +found


def launches(one: Tried) -> None:
    for metric, names in ((KERNELS, declared.KERNELS), (GRAPHS, declared.GRAPHS)):
        for name in names:
            launches = Counter({series(metric, api_layer=layer(name), gpu="0"): ALL + FAILING})
            one.check(calls(name, errors=FAILING * one.every_error), launches, does="counted", of=(name,))


def waits(one: Tried) -> None:
    """A wait that fails was a wait too."""
    for name in declared.WAITS:
        waits = Counter({series(WAITED, api_layer=layer(name), api=name, gpu="0"): ALL + FAILING})
        one.check(calls(name), waits, does="counted", of=(name,))


def calls_without_bytes(one: Tried) -> None:
    """Arrays are calls, and so are copies of the runtime, of which the driver has the bytes."""
    for name in declared.ARRAYS:
        one.check(calls(name), does="counted", of=(name,))
    for name in declared.COPIES_OF_THE_RUNTIME:
        one.check(calls(name, errors=FAILING * one.every_error), does="counted", of=(name,))


def allocations(one: Tried) -> None:
    for kind, names in declared.ALLOCATIONS.items():
        for name in names:
            one.check(calls(name), memory(layer(name), kind, BYTES), does="allocate", of=(name,))
    for name in declared.REGISTRATIONS:
        one.check(calls(name), memory(layer(name), "pinned_host", BYTES), does="register", of=(name,))


def rows(one: Tried) -> None:
    """Rows count with the pitch that the driver has given them."""
    heights = sum(range(7, 7 + ALL))
    for depth, names in ((1, declared.ROWS), (3, declared.BLOCKS)):
        for name in names:
            size = PITCH * heights * depth
            one.check(calls(name), memory(layer(name), "device", size), does="rows", of=(name,))


ALLOCATED_BY = {
    "cuMemFree_v2": "cuMemAlloc_v2",
    "cuMemFreeAsync": "cuMemAllocAsync",
    "cuMemFreeAsync_ptsz": "cuMemAllocAsync_ptsz",
    "cuMemFreeHost": "cuMemHostAlloc",
    "cuMemHostUnregister": "cuMemHostRegister_v2",
    "cudaFree": "cudaMalloc",
    "cudaFreeAsync": "cudaMallocAsync",
    "cudaFreeAsync_ptsz": "cudaMallocAsync_ptsz",
    "cudaFreeHost": "cudaMallocHost",
    "cudaHostUnregister": "cudaHostRegister",
}


def frees(one: Tried) -> None:
    """Freed memory is not in use any more; five frees of each function are of something that was not seen allocated."""
    for kind, names in declared.FREES.items():
        for name in names:
            of, allocating = layer(name), ALLOCATED_BY[name]
            unseen = Counter({series(UNSEEN, api_layer=of, memory=kind, gpu="0"): 5})
            freed = memory(of, kind, BYTES, freed=BYTES)
            expected = calls(name, ALL + FAILING + 5), calls(allocating), freed, unseen
            one.check(*expected, does="free", of=(name, allocating))


def physical_memory(one: Tried) -> None:
    """A handle is freed when it is released as often as it was created and retained, and is mapped no more."""
    created = calls("cuMemCreate"), memory("driver", "vmm", BYTES)
    for name in declared.RELEASES:
        one.check(calls(name), *created, freed_bytes("driver", "vmm", BYTES), does="release", of=(name,))
    for name in declared.RETENTIONS:
        one.check(calls(name), *created, other("cuMemRelease", ALL), does="retain", of=(name,))
        one.settle()
        one.check(other("cuMemRelease", ALL), freed_bytes("driver", "vmm", BYTES), does="release_rest", of=())
    [mapping], [unmapping] = declared.MAPPINGS, declared.UNMAPPINGS
    failed = memory("driver", "vmm", FAILING * FAILED, freed=FAILING * FAILED), other("cuMemCreate", FAILING)
    released = other("cuMemRelease", ALL + FAILING)
    one.check(calls(mapping), *created, *failed, released, does="map_handles", of=(mapping,))
    one.settle()
    one.check(calls(unmapping), freed_bytes("driver", "vmm", BYTES), does="unmap_all", of=(unmapping,))


def copies(one: Tried) -> None:
    for way, names in declared.COPIES.items():
        moved = {"h2d": copied(BYTES, 0, 0), "d2h": copied(0, BYTES, 0), "d2d": copied(0, 0, BYTES)}[way]
        for name in names:
            one.check(calls(name), moved, does="copy", of=(name,))
    for name in declared.COPIES_BY_ADDRESS:
        one.check(calls(name), by_way(1), does="copy_by_address", of=(name,))


def copies_by_description(one: Tried) -> None:
    """The bytes are the product of width, height and depth."""
    for name in declared.COPIES_BY_DESCRIPTION:
        moved = by_way(7 if "2D" in name else 7 * 3)
        one.check(calls(name), moved, does="copy_by_description", of=(name,))


def batches_of_copies(one: Tried) -> None:
    for name in declared.BATCHES:
        moved = copied(BYTES, BYTES + ALL * FAILED, BYTES + 2 * ALL * FAILED)
        one.check(calls(name), moved, does="copy_batches", of=(name,))
    for name in declared.UNREAD:
        unread = Counter({f"{UNREAD} ": ALL * (3 if "Batch" in name else 1)})
        one.check(calls(name), unread, does="copy_unread", of=(name,))


def imported_pools(one: Tried) -> None:
    """An imported pool may be of host memory: from then on, memory that was not seen pinned may be pinned."""
    for names, kind in (((), "pageable"), (declared.IMPORTED_POOLS, "unknown")):
        moved = Counter({series(COPIED, direction="h2d", host_memory=kind, gpu="0"): BYTES})
        imported = [other(name, 1) for name in names]
        one.check(*imported, other("cuMemcpyHtoD_v2", ALL), moved, does="copy_plain", of=names)
        one.settle()


def captures(one: Tried) -> None:
    """Allocations in a capture are no memory; a capture that fails to begin or to end changes nothing."""
    for name in declared.CAPTURES:
        end, allocating = of_captures(name)
        allocated = other(allocating, ALL + FAILING), memory(layer(name), "pool", FAILING * FAILED)
        one.check(calls(name), other(end, ALL), *allocated, does="capture", of=(name, end, allocating))
    for name in declared.CAPTURE_ENDS:
        begin = "cudaStreamBeginCapture" if layer(name) == "runtime" else "cuStreamBeginCapture_v2"
        _, allocating = of_captures(name)
        allocated = other(allocating, ALL + 1), memory(layer(name), "pool", BYTES)
        expected = calls(name, ALL + 1 + FAILING), other(begin, ALL + 1), *allocated
        one.check(*expected, does="end_capture", of=(name, begin, allocating))


def of_captures(name: str) -> tuple[str, str]:
    """Return the functions that end a capture and allocate in it."""
    if layer(name) == "runtime":
        return "cudaStreamEndCapture", "cudaMallocAsync"
    return "cuStreamEndCapture", "cuMemAllocAsync"


def contexts(two: Tried) -> None:
    """A context becomes current with its device, and takes what was allocated in it along when it is destroyed."""
    for name in declared.CONTEXTS:
        second = other("cuMemAlloc_v2", ALL, "1"), other("cuCtxDestroy_v2", ALL, "1")
        taken = memory("driver", "device", BYTES, freed=BYTES, gpu="1", implicit="true")
        failed = other("cuMemAlloc_v2", FAILING), memory("driver", "device", FAILING * FAILED)
        two.check(calls(name), *second, taken, *failed, does="create_contexts", of=(name,))
    for name in declared.CONTEXT_ENDS:
        made = other("cuCtxCreate_v2", 1), other("cuMemAlloc_v2", 1, "1")
        kept = calls(name, FAILING, "1"), memory("driver", "device", FAILED, gpu="1"), launched(0, 1)
        two.check(*made, *kept, does="keep_context", of=(name,))
        two.settle()
        ended = other("cuCtxCreate_v2", ALL - 1), freed_bytes("driver", "device", FAILED, "1", "true"), launched(1)
        two.check(other(name, ALL, "1"), *ended, does="end_contexts", of=(name,))


def changes_of_the_current_context(two: Tried) -> None:
    set_, push, pop = declared.CHANGES
    two.check(launched(ALL, ALL), does="set_contexts", of=(set_,))
    two.check(launched(ALL, ALL), does="push_contexts", of=(push, pop))


def primary_contexts(two: Tried) -> None:
    """The last release of a primary context ends it, and so does each reset."""
    taken = freed_bytes("driver", "device", BYTES, "1", "true")
    [retain] = declared.RETAINED
    for name in declared.RELEASED:
        held = other("cuMemAlloc_v2", ALL, "1"), memory("driver", "device", BYTES, gpu="1")
        two.check(calls(retain), calls(name, ALL - 1 + FAILING), *held, does="retain_primary", of=(retain, name))
        two.settle()
        two.check(other(name, 1), taken, does="call_for_second", of=(name,))


def resets(two: Tried) -> None:
    for name in (*declared.RESETS, *declared.RESETS_OF_THE_RUNTIME):
        allocating = {"driver": ("cuMemAlloc_v2",), "runtime": ("cuMemAlloc_v2", "cudaMalloc")}[layer(name)]
        held = [memory(layer(it), "device", FAILED, gpu="1") for it in allocating]
        made = [other("cuDevicePrimaryCtxRetain", 2), *(other(it, 1, "1") for it in allocating)]
        two.check(calls(name, FAILING, "1"), *made, *held, does="prepare_reset", of=(name, *allocating))
        two.settle()
        taken = [freed_bytes(layer(it), "device", FAILED, "1", "true") for it in allocating]
        two.check(other(name, 1, "1"), *taken, does="reset", of=(name,))
        two.settle()
        two.check(other(name, ALL - 1, "1"), does="reset_again", of=(name,))
        release = "cuDevicePrimaryCtxRelease_v2"
        two.check(other(release, 2), does="release_twice", of=(release,))


def streams(two: Tried) -> None:
    """Memory is on the device of its stream, or where that is destroyed, on one that is not known."""
    for name in declared.STREAMS:
        made = calls(name, gpu="1"), other("cuMemAllocAsync", ALL)
        two.check(*made, memory("driver", "pool", BYTES, gpu="1"), does="create_streams", of=(name,))
    for name in declared.STREAM_ENDS:
        made = calls("cuStreamCreate", gpu="1"), other("cuMemAllocAsync", ALL)
        two.check(calls(name), *made, memory("driver", "pool", BYTES, gpu=""), does="end_streams", of=(name,))


def pools(two: Tried) -> None:
    """Memory is where its pool is; an imported pool does not show where it is."""
    of_device = memory("driver", "pool", sum(SIZES[:11]), gpu="1")
    of_host = memory("driver", "pinned_host", sum(SIZES[11:]), gpu="")
    whole, unknown = (memory("driver", "pool", BYTES, gpu=gpu) for gpu in ("1", ""))
    places = ((declared.POOLS, (of_device, of_host)), (declared.POOLS_OF_DEVICES, (whole,)))
    for names, held in (*places, (declared.IMPORTED_POOLS, (unknown,))):
        for name in names:
            allocated = other("cuMemAllocFromPoolAsync", ALL)
            two.check(calls(name), allocated, *held, does="create_pools", of=(name,))
    for name in declared.POOL_ENDS:
        made = other("cuMemPoolCreate", ALL + 1), other("cuMemAllocFromPoolAsync", ALL + FAILING)
        failed = memory("driver", "pool", FAILING * FAILED, gpu="1")
        two.check(calls(name), *made, unknown, failed, does="end_pools", of=(name,))


EFFECTS = (
    (launches, waits, calls_without_bytes),
    (
        *(allocations, rows, frees, physical_memory),
        *(copies, copies_by_description, batches_of_copies, imported_pools, captures),
    ),
    (contexts, changes_of_the_current_context, primary_contexts, resets, streams, pools),
)
"""By the process that makes the calls; the last one uses two GPUs."""
