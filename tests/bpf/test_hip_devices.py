"""Processes that use several of AMD's GPUs: what each thread does counts for its device, or that of its stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bpf.cuda_node import MIB, build_standins, started
from tests.bpf.hip_node import (
    ALLOCATED,
    CALLS,
    COPIED,
    ERRORS,
    EXTENDED,
    FREED,
    LAUNCHES,
    PRELUDE,
    USED,
    WAITED,
    Hasty,
    HipScript,
    observe,
)
from tests.bpf.observed import Observed
from tests.support import until
from tests.unit.amdgpu.trees import Tree

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="HIP work by GPU", on="stand-in")]

BUS = ("0000:c1:00.0", "0000:c2:00.0", "0000:c3:00.0", "0000:c4:00.0")
IDS = (51110, 8095, 23, 1009)
SEEN = "gpu_hip_seen_from_start"
STREAMS = "def on(stream): return lib.hipLaunchKernel(None, one, one, None, size(0), stream)\n"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A CPU and four GPUs, as amdgpu and amdkfd list them."""
    made = Tree(tmp_path / "sys")
    made.node(0, 0)
    for at, (bus, gpu) in enumerate(zip(BUS, IDS, strict=True)):
        made.card(f"card{at + 1}", bus)
        made.node(at + 1, gpu, bus, 128 + at, unique_id=0xABC0 + at)
    return made


@pytest.fixture
def observed(tree: Tree) -> Iterator[Observed]:
    build_standins()
    with observe(Hasty, sys=tree.sys) as it:
        yield it


Start = Callable[[], HipScript]


@pytest.fixture
def start(observed: Observed) -> Iterator[Start]:
    """Starts jobs that are seen from their start, as none is the first with the library."""
    with ExitStack() as stack:
        stack.enter_context(started(observed, HipScript()))
        yield lambda: stack.enter_context(started(observed, HipScript()))


def listed(tree: Tree, job: HipScript, *mib: int) -> None:
    """Has amdkfd list so much memory of a process on each GPU, and nothing on others."""
    sizes = [*(it * MIB for it in mib), *([0] * (len(IDS) - len(mib)))]
    tree.process(job.pid, **{f"gpu_{gpu}": size for gpu, size in zip(IDS, sizes, strict=True)})


def by_gpu(observed: Observed, metric: str, job: HipScript, **labels: str) -> Mapping[str, object]:
    """The values of a metric by the PCI address of the GPU, which is empty where the GPU is not known."""
    values = observed.values(metric, job.pid, **labels)
    found = {dict(key).get("pci_bus_id", ""): value for key, value in values.items()}
    assert len(found) == len(values)
    return found


TWO = """
def work(device, launches, mib):
    assert 0 == lib.hipSetDevice(device)
    for _ in range(launches): launch()
    for _ in range(mib): new(lib.hipMalloc, size(1 << 20))
    lib.hipMemcpyHtoD(memory, memory, size(1000 * (device + 1)))
    lib.hipDeviceSynchronize()
    lib.standin_fail(2); lib.hipMalloc(byref(c_uint64()), size(1))
threads = [threading.Thread(target=work, args=args) for args in ((0, 23, 3), (1, 107, 5))]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_threads_with_devices_of_their_own(observed: Observed, tree: Tree, start: Start) -> None:
    """Launches, memory, copies, waits and errors of two threads are by GPU; so they stay when the process has ended."""
    job = start()
    job.run(TWO)
    assert {"": 130} == by_gpu(observed, LAUNCHES, job)
    listed(tree, job, 4, 6)
    until(lambda: {BUS[0]: 23, BUS[1]: 107} == by_gpu(observed, LAUNCHES, job), "two GPUs")
    assert {BUS[0]: 3 * MIB, BUS[1]: 5 * MIB} == by_gpu(observed, USED, job) == by_gpu(observed, ALLOCATED, job)
    assert {BUS[0]: 1000, BUS[1]: 2000} == by_gpu(observed, COPIED, job)
    assert {BUS[0]: 1, BUS[1]: 1} == by_gpu(observed, ERRORS, job)
    assert [1, 1] == [sum(it.counts) for it in observed.values(WAITED, job.pid).values()]
    assert {BUS[0]: 2} == by_gpu(observed, CALLS, job, api="hipSetDevice")  # both were on device 0 when they called
    job.run("lib.hipSetDevice(1); new(lib.hipMalloc, size(MIB := 1 << 20)); out = None")
    job.end()
    until(lambda: job.pid not in observed.collector.ledger, "its end")
    assert {BUS[0]: 0, BUS[1]: 0} == by_gpu(observed, USED, job)
    freed = by_gpu(observed, FREED, job, implicit="true")
    assert {BUS[0]: 3 * MIB, BUS[1]: 6 * MIB} == freed
    assert {} == observed.lost


def test_the_labels_are_those_of_the_device(observed: Observed, tree: Tree, start: Start) -> None:
    """Series have the labels of the amdgpu collector: the card and the PCI address."""
    job = start()
    listed(tree, job, 1)
    job.run("launch()")
    wanted = {("card1", BUS[0]): 1}
    until(lambda: wanted == observed.by(LAUNCHES, job.pid, "card", "pci_bus_id"), "its labels")
    assert wanted == observed.by(SEEN, job.pid, "card", "pci_bus_id")


def test_a_device_that_is_not_set(observed: Observed, tree: Tree, start: Start) -> None:
    """A call of hipSetDevice that fails changes nothing, of an impossible device too."""
    job = start()
    job.run(
        "lib.hipSetDevice(1); new(lib.hipMalloc, size(5 << 20))\n"
        "out = [lib.hipSetDevice(99), lib.hipSetDevice(-1)]; lib.standin_fail(1); out.append(lib.hipSetDevice(0))\n"
        "for _ in range(23): launch()"
    )
    listed(tree, job, 1, 5)
    until(lambda: {BUS[1]: 23} == by_gpu(observed, LAUNCHES, job), "the second GPU")
    assert {"101": 2, "1": 1} == observed.by(ERRORS, job.pid, "code")


@pytest.mark.parametrize(
    ("variables", "order"),
    [
        ({"HIP_VISIBLE_DEVICES": "1,0"}, (1, 0)),
        ({"CUDA_VISIBLE_DEVICES": "3,2"}, (3, 2)),
        ({"CUDA_VISIBLE_DEVICES": "3,2", "HIP_VISIBLE_DEVICES": "0,1"}, (0, 1)),
        ({"ROCR_VISIBLE_DEVICES": "2,GPU-000000000000ABC1", "HIP_VISIBLE_DEVICES": "1,0"}, (1, 2)),
    ],
    ids=str,
)
def test_variables(
    observed: Observed,
    tree: Tree,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    variables: Mapping[str, str],
    order: tuple[int, int],
) -> None:
    """The order of the GPUs is that of the process's variables."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    job = start()
    job.run(TWO)
    listed(tree, job, *(3 if at == order[0] else 5 if at == order[1] else 0 for at in range(4)))
    until(lambda: {BUS[order[0]]: 23, BUS[order[1]]: 107} == by_gpu(observed, LAUNCHES, job), "by variables")


@pytest.mark.parametrize("sizes", [(3, 3, 5), (5, 3), (2, 5), (3, 5, 3)], ids=str)
def test_memory_that_is_elsewhere(observed: Observed, tree: Tree, start: Start, sizes: tuple[int, ...]) -> None:
    """A program that has changed its variables has no GPU: amdkfd lists less there, or as much on another one."""
    job = start()
    job.run(TWO)
    listed(tree, job, *sizes)
    before = observed.collector.kfd.last.at
    until(lambda: (observed.collector.kfd.last.at or 0) > (before or 0), "a reading")
    assert {"": 130} == by_gpu(observed, LAUNCHES, job)
    assert {"": 8 * MIB} == by_gpu(observed, USED, job)


def test_the_only_gpu(observed: Observed, tree: Tree, start: Start) -> None:
    """All that a process does is on the only GPU that it may open, whatever it calls the device."""
    job = start()
    tree.process(job.pid, gpu_23=0)
    job.run("lib.hipSetDevice(0); launch(); lib.hipCtxSetCurrent(c_void_p(1)); launch()")
    until(lambda: {BUS[2]: 2} == by_gpu(observed, LAUNCHES, job), "the third GPU")


def test_a_gpu_that_is_not_known(observed: Observed, tree: Tree, start: Start) -> None:
    """A GPU of the process that the exporter does not see leaves the order of the others unknown."""
    job = start()
    tree.process(job.pid, gpu_23=4096, gpu_77=0)
    job.run("launch()")
    until(lambda: job.pid in observed.collector.kfd.last.value.used, "listed")
    assert {"": 1} == by_gpu(observed, LAUNCHES, job)


def test_streams_of_other_devices(observed: Observed, tree: Tree, start: Start) -> None:
    """A launch, copy, wait or allocation on a stream is of the stream's device, wherever its stream is passed."""
    job = start()
    job.run(
        STREAMS + "class Config(ctypes.Structure):\n"
        "    _fields_ = [('blocks', Dim3), ('threads', Dim3), ('shared', c_size_t), ('stream', c_void_p),\n"
        "                ('attributes', c_void_p), ('count', c_uint32)]\n"
        "new(lib.hipMalloc, size(1 << 20)); here = new(lib.hipStreamCreate)\n"
        "lib.hipSetDevice(1); new(lib.hipMalloc, size(1 << 20)); there = new(lib.hipStreamCreateWithFlags, 1)\n"
        "lib.hipSetDevice(0)\n"
        "for _ in range(3): on(there)\n"
        "for _ in range(4): lib.hipModuleLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, there, None, None)\n"
        "lib.hipLaunchKernelExC(byref(Config(one, one, 0, there.value)), None, None)\n"
        "for it in (None, 1, 2, here): on(c_void_p(it) if isinstance(it, int) else it)\n"
        "lib.hipMemcpyAsync(memory, memory, size(10), 1, there)\n"
        "lib.hipMemcpyHtoD(memory, memory, size(3))\n"
        "lib.hipStreamSynchronize(there); lib.hipGraphLaunch(None, there)\n"
        "new(lib.hipMallocAsync, size(1 << 20), there)"
    )
    listed(tree, job, 1, 2)
    until(lambda: {BUS[0]: 4, BUS[1]: 8} == by_gpu(observed, LAUNCHES, job), "by stream")
    assert {BUS[0]: 3, BUS[1]: 10} == by_gpu(observed, COPIED, job)
    assert {BUS[1]: 1} == by_gpu(observed, CALLS, job, api="hipStreamSynchronize")
    assert {BUS[1]: 1} == by_gpu(observed, "gpu_hip_graph_launch_calls_total", job)
    assert {BUS[1]: MIB} == by_gpu(observed, USED, job, memory="pool")


def test_streams_that_are_not_known(observed: Observed, tree: Tree, start: Start) -> None:
    """A stream that is destroyed, or was not seen when it was made, has no device; nor have several, or a pool."""
    job = start()
    job.run(
        STREAMS + "stream = new(lib.hipStreamCreate)\n"
        "lib.hipSetDevice(1); other = new(lib.hipStreamCreate); new(lib.hipMalloc, size(1 << 20))\n"
        "on(other); on(c_void_p(4096)); lib.hipStreamDestroy(stream); on(stream)\n"
        "lib.hipExtLaunchMultiKernelMultiDevice(None, 2, 0)\n"
        "new(lib.hipMallocFromPoolAsync, size(1 << 20), None, other)"
    )
    listed(tree, job, 1, 2)
    until(lambda: {BUS[1]: 1, "": 3} == by_gpu(observed, LAUNCHES, job), "one known")
    assert {"": MIB} == by_gpu(observed, USED, job, memory="pool")


def test_a_stream_in_place_of_another(observed: Observed, tree: Tree, start: Start) -> None:
    """A stream with the address of one that was destroyed has the device that it was made on."""
    job = start()
    job.run(
        STREAMS + "lib.hipSetDevice(1); new(lib.hipMalloc, size(1 << 20)); made = [new(lib.hipStreamCreate)]\n"
        "lib.hipSetDevice(0); new(lib.hipMalloc, size(1 << 20)); lib.hipStreamDestroy(made[0])\n"
        "while made[-1].value != made[0].value or len(made) == 1: made.append(new(lib.hipStreamCreate))\n"
        "lib.hipSetDevice(1); on(made[0])"
    )
    listed(tree, job, 1, 1)
    until(lambda: {BUS[0]: 1} == by_gpu(observed, LAUNCHES, job), "the first GPU")


def test_contexts(observed: Observed, tree: Tree, start: Start) -> None:
    """After a context function the thread's device is unknown until it is set."""
    job = start()
    job.run(
        "lib.hipSetDevice(1); new(lib.hipMalloc, size(1 << 20)); launch()\n"
        "lib.hipCtxSetCurrent(c_void_p(1)); launch(); launch()\n"
        "lib.hipSetDevice(1); launch()"
    )
    listed(tree, job, 1, 2)
    until(lambda: {BUS[1]: 2, "": 2} == by_gpu(observed, LAUNCHES, job), "two known")


def read_again(observed: Observed) -> None:
    """Waits until amdkfd was read twice, of which the second reading began after this call."""
    for _ in range(2):
        before = observed.collector.kfd.last.at or 0
        until(lambda before=before: (observed.collector.kfd.last.at or 0) > before, "a reading")  # type: ignore[misc]


def test_a_context_of_another_device(observed: Observed, tree: Tree, start: Start) -> None:
    """Counts with a GPU keep it after a context function; what follows has none from the start."""
    job = start()
    job.run("lib.hipSetDevice(0); new(lib.hipMalloc, size(5 << 20)); launch(); launch()")
    listed(tree, job, 6)
    until(lambda: {BUS[0]: 2} == by_gpu(observed, LAUNCHES, job), "the first GPU")
    job.run("lib.hipCtxSetCurrent(c_void_p(2)); new(lib.hipMalloc, size(9 << 20))\nfor _ in range(700): launch()")
    listing = tree.sys / "class/kfd/kfd/proc" / str(job.pid)
    for sizes in ((6, 0), (6, 10), (0, 15)):
        for gpu, size in zip(IDS, sizes, strict=False):
            (listing / f"vram_{gpu}").write_text(f"{size * MIB}\n")
        read_again(observed)
        assert {BUS[0]: 2, "": 700} == by_gpu(observed, LAUNCHES, job)
        assert {BUS[0]: 5 * MIB, "": 9 * MIB} == by_gpu(observed, USED, job)


def test_a_context_before_the_first_reading(
    observed: Observed, tree: Tree, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only GPU with memory may be that of the context."""
    monkeypatch.setenv("GPU_DEVICE_ORDINAL", "1")
    job = start()
    job.run("new(lib.hipMalloc, size(5 << 20)); launch(); lib.hipCtxSetCurrent(c_void_p(2)); launch()")
    listed(tree, job, 6)
    for _ in range(3):
        read_again(observed)
        assert {"": 2} == by_gpu(observed, LAUNCHES, job)


def test_several_devices_without_a_current_one(observed: Observed, tree: Tree, start: Start) -> None:
    """A launch on several devices, and memory of a pool, have no device in a process that never set one."""
    job = start()
    job.run(
        "new(lib.hipMalloc, size(5 << 20)); launch(); lib.hipExtLaunchMultiKernelMultiDevice(None, 2, 0)\n"
        "new(lib.hipMallocFromPoolAsync, size(3 << 20), None, None)"
    )
    listed(tree, job, 6)
    until(lambda: {BUS[0]: 1, "": 1} == by_gpu(observed, LAUNCHES, job), "one known")
    assert {"": 3 * MIB} == by_gpu(observed, USED, job, memory="pool")


def test_a_reset_of_one_device(observed: Observed, tree: Tree, start: Start) -> None:
    """Bytes in use on a device are unknown after its reset, and on the other one stay known."""
    job = start()
    job.run(TWO + "lib.hipSetDevice(1)")
    listed(tree, job, 3, 5)
    until(lambda: {BUS[0]: 3 * MIB, BUS[1]: 5 * MIB} == by_gpu(observed, USED, job), "by GPU")
    job.run("lib.hipDeviceReset()")
    assert {BUS[0]: 3 * MIB} == by_gpu(observed, USED, job)
    job.run("lib.hipCtxSetCurrent(c_void_p(1)); lib.hipDeviceReset()")
    assert {} == by_gpu(observed, USED, job)


def test_a_job_from_before(tree: Tree) -> None:
    """The device of its threads is not known before they set it; that of its streams neither."""
    build_standins()
    with HipScript() as job:
        job.run(STREAMS + "lib.hipSetDevice(1); old = new(lib.hipStreamCreate)")
        with observe(Hasty, sys=tree.sys) as observed:
            started(observed, job)
            job.run("for _ in range(23): launch()")
            listed(tree, job, 1, 3)
            until(lambda: job.pid in observed.collector.kfd.last.value.used, "listed")
            assert {"": 23} == by_gpu(observed, LAUNCHES, job)
            job.run(
                "lib.hipSetDevice(1); new(lib.hipMalloc, size(2 << 20)); made = new(lib.hipStreamCreate)\n"
                "launch(); on(made); on(old)"
            )
            until(lambda: {BUS[1]: 2, "": 24} == by_gpu(observed, LAUNCHES, job), "its GPU")


def test_memory_from_before(tree: Tree) -> None:
    """Memory from before the probes may be on another GPU than what the process does since."""
    build_standins()
    with HipScript() as job:
        job.run("new(lib.hipMalloc, size(5 << 20)); launch()")
        with observe(Hasty, sys=tree.sys) as observed:
            started(observed, job)
            listed(tree, job, 6)
            job.run("launch(); lib.hipSetDevice(1)\nfor _ in range(5): launch()")
            for _ in range(3):
                read_again(observed)
                assert {"": 6} == by_gpu(observed, LAUNCHES, job)


def placed(observed: Observed) -> int:
    """Return the number of processes with devices of their own choice; changed just after the rows of threads are."""
    return int(observed.collector.object.globals()["placed_processes"])


def test_ends(observed: Observed, start: Start) -> None:
    """No row stays of a thread or a process that has ended, nor of a stream that is destroyed."""
    job = start()
    job.run(
        "made = new(lib.hipStreamCreate)\n"
        "def work(): lib.hipSetDevice(1); lib.hipStreamDestroy(made)\n"
        "in_threads(1, work); lib.hipSetDevice(2)"
    )
    until(lambda: [3] == observed.kernel("places", job.pid), "the thread's row gone")
    assert [] == observed.kernel("streams", job.pid)
    assert 1 == placed(observed)
    job.end()
    for table in ("places", "devices", "shares"):
        until(lambda table=table: [] == observed.kernel(table, job.pid), f"{table} empty")  # type: ignore[misc]
    until(lambda: 0 == placed(observed), "no process is placed")


def test_another_program(observed: Observed, tree: Tree, start: Start) -> None:
    """A program that replaces another one begins with device 0."""
    job = start()
    job.run("lib.hipSetDevice(1); stream = new(lib.hipStreamCreate)")
    job.begin(f"os.execv(sys.executable, [sys.executable, '-c', {job.DRIVER!r}])")
    until(lambda: [] == observed.kernel("places", job.pid), "the thread's row gone")
    until(lambda: 0 == placed(observed), "no process is placed")
    until(lambda: [] == observed.kernel("calls", job.pid), "exec noticed")
    job.run("lib = ctypes.CDLL('libamdhip64.so.5')\n" + PRELUDE.replace("EXTENDED", EXTENDED))
    job.run("launch(); lib.hipSetDevice(2); launch(); launch()")
    rows = observed.collector.object.maps["launches"].items()
    assert {0: 1, 3: 2} == {key.device: value.calls for key, value in rows if key.tgid == job.pid}
    assert 1 == placed(observed)


class Narrow(Hasty):
    """With room for the devices of few threads."""

    def entries(self) -> dict[str, int]:
        return {**super().entries(), "places": 8}

    def constants(self) -> dict[str, int]:
        return {**super().constants(), "places_most": 8}


def test_more_threads_than_have_room(tree: Tree) -> None:
    """Threads without a row may be one of which the device found no room: their GPU is not known."""
    build_standins()
    with (
        observe(Narrow, sys=tree.sys) as observed,
        started(observed, HipScript()),
        started(observed, HipScript()) as job,
    ):
        job.run(
            "new(lib.hipMalloc, size(1 << 20)); barrier = threading.Barrier(23)\n"
            "def work():\n"
            "    lib.hipSetDevice(1); barrier.wait(); new(lib.hipMalloc, size(1 << 20)); launch(); barrier.wait()\n"
            "in_threads(23, work)"
        )
        listed(tree, job, 30, 30)
        until(lambda: job.pid in observed.collector.kfd.last.value.used, "listed")
        rows = observed.collector.object.maps["launches"].items()
        launched = {key.device: value.calls for key, value in rows if key.tgid == job.pid}
        assert {0, 2} == launched.keys() and 23 == sum(launched.values())
        assert {"": 23} == by_gpu(observed, LAUNCHES, job)
        assert observed.value("accel_exporter_map_full_total", map="hip_places") > 0
