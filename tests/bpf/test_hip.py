"""Calls of jobs to AMD's HIP runtime are counted exactly, for each process."""

from __future__ import annotations

import pytest

from exporter.collectors.hip import function
from tests.bpf.cuda_node import build_standins, started
from tests.bpf.fixtures import each, once
from tests.bpf.hip_node import (
    ALLOCATED,
    CALLS,
    COPIED,
    ERRORS,
    EXTENDED,
    FREED,
    GRAPHS,
    LAST_LAUNCH,
    LAUNCHES,
    UNREAD,
    UNSEEN,
    UNTRACKED,
    USED,
    WAIT,
    WAITED,
    HipScript,
    observe,
)
from tests.bpf.observed import Observed
from tests.support import until

pytestmark = [pytest.mark.needs_bpf]
standin = pytest.mark.evidence(feature="HIP calls", on="stand-in")


observed = once(observe)
job = each(HipScript)


@standin
def test_23_of_each(observed: Observed) -> None:
    """23 allocations, copies, launches and waits by three threads, in each of two processes, and nothing is lost."""
    with started(observed, HipScript()) as first, started(observed, HipScript()) as second:
        for job in (first, second):
            job.run(
                "def work(count):\n"
                "    for _ in range(count):\n"
                "        at = new(lib.hipMalloc, size(1000))\n"
                "        lib.hipMemcpy(at, memory, size(100), 1)\n"
                "        launch(); lib.hipGraphLaunch(None, None)\n"
                "        lib.hipStreamSynchronize(None)\n"
                "        lib.hipFree(at)\n"
                "thread = threading.Thread(target=work, args=(11,)); thread.start(); in_threads(1, lambda: work(7))\n"
                "work(5); thread.join()"
            )
        for job in (first, second):
            functions = ("hipMalloc", "hipMemcpy", "hipLaunchKernel", "hipGraphLaunch", WAIT, "hipFree")
            assert dict.fromkeys(functions, 23) == observed.by(CALLS, job.pid, "api")
            assert {"device": 23_000} == observed.by(ALLOCATED, job.pid, "memory")
            assert {("device", ""): 23_000, ("device", "true"): 0} == observed.by(FREED, job.pid, "memory", "implicit")
            assert {"device": 0} == observed.by(USED, job.pid, "memory")
            assert {"h2d": 2300} == observed.by(COPIED, job.pid, "direction")
            assert 23 == observed.value(LAUNCHES, job.pid) == observed.value(GRAPHS, job.pid)
            waited = observed.by(WAITED, job.pid, "api")
            assert {WAIT: 23} == {api: sum(it.counts) for api, it in waited.items()}
            assert {} == observed.values(ERRORS, job.pid)
    assert {} == observed.lost


@standin
def test_the_runtime(observed: Observed, job: HipScript) -> None:
    """Each series of a process has the label `runtime`, also those of a process that has ended."""
    job.run(
        "new(lib.hipMalloc, size(10)); launch(); lib.hipDeviceSynchronize(); lib.standin_fail(1); lib.hipFree(None)"
    )

    def runtimes() -> dict[str, set[str | None]]:
        found: dict[str, set[str | None]] = {}
        for it in observed.samples():
            if it.metric.name.startswith("gpu.hip.") and it.labels.get("pid") == str(job.pid):
                found.setdefault(it.metric.name, set()).add(it.labels.get("runtime"))
        return found

    alive = runtimes()
    assert {"gpu.hip.memory.usage", "gpu.hip.seen_from_start", "gpu.hip.sync_wait"} <= alive.keys()
    assert {"gpu.hip.api.errors", "gpu.hip.api.last_error.timestamp"} <= alive.keys()
    assert dict.fromkeys(alive, {"hip"}) == alive
    job.end()
    until(lambda: job.pid not in observed.collector.ledger, "its end")
    ended = runtimes()
    assert alive.keys() - {"gpu.hip.seen_from_start"} == ended.keys()
    assert dict.fromkeys(ended, {"hip"}) == ended


@standin
def test_memory_by_kind(observed: Observed, job: HipScript) -> None:
    """Bytes in use are those allocated and not freed, by kind; rows and planes count with what pads them."""
    job.run(
        "held = [new(lib.hipMalloc, size(1 << 20)), new(lib.hipExtMallocWithFlags, size(10), 1)]\n"
        "managed = new(lib.hipMallocManaged, size(300), 1)\n"
        "pool = [new(lib.hipMallocAsync, size(4000), None) for _ in range(2)]\n"
        "pinned = new(lib.hipHostMalloc, size(50_000), 0)\n"
        "lib.hipHostRegister(memory, size(600), 0)\n"
        "pitch, at = c_size_t(), c_uint64()\n"
        "assert 0 == lib.hipMallocPitch(byref(at), byref(pitch), size(300), size(7)) and pitch.value == 512\n"
        "made = Pitched()\n"
        "assert 0 == lib.hipMalloc3D(byref(made), Extent(100, 3, 5)) and made.pitch == 256\n"
        "new(lib.hipMalloc, size(0)); lib.hipFree(None)"
    )
    device = (1 << 20) + 10 + 512 * 7 + 256 * 3 * 5
    assert {"device": device, "managed": 300, "pool": 8000, "pinned_host": 50_600} == observed.by(
        USED, job.pid, "memory"
    )
    job.run(
        "lib.hipFree(held[0]); lib.hipFree(c_void_p(made.ptr)); lib.hipFreeAsync(pool[0], None)\n"
        "lib.hipHostUnregister(memory); lib.hipFree(pinned); lib.hipFree(managed)"
    )
    assert {"device": 10 + 512 * 7, "managed": 0, "pool": 4000, "pinned_host": 0} == observed.by(
        USED, job.pid, "memory"
    )
    assert {} == observed.values(UNSEEN, job.pid)


@standin
def test_copies_by_direction(observed: Observed, job: HipScript) -> None:
    """Bytes by the direction of the name or the hipMemcpyKind, from arguments in registers, on the stack, in memory."""
    before = observed.value(UNREAD)
    job.run(
        "for _ in range(23): lib.hipMemcpyAsync(memory, memory, size(1), 0, None)\n"
        "lib.hipMemcpyAsync_spt(memory, memory, size(10), 3, None)\n"
        "lib.hipMemcpyAsync(memory, memory, size(100), 1024, None)\n"
        "lib.hipMemcpyAsync(memory, memory, size(1000), 4, None)\n"
        "lib.hipMemcpyHtoD(memory, memory, size(3)); lib.hipMemcpyDtoHAsync(memory, memory, size(5), None)\n"
        "lib.hipMemcpyAtoH(memory, memory, size(1), size(50))\n"
        "lib.hipMemcpyToSymbol(memory, memory, size(30), size(1), 1)\n"
        "lib.hipMemcpyToArray(memory, size(1), size(1), memory, size(300), 1)\n"
        "lib.hipMemcpy2D(memory, size(8), memory, size(8), size(500), size(7), 2)\n"
        "lib.hipMemcpy2DToArray(memory, size(1), size(1), memory, size(8), size(1000), size(3), 1)\n"
        "lib.hipMemcpy2DArrayToArray(memory, size(1), size(1), memory, size(1), size(1), size(1000), size(4), 3)\n"
        "lib.hipMemcpyParam2D(byref(Copy2D((c_size_t * 14)(), 10_000, 3)))\n"
        "lib.hipMemcpy3D(byref(Copy3D(extent=Extent(1000, 10, 5), kind=2)))"
    )
    assert {
        "h2h": 23,
        "d2d": 10 + 100 + 4000,
        "unknown": 1000 + 30_000,
        "h2d": 3 + 30 + 300 + 3000,
        "d2h": 5 + 50 + 3500 + 50_000,
    } == observed.by(COPIED, job.pid, "direction")
    assert 0 == observed.value(UNREAD) - before
    job.run(
        "lib.hipMemcpy3D(byref(Copy3D(target_array=1, extent=Extent(10, 10, 5), kind=1)))\n"
        "lib.hipMemcpy3D(c_void_p(8)); lib.hipMemcpyParam2D(c_void_p(8)); lib.hipDrvMemcpy3D(memory)"
    )
    assert 4 == observed.value(UNREAD) - before
    assert 3333 == observed.by(COPIED, job.pid, "direction")["h2d"]


@standin
def test_launches(observed: Observed, job: HipScript) -> None:
    """Launches count by function, under C's name and C++'s; the newest has its time."""
    job.run(
        "in_threads(23, launch)\n"
        "for _ in range(7): module(); extended()\n"
        "lib.hipLaunchCooperativeKernel_spt(None, one, one, None, 0, None)"
    )
    assert 23 + 7 + 7 + 1 == observed.value(LAUNCHES, job.pid)
    expected = {"hipLaunchKernel": 23, "hipModuleLaunchKernel": 7, "hipExtModuleLaunchKernel": 7}
    assert expected | {"hipLaunchCooperativeKernel_spt": 1} == observed.by(CALLS, job.pid, "api")
    assert None is observed.value(GRAPHS, job.pid)
    now = job.run("out = time.time()")
    assert now - 60 < observed.value(LAST_LAUNCH, job.pid) <= now + 1


@standin
def test_what_probes_cost_a_process(monkeypatch: pytest.MonkeyPatch, observed: Observed, job: HipScript) -> None:
    """Each hit has its price, of launches too; of a call in a call there are two."""
    monkeypatch.setattr(observed.collector.probes, "price", lambda symbol: 0.5)
    job.run("for _ in range(23): launch(); lib.hipMemcpyPeer(memory, 1, memory, 0, size(1))")
    tally = observed.collector.launches.tallies([job.pid])[job.pid]
    assert (23 * 0.5, 2 * 23 * 0.5) == (tally.cost, tally.other)


@standin
def test_time_is_that_of_the_call(observed: Observed, job: HipScript) -> None:
    """A wait of 50 ms is in that bucket."""
    job.run("lib.standin_stall(c_uint64(50_000_000)); lib.hipDeviceSynchronize()")
    took = observed.by(WAITED, job.pid, "api")["hipDeviceSynchronize"]
    assert 0.05 <= took.sum and 1 == sum(took.counts)
    assert sum(took.counts[: sum(bound <= 0.05 for bound in took.bounds)]) == 0


@standin
def test_a_call_within_a_call_counts_once(observed: Observed, job: HipScript) -> None:
    """Calls that a function makes itself are not counted besides, neither their bytes nor their number."""
    job.run(
        "for _ in range(23): lib.hipMemcpyPeer(memory, 1, ctypes.byref(memory, 100), 0, size(10))\n"
        "new(lib.hipMemAllocHost, size(70))"
    )
    assert {"hipMemcpyPeer": 23, "hipMemAllocHost": 1} == observed.by(CALLS, job.pid, "api")
    assert {"d2d": 230} == observed.by(COPIED, job.pid, "direction")
    assert {"pinned_host": 70} == observed.by(USED, job.pid, "memory")


@standin
def test_errors(observed: Observed, job: HipScript) -> None:
    """Calls that fail count by function and constant, and change no bytes; what a free failed to free stays in use."""
    job.run(
        "def failing(code, call): lib.standin_fail(code); assert code == call()\n"
        "held = new(lib.hipMalloc, size(1000))\n"
        "for _ in range(23): failing(2, lambda: lib.hipMalloc(byref(c_uint64()), size(1 << 40)))\n"
        "failing(1, lambda: lib.hipMemcpy(memory, memory, size(9), 1))\n"
        "failing(719, lambda: lib.hipDeviceSynchronize())\n"
        "failing(17, lambda: lib.hipFree(held))\n"
        "failing(4242, lambda: lib.hipEventSynchronize(None))\n"
        "failing(101, lambda: lib.hipDeviceReset())\n"
        "failing(801, lambda: lib.hipMemCreate(byref(c_uint64()), size(1), None, c_uint64(0)))"
    )
    assert {
        ("hipMalloc", "2", "hipErrorOutOfMemory"): 23,
        ("hipMemcpy", "1", "hipErrorInvalidValue"): 1,
        ("hipDeviceSynchronize", "719", "hipErrorLaunchFailure"): 1,
        ("hipFree", "17", "hipErrorInvalidDevicePointer"): 1,
        ("hipEventSynchronize", "4242", ""): 1,
        ("hipDeviceReset", "101", "hipErrorInvalidDevice"): 1,
        ("hipMemCreate", "801", "hipErrorNotSupported"): 1,
    } == observed.by(ERRORS, job.pid, "api", "code", "error")
    assert {"device": 1000} == observed.by(ALLOCATED, job.pid, "memory") == observed.by(USED, job.pid, "memory")
    assert {} == observed.values(COPIED, job.pid) == observed.values(UNSEEN, job.pid)
    job.run("lib.hipFree(held)")
    assert {"device": 0} == observed.by(USED, job.pid, "memory")


@standin
def test_a_reset_makes_usage_unknown(observed: Observed, job: HipScript) -> None:
    """After hipDeviceReset bytes in use are absent, not too high."""
    job.run("new(lib.hipMalloc, size(1000)); lib.hipDeviceReset()")
    assert {"device": 1000} == observed.by(ALLOCATED, job.pid, "memory")
    assert {} == observed.values(USED, job.pid)


@standin
def test_an_address_that_is_allocated_once_more(observed: Observed, job: HipScript) -> None:
    """Memory of which the free was not seen is freed implicitly when its address is allocated again."""
    job.run("lib.hipHostRegister(memory, size(1000), 0); lib.hipHostRegister(memory, size(600), 0)")
    assert {"pinned_host": 1600} == observed.by(ALLOCATED, job.pid, "memory")
    assert {("pinned_host", ""): 0, ("pinned_host", "true"): 1000} == observed.by(FREED, job.pid, "memory", "implicit")
    assert {"pinned_host": 600} == observed.by(USED, job.pid, "memory")


@standin
def test_threads_that_share_addresses(observed: Observed, job: HipScript) -> None:
    """Eight threads that allocate and free what the others just freed: nothing is left in use, nothing is implicit."""
    job.run("def work():\n    for _ in range(997): lib.hipFree(new(lib.hipMalloc, size(64)))\nin_threads(8, work)")
    everything = 8 * 997 * 64
    assert {"device": everything} == observed.by(ALLOCATED, job.pid, "memory")
    assert {("device", ""): everything, ("device", "true"): 0} == observed.by(FREED, job.pid, "memory", "implicit")
    assert {"device": 0} == observed.by(USED, job.pid, "memory")


@standin
def test_a_killed_process(observed: Observed) -> None:
    """Memory of a killed process is freed implicitly and no longer in use; no row stays in the kernel."""
    with started(observed, HipScript()) as job:
        job.run("held = [new(lib.hipMalloc, size(1000)) for _ in range(23)]; lib.hipFree(held[0]); launch()")
        job.begin("lib.standin_stall(c_uint64(60_000_000_000)); lib.hipDeviceSynchronize()")
        until(lambda: observed.in_flight(job.pid), "a call in flight")
        job.process.kill()
        job.process.wait()
        until(lambda: not observed.kernel("totals", job.pid), "its rows taken")
    assert {("device", ""): 1000, ("device", "true"): 22_000} == observed.by(FREED, job.pid, "memory", "implicit")
    assert {"device": 0} == observed.by(USED, job.pid, "memory")
    assert 1 == observed.value(LAUNCHES, job.pid)
    for table in ("live", "in_flight", "processes", "launches", "calls"):
        until(lambda table=table: [] == observed.kernel(table, job.pid), f"{table} empty")  # type: ignore[misc]


@standin
def test_ended_processes_that_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three that ended two are folded where one is kept: sums over all series are those of three."""
    monkeypatch.setattr("exporter.ledger.MOST_ENDED", 1)
    with observe() as observed:
        for _ in range(3):
            with started(observed, HipScript()) as job:
                job.run("for _ in range(7): launch(); lib.hipMemcpyHtoD(memory, memory, size(10))")
            until(lambda job=job: job.pid not in observed.collector.ledger, "its end")  # type: ignore[misc]
        found = observed.sums(LAUNCHES, COPIED)
        assert found == {LAUNCHES: {False: 7, True: 14}, COPIED: {False: 70, True: 140}}


@standin
def test_a_full_table() -> None:
    """Bytes that the table has no room for are untracked and part of the allocations; bytes in use are absent."""
    build_standins()
    with (
        observe(live_allocations=64) as observed,
        started(observed, HipScript()) as job,
        started(observed, HipScript()) as other,
    ):
        job.run("held = [new(lib.hipMalloc, size(10)) for _ in range(67)]")
        tracked = len(observed.kernel("live", job.pid))
        assert 8 <= tracked < 64
        assert {"device": 670} == observed.by(ALLOCATED, job.pid, "memory")
        assert {"device": 670 - 10 * tracked} == observed.by(UNTRACKED, job.pid, "memory")
        assert {} == observed.values(USED, job.pid)
        assert 67 - tracked == observed.value("accel_exporter_map_full_total", map="hip_live")
        other.run("new(lib.hipMalloc, size(5))")  # there is room left for others
        assert {"device": 5} == observed.by(USED, other.pid, "memory")


@standin
def test_a_job_from_before() -> None:
    """Of a job that was there first, calls count from now on; a free of older memory is one that was not allocated."""
    build_standins()
    with HipScript() as job:
        job.run("old = new(lib.hipMalloc, size(1000)); launch()")
        with observe() as observed:
            started(observed, job)
            job.run("for _ in range(23): launch()\nnew(lib.hipMalloc, size(7)); lib.hipFree(old)")
            assert 23 == observed.value(LAUNCHES, job.pid)
            assert {"device": 7} == observed.by(USED, job.pid, "memory")
            assert {"device": 1} == observed.by(UNSEEN, job.pid, "memory")


@standin
def test_without_return_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls and launches count where return probes may not be used; bytes, waits and errors are absent."""
    monkeypatch.setattr("exporter.bpf.trial.Trial.returns_allowed", lambda *_: (False, "this is a test"))
    build_standins()
    with observe() as observed, HipScript() as job:
        until(lambda: job.pid in observed.collector.ledger, "known")
        job.run(
            "for _ in range(23): new(lib.hipMalloc, size(10)); launch(); lib.hipDeviceSynchronize()\n"
            "lib.standin_fail(1); lib.hipMemcpyHtoD(memory, memory, size(1))"
        )
        expected = {"hipMalloc": 23, "hipLaunchKernel": 23, "hipDeviceSynchronize": 23, "hipMemcpyHtoD": 1}
        assert expected == observed.by(CALLS, job.pid, "api")
        for metric in (ALLOCATED, FREED, USED, COPIED, WAITED, ERRORS):
            assert {} == observed.values(metric, job.pid)


def test_names_of_cxx() -> None:
    """A symbol of C++ is reported as its function."""
    assert "hipExtModuleLaunchKernel" == function(EXTENDED)
    assert "hipMalloc" == function("hipMalloc")


@standin
def test_captures(observed: Observed, job: HipScript) -> None:
    """Stream-ordered allocations and frees on a captured stream are calls, and no bytes."""
    job.run(
        "stream = new(lib.hipStreamCreate); memory = new(lib.hipMallocAsync, size(1000), stream)\n"
        "lib.hipStreamBeginCapture(stream, 0); node = new(lib.hipMallocAsync, size(4000), stream)\n"
        "lib.hipFreeAsync(node, stream); lib.hipStreamEndCapture(stream, None)\n"
        "lib.hipStreamBeginCapture(stream, 0); lib.hipStreamDestroy(stream); new(lib.hipMallocAsync, size(23), None)"
    )
    assert {"pool": 1023} == observed.by(USED, job.pid, "memory")
    assert 3 == observed.value(CALLS, job.pid, api="hipMallocAsync")
    job.run("lib.hipFreeAsync(memory, None)")
    assert {"pool": 23} == observed.by(USED, job.pid, "memory")
    assert {} == observed.values(UNSEEN, job.pid)


@standin
def test_another_stream_during_a_capture(observed: Observed, job: HipScript) -> None:
    """An allocation on another stream meanwhile may be a node of the graph: bytes in use are absent from then on."""
    job.run("stream = new(lib.hipStreamCreate); new(lib.hipMalloc, size(1000)); lib.hipStreamBeginCapture(stream, 0)")
    assert {"device": 1000} == observed.by(USED, job.pid, "memory")
    job.run("new(lib.hipMallocAsync, size(4000), None)")
    assert {} == observed.by(USED, job.pid, "memory")


@standin
def test_a_capture_from_before_the_probes() -> None:
    """Bytes in use are absent once it ends: what it allocated has been taken for memory. Allocations count."""
    with HipScript() as job:
        job.run("stream = new(lib.hipStreamCreate); lib.hipStreamBeginCapture(stream, 0)")
        with observe() as observed:
            started(observed, job)
            job.run("new(lib.hipMallocAsync, size(4000), stream); assert 0 == lib.hipStreamEndCapture(stream, None)")
            assert {} == observed.by(USED, job.pid, "memory")
            assert 4000 == observed.value(ALLOCATED, job.pid, memory="pool")


@standin
def test_a_stream_that_went_with_a_reset(observed: Observed, job: HipScript) -> None:
    """A new stream that has the handle of a captured one is not captured: what is allocated there is memory."""
    job.run(
        "streams = [new(lib.hipStreamCreate) for _ in range(3)]\n"
        "lib.hipStreamBeginCapture(streams[0], 0); lib.hipDeviceReset(); before = streams[0].value\n"
        "libc = ctypes.CDLL(None); libc.free(streams[0])  # as a reset does\n"
        "made = next(it for it in (new(lib.hipStreamCreate) for _ in range(1000)) if it.value == before)\n"
        "new(lib.hipMallocAsync, size(23), made)"
    )
    assert {"pool": 23} == observed.by(USED, job.pid, "memory")
