"""Every function of HIP that is probed: 23 calls of it, and three that fail, have exactly their effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from exporter.model import Distribution
from exporter.views.prometheus import name as metric_name
from tests.bpf import hip_calls as declared
from tests.bpf.cuda_calls import FAILED, FAILING, SIZES
from tests.bpf.cuda_node import Script, started
from tests.bpf.hip_node import (
    ALLOCATED,
    CALLS,
    COPIED,
    ERRORS,
    FREED,
    GRAPHS,
    LAUNCHES,
    UNREAD,
    UNSEEN,
    USED,
    WAITED,
    Hasty,
    observe,
)
from tests.bpf.observed import Observed
from tests.support import until
from tests.unit.amdgpu.trees import Tree

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="HIP calls", on="stand-in")]

ROOT = Path(__file__).parents[2]
BUS, IDS = ("0000:c1:00.0", "0000:c2:00.0"), (51110, 8095)
FIRST, SECOND, UNKNOWN = (*BUS, "")
COUNTED = {CALLS, ERRORS, LAUNCHES, GRAPHS, WAITED, COPIED, ALLOCATED, USED, FREED, UNSEEN}
ALL, BYTES = len(SIZES), sum(SIZES)
LAUNCH = "hipModuleLaunchKernel"
Counts = Counter[str]


def series(metric: str, **labels: str) -> str:
    return f"{metric} " + " ".join(f"{label}={value}" for label, value in sorted(labels.items()) if value)


def gpu_of(name: str) -> str:
    """Return where a call counts: on the device of its stream, or else of its thread."""
    if name in (*declared.FROM_POOLS, *declared.KERNELS_ON_SEVERAL):
        return UNKNOWN
    parameters = declared.FUNCTIONS[name].parameters
    own = name in (*declared.FREES["pool"], *declared.STREAM_ENDS, *declared.CAPTURES, *declared.CAPTURE_ENDS)
    return SECOND if {"stream", "config"} & set(parameters) and not own else FIRST


def calls(name: str, count: int = ALL + FAILING, gpu: str | None = None, errors: int = FAILING) -> Counts:
    where = gpu_of(name) if gpu is None else gpu
    api = next((it for it in ("hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel") if f"_Z24{it}P" in name), name)
    found = Counter({series(CALLS, api=api, pci_bus_id=where): count})
    if errors:
        error = {"code": "2", "error": "hipErrorOutOfMemory"}
        found[series(ERRORS, api=api, pci_bus_id=where, **error)] = errors
    return found


def other(name: str, count: int, gpu: str | None = None) -> Counts:
    """Calls of another function than the one that is tried: none fails."""
    return calls(name, count, gpu, errors=0)


def launched(count: int, gpu: str) -> Counts:
    return other(LAUNCH, count, gpu) + Counter({series(LAUNCHES, pci_bus_id=gpu): count})


def memory(kind: str, size: int, gpu: str, freed: int = 0) -> Counts:
    labels = {"memory": kind, "pci_bus_id": gpu}
    allocated, used = series(ALLOCATED, **labels), series(USED, **labels)
    return Counter({allocated: size, used: size - freed, series(FREED, **labels): freed})


def by_kind(factor: int, gpu: str) -> Counts:
    """The bytes of 7 copies to the device, 11 from it and 5 on it."""
    ways = {"h2d": SIZES[:7], "d2h": SIZES[7:18], "d2d": SIZES[18:]}
    return Counter({series(COPIED, direction=way, pci_bus_id=gpu): sum(of) * factor for way, of in ways.items()})


class Tried:
    """A process that calls the library, and what that changes on the exporter's page."""

    def __init__(self, observed: Observed, script: Script) -> None:
        self.observed, self.script = observed, script
        self.expected = self.state()

    def state(self) -> Counts:
        found = Counts()
        for it in self.observed.samples():
            name, value = metric_name(it.metric), it.value
            if name == UNREAD or (name in COUNTED and it.labels.get("pid") == str(self.script.pid)):
                hidden = {"runtime", "card"}
                own = {key: it.labels[key] for key in it.metric.labels if key in it.labels and key not in hidden}
                found[series(name, **own)] += sum(value.counts) if isinstance(value, Distribution) else int(value)
        return found

    def check(self, *expected: Counts, does: str, of: tuple[str, ...]) -> None:
        """Run a function of tests/bpf/hip_caller.py, which changes these numbers and no others."""
        self.script.run(f"{does}(*{of!r})")
        for it in expected:
            self.expected.update(it)

    def settle(self) -> None:
        """Compare all numbers with what is expected by now."""
        found = self.state()
        every = found.keys() | self.expected.keys()
        wrong = {it: (found[it], self.expected[it]) for it in every if found[it] != self.expected[it]}
        assert {} == wrong, "found, expected"


def launches(job: Tried) -> None:
    kernels = (*declared.KERNELS, *declared.KERNELS_OF_CXX, *declared.KERNELS_ON_SEVERAL)
    for metric, names in ((LAUNCHES, kernels), (GRAPHS, declared.GRAPHS)):
        for name in names:
            made = Counter({series(metric, pci_bus_id=gpu_of(name)): ALL + FAILING})
            job.check(calls(name, errors=0), made, does="counted", of=(name,))


def waits(job: Tried) -> None:
    for name in declared.WAITS:
        waited = Counter({series(WAITED, api=name, pci_bus_id=gpu_of(name)): ALL + FAILING})
        job.check(calls(name), waited, does="counted", of=(name,))


def calls_without_bytes(job: Tried) -> None:
    for name in declared.OF_UNKNOWN_SIZE:
        job.check(calls(name), does="counted", of=(name,))
    for name in declared.UNREAD:
        unread = Counter({f"{UNREAD} ": ALL * (3 if "Batch" in name else 1)})
        job.check(calls(name), unread, does="counted", of=(name,))


def allocations(job: Tried) -> None:
    heights = sum(range(7, 7 + ALL))
    for kind, names in (*declared.ALLOCATIONS.items(), ("pool", declared.FROM_POOLS)):
        for name in names:
            job.check(calls(name), memory(kind, BYTES, gpu_of(name)), does="allocate", of=(name,))
    for name in declared.REGISTRATIONS:
        job.check(calls(name), memory("pinned_host", BYTES, FIRST), does="register", of=(name,))
    for depth, names in ((1, declared.ROWS), (3, declared.BLOCKS)):
        for name in names:
            size = declared.PITCH * heights * depth
            job.check(calls(name), memory("device", size, FIRST), does="rows", of=(name,))


ALLOCATED_BY = {
    "hipFree": "hipMalloc",
    "hipFreeAsync": "hipMallocAsync",
    "hipHostFree": "hipHostMalloc",
    "hipFreeHost": "hipMallocHost",
    "hipHostUnregister": "hipHostRegister",
}


def frees(job: Tried) -> None:
    for kind, names in declared.FREES.items():
        for name in names:
            allocating = ALLOCATED_BY[name]
            unseen = Counter({series(UNSEEN, memory=kind, pci_bus_id=FIRST): 5})
            freed = memory(kind, BYTES, gpu_of(allocating), freed=BYTES)
            expected = calls(name, ALL + FAILING + 5), calls(allocating), freed, unseen
            job.check(*expected, does="free", of=(name, allocating))


def copies(job: Tried) -> None:
    for way, names in declared.COPIES.items():
        for name in names:
            moved = Counter({series(COPIED, direction=way, pci_bus_id=gpu_of(name)): BYTES})
            job.check(calls(name), moved, does="copy", of=(name,))
    for name in declared.COPIES_BY_DESCRIPTION:
        moved = Counter({series(COPIED, direction="unknown", pci_bus_id=gpu_of(name)): 7 * BYTES})
        job.check(calls(name), moved, does="copy", of=(name,))
    for factor, names in (
        (1, declared.COPIES_BY_KIND),
        (7, declared.COPIES_OF_ROWS),
        (21, declared.COPIES_OF_BLOCKS),
    ):
        for name in names:
            job.check(calls(name), by_kind(factor, gpu_of(name)), does="copy", of=(name,))


def devices(job: Tried) -> None:
    """Calls after a change of the thread's device are of that device."""
    for name in declared.DEVICES:
        made = calls(name, ALL + FAILING), other(name, ALL, SECOND)
        job.check(*made, launched(ALL, SECOND), launched(ALL + 1, FIRST), does="set_device", of=(name,))
    for name in declared.CONTEXTS:
        made = other(name, ALL), calls(name, FAILING, UNKNOWN)
        put = other("hipSetDevice", 1, FIRST), other("hipSetDevice", ALL, UNKNOWN)
        job.check(*made, *put, launched(ALL, UNKNOWN), does="change_context", of=(name,))


def streams(job: Tried) -> None:
    """A stream is of the device on which it was made, and of none that is known after its end."""
    put = other("hipSetDevice", 1, FIRST), other("hipSetDevice", 1, SECOND)
    for name in declared.STREAMS:
        job.check(calls(name, gpu=SECOND), *put, launched(ALL, SECOND), does="create_streams", of=(name,))
    for name in declared.STREAM_ENDS:
        made = calls(name), calls("hipStreamCreate", gpu=SECOND)
        job.check(*made, *put, launched(ALL, UNKNOWN), does="end_streams", of=(name,))


def captures(job: Tried) -> None:
    """Allocations in a capture are no memory; a capture that fails to begin or to end changes nothing."""
    for name in declared.CAPTURES:
        allocated = other("hipMallocAsync", ALL + FAILING), memory("pool", FAILING * FAILED, SECOND)
        end = declared.CAPTURE_ENDS[0]
        job.check(calls(name), other(end, ALL), *allocated, does="capture", of=(name, end))
    for name in declared.CAPTURE_ENDS:
        allocated = other("hipMallocAsync", ALL + 1), memory("pool", BYTES, SECOND)
        begin = declared.CAPTURES[0]
        job.check(
            *(calls(name, ALL + 1 + FAILING), other(begin, ALL + 1), *allocated), does="end_capture", of=(name, begin)
        )


def resets(job: Tried) -> None:
    """A reset leaves the usage of its device unknown, and of memory that may be on it."""
    for name in declared.RESETS:
        put = other("hipSetDevice", 1, FIRST), other("hipSetDevice", 1, SECOND)
        job.check(calls(name, gpu=SECOND), *put, does="reset", of=(name,))
        for key in [key for key in job.expected if key.startswith(USED) and FIRST not in key]:
            del job.expected[key]


EFFECTS = (launches, waits, calls_without_bytes, allocations, frees, copies, devices, streams, captures, resets)


@pytest.fixture
def tried(compile_library: Callable[[str, str], Path], tmp_path: Path) -> Iterator[Tried]:
    """A process of two GPUs, which is seen from its first call on."""
    path = compile_library("libamdhip64.so.5", declared.source())
    tree = Tree(tmp_path / "sys")
    tree.node(0, 0)
    for at, (bus, gpu) in enumerate(zip(BUS, IDS, strict=True)):
        tree.card(f"card{at + 1}", bus)
        tree.node(at + 1, gpu, bus, 128 + at, unique_id=0xABC0 + at)
    with ExitStack() as stack:
        observed = stack.enter_context(observe(Hasty, sys=tree.sys))
        started(observed, stack.enter_context(Script(path)))
        script = started(observed, stack.enter_context(Script(path)))
        tree.process(script.pid, **{f"gpu_{gpu}": 1 << 40 for gpu in IDS})
        script.run(f"sys.path.insert(0, {str(ROOT)!r})")
        script.run(f"from tests.bpf.hip_caller import *; load({str(path)!r})")
        until(lambda: set(BUS) == observed.by(USED, script.pid, "pci_bus_id").keys(), "both GPUs")
        yield Tried(observed, script)


def test_every_function(tried: Tried) -> None:
    """23 calls of each function change what they should and nothing else, and three that fail are errors.

    In all the exporter counts as many as the library does itself. A function that is added to bpf/hip/functions.h needs
    a declaration in tests/bpf/hip_calls.py, and an effect above.
    """
    for effect in EFFECTS:
        effect(tried)
        tried.settle()
    own = tried.script.run("out = own_counts()")
    counted = Counts()
    for name, count in own.items():
        [called] = [it.split(" api=")[1] for it in calls(name, 1, UNKNOWN, errors=0)]
        counted[called] += count
    found = Counts()
    for (api, _), count in tried.observed.by(CALLS, tried.script.pid, "api", "pci_bus_id").items():
        found[api] += count
    assert counted == found
    assert tried.observed.collector.object.types.enum("api").keys() == {it for it in own if own[it] >= ALL}
    assert {} == tried.observed.lost
