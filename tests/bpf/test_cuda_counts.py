"""Calls and bytes are counted exactly, for each process, at both layers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from exporter.bpf.safety import Protection
from exporter.collectors.cuda import FLAGS
from exporter.cuda.sight import Sight
from tests.bpf.cuda_node import BUILD, MIB, Job, Script, build_standins, observe, started
from tests.bpf.fixtures import once
from tests.bpf.observed import Observed
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.evidence(feature="CUDA launches", on="stand-in"),
    pytest.mark.evidence(feature="CUDA errors", on="stand-in"),
]

LAYERS = ("driver", "runtime")
LAUNCHES = "gpu_cuda_kernel_launch_calls_total"
ALLOCATED = "gpu_cuda_memory_allocations_bytes_total"
FREED = "gpu_cuda_memory_frees_bytes_total"
USED = "gpu_cuda_memory_usage_bytes"
CALLS = "gpu_cuda_api_calls_total"
SEEN = "gpu_cuda_seen_from_start"
ATTACHED = "accel_exporter_probe_attached"
UNCOVERED = "accel_exporter_probe_symbols_uncovered"
WORK = ("--launches", "23", "--allocations", "23", "--frees", "23", "--copies", "23", "--waits", "23", "--wait-ms", "0")


observed = once(observe)


def freed(observed: Observed, pid: int, layer: str) -> dict[str, int]:
    """Bytes freed by calls ("") and implicitly ("true")."""
    found = observed.values(FREED, pid, api_layer=layer, memory="device")
    return {dict(labels).get("implicit", ""): value for labels, value in found.items()}


def everything(observed: Observed, metric: str, pid: int) -> int:
    """Return what all programs of a process counted, also those before that are folded."""
    return sum(observed.sums(metric, pid=pid)[metric].values())


@pytest.mark.parametrize("libraries", [BUILD, BUILD / "cet"], ids=["push", "endbr64"])
def test_threads_launch_and_allocate(observed: Observed, libraries: Path) -> None:
    """8 threads with 100,003 launches each, 23 allocations of distinct sizes and 19 frees are counted exactly."""
    work = ["--threads", "8", "--launches", "100003", "--allocations", "23", "--frees", "19"]
    with started(observed, Job("--gate", "--hold", *work, libraries=libraries)) as job:
        job.go()
        made = job.report()
        assert 8 * 100_003 == made["launches"]
        for layer in LAYERS:
            assert made["launches"] == observed.value(LAUNCHES, job.pid, api_layer=layer)
            assert made["allocated"] == observed.value(ALLOCATED, job.pid, api_layer=layer, memory="device")
            assert {"": made["freed"], "true": 0} == freed(observed, job.pid, layer)
            used = observed.value(USED, job.pid, api_layer=layer, memory="device")
            assert made["allocated"] - made["freed"] == used
        assert 23 == observed.value(CALLS, job.pid, api="cudaMalloc")
        assert 23 == observed.value(CALLS, job.pid, api="cuMemAlloc_v2")
        assert 19 == observed.value(CALLS, job.pid, api="cuMemFree_v2")


def test_one_layer_is_not_taken_for_the_other(observed: Observed) -> None:
    """A job that calls the driver directly has driver calls and no runtime calls."""
    with started(observed, Job("--gate", "--hold", "--layer", "driver", "--launches", "23")) as job:
        job.go()
        job.report()
        assert 23 == observed.value(LAUNCHES, job.pid, api_layer="driver")
        assert {} == observed.values(CALLS, job.pid, api_layer="runtime")


def test_the_driver_alone_is_probed_by_default() -> None:
    """With the default nothing is attached to the runtime: what it does counts once, at the driver."""
    default = next(flag.default for flag in FLAGS if flag.name == "layers")
    for layers, counted in ((default, {"driver": 23}), ("runtime", {"runtime": 23})):
        with observe(layers=layers) as observed, Job("--gate", "--hold", *WORK) as job:
            job.libraries = {path for path in job.libraries if ("libcudart" in path) == (layers == "runtime")}
            started(observed, job).go()
            job.report()
            launches = {layer: observed.value(LAUNCHES, job.pid, api_layer=layer) for layer in LAYERS}
            assert counted == {layer: count for layer, count in launches.items() if count}
            assert job.libraries == {dict(it)["library"] for it in observed.values(ATTACHED) if str(BUILD) in str(it)}
            assert 0 == observed.value(UNCOVERED, library=next(iter(job.libraries)))


@pytest.mark.parametrize("returns", [True, False], ids=["with return probes", "without"])
def test_each_call_counts_once(monkeypatch: pytest.MonkeyPatch, returns: bool) -> None:
    """A call counts once, whether its program waits for its return, or return probes are not allowed."""
    if not returns:
        monkeypatch.setattr("exporter.bpf.trial.Trial.returns_allowed", lambda *_: (False, "this is a test"))
    calls = {"cuMemAlloc_v2": 24, "cuMemFree_v2": 23, "cuMemcpyHtoD_v2": 23, "cuStreamSynchronize": 46}
    calls |= {"cudaMalloc": 24, "cudaFree": 23, "cudaMemcpy": 23, "cudaStreamSynchronize": 46}
    with observe() as observed, Job("--gate", "--hold", *WORK, "--threads", "2") as job:
        if returns:
            started(observed, job)
        until(lambda: job.libraries <= {dict(it)["library"] for it in observed.values(ATTACHED)}, "attached")
        until(lambda: job.pid in observed.collector.ledger, "known")
        job.go()
        job.report()
        found = {dict(labels)["api"]: count for labels, count in observed.values(CALLS, job.pid).items()}
        found = {api: count for api, count in found.items() if "Launch" not in api and "Ctx" not in api}
        assert (calls, {}) == (found, observed.lost)
        assert returns == bool(observed.value(ALLOCATED, job.pid, api_layer="driver"))


CHANGES = {True: 40, False: 4}
"""With links of a perf event each, which the kernel takes its time to end, fewer."""
LOOP = """
made, over = 0, False
def loop():
    global made
    while not over:
        lib.cuMemcpyHtoD_v2(c_uint64(1 << 40), b"data", size(4)); lib.cuStreamSynchronize(None)
        made += 1
looping = threading.Thread(target=loop); looping.start()
"""


def test_return_probes_that_come_and_go(monkeypatch: pytest.MonkeyPatch, multi: bool) -> None:
    """Each call in a tight loop counts once while return probes are withdrawn and given back."""
    build_standins()
    monkeypatch.setattr("exporter.bpf.multi.supported", lambda: multi)
    with observe(layers="driver") as observed, started(observed, Script()) as script:
        path = str(BUILD / "libcuda.so.1")
        [probed] = [it for it in observed.collector.probes.present() if it.hooked.library.path == path]
        script.run(LOOP)
        states = set()
        for change in range(CHANGES[multi]):
            probed.hooked.review(bool(change % 2), "this is a test")
            states.add(probed.hooked.refused)
        made = script.run("over = True; looping.join(); out = made")
        assert {False, True} == states
        counted = [observed.value(CALLS, script.pid, api=api) for api in ("cuMemcpyHtoD_v2", "cuStreamSynchronize")]
        assert [made, made] == counted


def test_what_is_held_is_not_known_once_return_probes_were_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a process that must not have them, its neighbours at the same library lose them; others do not."""
    build_standins()
    forbidden: set[int] = set()
    monkeypatch.setattr(
        "exporter.probe_collector.protection", lambda _, pid: Protection(seccomp=False, shadow_stack=pid in forbidden)
    )
    monkeypatch.setattr(
        "exporter.bpf.trial.Trial.returns_allowed",
        lambda _, users: (not any(it.shadow_stack for it in users), "a test"),
    )
    with observe(layers="driver") as observed, Script() as first, Script(libraries=BUILD / "cet") as other:
        for script in (first, other):
            started(observed, script).run("held = new(lib.cuMemAlloc_v2, size(1 << 20))")
            assert MIB == observed.value(USED, script.pid)
        with Script("libc.so.6") as second:
            forbidden.add(second.pid)
            second.run("lib = ctypes.CDLL('libcuda.so.1')")
            until(lambda: second.pid in observed.collector.ledger, "known")
            first.run("lib.cuMemFree_v2(held)")
            assert (None, MIB) == (observed.value(USED, first.pid), observed.value(USED, other.pid))
            assert 1 == observed.value(CALLS, first.pid, api="cuMemFree_v2")
        until(lambda: second.pid not in observed.collector.ledger, "ended")
        first.run("new(lib.cuMemAlloc_v2, size(1 << 20))")
        assert 2 * MIB == observed.value(ALLOCATED, first.pid, memory="device")
        assert (None, MIB) == (observed.value(USED, first.pid), observed.value(USED, other.pid))


def test_a_second_library_that_is_seen_from_its_first_call() -> None:
    """A process is not seen from its start where one of its libraries was called before it was attached to."""
    build_standins()
    other = BUILD / "cet/libcuda.so.1"
    with Script() as script:
        allocate, more = "held = new(lib.cuMemAlloc_v2, size(1 << 20))", f"more = ctypes.CDLL({str(other)!r})"
        script.run(allocate)
        with observe(layers="driver") as observed, Script(libraries=other.parent) as user:
            started(observed, user).run(allocate)  # attached to the second library
            started(observed, script).run(allocate)
            assert 0 == observed.value(SEEN, script.pid)
            script.run(f"{more}\nnew(more.cuMemAlloc_v2, size(1 << 20))")
            [present] = [it for it in observed.collector.probes.present() if it.hooked.library.path == str(other)]
            until(lambda: script.pid in present.users, "the second library known")
            assert 0 == observed.value(SEEN, script.pid)


def test_changes_of_the_context_are_followed_and_not_counted(observed: Observed) -> None:
    """Changes of the current context, which come with every call of some frameworks, are not among the counts."""
    with started(observed, Script()) as script:
        script.run(
            "context = new(lib.cuCtxCreate_v2, 0, 0)\n"
            "for n in range(23): lib.cuCtxPushCurrent_v2(context); lib.cuCtxSetCurrent(context)\n"
            "for n in range(22): lib.cuCtxPopCurrent_v2(byref(c_uint64()))\n"
            "new(lib.cuMemAlloc_v2, size(23)); lib.cuCtxDestroy_v2(context)"
        )
        until(lambda: freed(observed, script.pid, "driver") == {"": 0, "true": 23}, "the context followed")
        called = {dict(labels)["api"] for labels in observed.values(CALLS, script.pid)}
        assert {"cuCtxCreate_v2", "cuMemAlloc_v2", "cuCtxDestroy_v2"} == called


def test_a_thread_after_another(observed: Observed) -> None:
    """Each thread has its calls in flight, however many there were before; their rows go with the thread."""
    with started(observed, Script()) as script:
        script.run(
            "def work():\n"
            "    p = new(lib.cuMemAlloc_v2, size(1)); lib.cuMemFree_v2(p)\n"
            "for n in range(1009):\n"
            "    thread = threading.Thread(target=work); thread.start(); thread.join()"
        )
        assert 1009 == observed.value(CALLS, script.pid, api="cuMemAlloc_v2")
        assert {"": 1009, "true": 0} == freed(observed, script.pid, "driver")
        until(lambda: not observed.kernel("in_flight", script.pid), "the end of the last thread")  # after its join()
        script.run("work()")
        assert 1 == len(observed.kernel("in_flight", script.pid)) <= observed.collector.object.globals()["flights"]
        script.end()
        until(lambda: not observed.kernel("in_flight", script.pid), "the end noticed")


def test_four_processes_at_once(observed: Observed) -> None:
    """Four processes that run side by side are counted each for itself."""
    work = ["--threads", "2", "--allocations", "5", "--frees", "3"]
    jobs = [Job("--gate", "--hold", "--launches", str(1009 + i), *work) for i in range(4)]
    try:
        for job in jobs:
            started(observed, job)
        for job in jobs:
            job.go()
        made = {job.pid: job.report() for job in jobs}
        for pid, counts in made.items():
            assert counts["launches"] == observed.value(LAUNCHES, pid, api_layer="driver")
            assert counts["allocated"] == observed.value(ALLOCATED, pid, api_layer="driver")
            assert {"": counts["freed"], "true": 0} == freed(observed, pid, "driver")
    finally:
        for job in jobs:
            job.end()


def test_a_forked_child_counts_for_itself(observed: Observed) -> None:
    """Calls of a child that was forked without exec are its own."""
    with started(observed, Script()) as script:
        script.run("for _ in range(7): lib.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None)")
        child = script.run(
            "out = os.fork()\n"
            "if not out:\n"
            "    for _ in range(5): lib.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None)\n"
            "    os._exit(0)\n"
            "os.waitpid(out, 0)"
        )
        assert 7 == observed.value(LAUNCHES, script.pid, api_layer="driver")
        assert 5 == observed.value(LAUNCHES, child, api_layer="driver")


def test_another_program_in_the_same_process(observed: Observed) -> None:
    """After exec a process counts from 0, and no usage of the program before is shown any more."""
    with started(observed, Script()) as script:
        script.run("new(lib.cuMemAlloc_v2, size(1 << 20)); lib.cuLaunchKernel(*[None] * 11)")
        assert MIB == observed.value(USED, script.pid, api_layer="driver", memory="device")
        work = ["--gate", "--hold", "--layer", "driver", "--launches", "11", "--allocations", "1"]
        script.begin(f"os.execv({str(BUILD / 'workload')!r}, ['workload', *{work!r}])")
        until(lambda: not observed.kernel("totals", script.pid), "the exec noticed")
        assert {} == observed.values(USED, script.pid)
        assert {"": 0, "true": MIB} == freed(observed, script.pid, "driver")
        started(observed, script)
        script.go()
        made = script.report()
        assert 11 == observed.value(LAUNCHES, script.pid, api_layer="driver", comm="workload")
        assert made["allocated"] == observed.value(USED, script.pid, api_layer="driver", comm="workload")


def test_ended_processes_that_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three that ended two are folded where one is kept: sums over all series are those of three."""
    monkeypatch.setattr("exporter.ledger.MOST_ENDED", 1)
    with observe() as observed:
        for _ in range(3):
            with started(observed, Job("--gate", "--hold", *WORK)) as job:
                job.go()
                job.report()
            until(lambda job=job: job.pid not in observed.collector.ledger, "its end")  # type: ignore[misc]
        once = {False: 2 * 23, True: 4 * 23}  # both layers
        found = observed.sums(LAUNCHES, "gpu_cuda_sync_wait_seconds", ALLOCATED, FREED)
        assert once == found[LAUNCHES] == found["gpu_cuda_sync_wait_seconds"]
        assert 2 * found[ALLOCATED][False] == found[ALLOCATED][True] > 0
        assert found[ALLOCATED] == found[FREED]
        assert 2 == observed.value("accel_exporter_ended_processes_folded_total", collector="cuda")
        assert 2 * 23 == observed.value(LAUNCHES, api_layer="driver", overflow="true", comm="workload")


def test_another_program_that_calls_at_once() -> None:
    """All calls are counted, under the one or the other name. The second program was seen from its start only if all of
    its own are under its name.
    """
    calls = "new(lib.cuMemAlloc_v2, size(1 << 20)); lib.cuLaunchKernel(*[None] * 11)"
    with observe() as observed, started(observed, Script()) as script:
        script.run(calls)
        work = ["--hold", "--layer", "driver", "--launches", "11", "--allocations", "1"]
        script.begin(f"os.execv({str(BUILD / 'workload')!r}, ['workload', *{work!r}])")
        report = script.report()
        until(lambda: observed.named(script.pid, "workload"), "exec noticed")

        assert 12 == everything(observed, LAUNCHES, script.pid)
        own = observed.value(LAUNCHES, script.pid, api_layer="driver", comm="workload")
        seen = observed.value(SEEN, script.pid, comm="workload")
        assert seen in (None, 0) or own == 11
        used = observed.value(USED, script.pid, api_layer="driver", comm="workload")
        assert seen in (None, 0) or used == report["allocated"]


@pytest.mark.parametrize("program", ["workload", Path(sys.executable).name], ids=["other labels", "the same labels"])
def test_another_program_that_calls_before_it_is_noticed(
    noticing: threading.Event, tmp_path: Path, program: str
) -> None:
    """Memory of a program that calls before its exec is noticed is unknown, as its calls are counted for the program
    before: no usage is shown as 0, and the process is not marked as seen from its start.
    """
    (tmp_path / program).symlink_to(BUILD / "workload")
    work = ["--hold", "--layer", "driver", "--launches", "11", "--allocations", "1"]
    with observe() as observed, started(observed, Script()), started(observed, Script()) as script:
        script.run("new(lib.cuMemAlloc_v2, size(1 << 20)); lib.cuLaunchKernel(*[None] * 11)")
        assert (MIB, 1) == (observed.value(USED, script.pid), observed.value(SEEN, script.pid))
        noticing.clear()
        script.begin(f"os.execv({str(tmp_path / program)!r}, [{program!r}, *{work!r}])")
        made = script.report()
        assert ({}, 0) == (observed.values(USED, script.pid), observed.value(SEEN, script.pid))
        noticing.set()
        ledger = observed.collector.ledger
        until(lambda: not observed.kernel("totals", script.pid) and script.pid in ledger, "exec noticed")

        assert {} == observed.values(USED, script.pid)
        assert 0 == observed.value(SEEN, script.pid, comm=program)
        assert MIB + made["allocated"] == observed.value(ALLOCATED, script.pid, api_layer="driver")


def test_another_program_in_a_child_that_is_noticed_before(noticing: threading.Event, tmp_path: Path) -> None:
    """A child has its parent's library until its exec. If the exec is noticed late and no call came before it, the
    program is seen from its start.
    """
    command = [BUILD / "workload", "--gate", "--hold", "--layer", "driver", "--launches", "11", "--allocations", "1"]
    os.mkfifo(gate := tmp_path / "gate")
    with observe() as observed, started(observed, Script()) as script:
        script.begin(
            "import subprocess\n"
            f"child = subprocess.Popen({[*map(str, command)]!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,"
            f" text=True, preexec_fn=lambda: open({str(gate)!r}).read())\n"
            "out = child.pid"
        )
        children = psutil.Process(script.pid).children
        until(lambda: observed.collector.ledger.live.intersection(it.pid for it in children()), "the child noticed")
        noticing.clear()
        gate.write_text("")
        child = script.answer()
        until(lambda: str(BUILD / "libcuda.so.1") in Path(f"/proc/{child}/maps").read_text(), "the library mapped")
        noticing.set()
        until(lambda: observed.named(child, "workload"), "exec noticed")
        allocated = script.run("print(file=child.stdin, flush=True); out = json.loads(child.stdout.readline())")
        assert 1 == observed.value(SEEN, child)
        assert allocated["allocated"] == observed.value(USED, child, api_layer="driver")


def test_a_wrapper_is_not_what_is_counted(noticing: threading.Event) -> None:
    """A program that a wrapper starts by exec has all of its calls, also where both are noticed after them."""
    command = ["env", BUILD / "workload", "--hold", "--layer", "driver", "--launches", "11", "--allocations", "1"]
    environment = os.environ | {"LD_LIBRARY_PATH": str(BUILD)}
    with observe() as observed, started(observed, Script()):
        noticing.clear()
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout and process.stdout.readline()
            noticing.set()
            until(lambda: observed.named(process.pid, "workload"), "the program known")
            assert 11 == observed.value(LAUNCHES, process.pid, api_layer="driver", comm="workload")
            assert 11 == everything(observed, LAUNCHES, process.pid)
            process.kill()


def test_the_same_program_again_and_again(tmp_path: Path) -> None:
    """One that runs itself faster than can be followed loses no call, but one in the very instant in which the counts
    of the program before are put aside, and does not pass for a process seen whole.
    """
    again = tmp_path / "again.py"
    again.write_text(
        "import ctypes, os, sys, time\n"
        "lib, left = ctypes.CDLL('libcuda.so.1'), int(sys.argv[1])\n"
        "lib.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1 << 20))\n"
        "for _ in range(100): lib.cuLaunchKernel(*[None] * 11)\n"
        "if left: os.execv(sys.executable, [sys.executable, sys.argv[0], str(left - 1)])\n"
        "time.sleep(600)\n"
    )
    environment = os.environ | {"LD_LIBRARY_PATH": str(BUILD)}
    with (
        observe() as observed,
        started(observed, Script()),  # attached to the library
        subprocess.Popen([sys.executable, again, "4"], env=environment) as process,
    ):
        try:
            launches = partial(everything, observed, LAUNCHES, process.pid)
            until(lambda: 500 - 4 <= launches() <= 500, lambda: observed.values(LAUNCHES))
            until(lambda: process.pid in observed.collector.ledger, "the last one known")
            assert 500 - 4 <= launches() <= 500, observed.values(LAUNCHES)
            assert 5 * MIB == everything(observed, ALLOCATED, process.pid)
            used = observed.values(USED, process.pid, api_layer="driver")
            seen = observed.values(SEEN, process.pid)
            assert sum(used.values()) == MIB or 1 not in seen.values()
        finally:
            process.kill()


AGAIN = """
import ctypes, os, sys
lib, left, calls, stall = ctypes.CDLL("libcuda.so.1"), *map(int, sys.argv[1:])
out, size, nothing = ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1 << 20), [None] * 11
if not left: lib.standin_stall(ctypes.c_uint64(stall * 10**9))
for _ in range(calls): lib.cuMemAlloc_v2(out, size), lib.cuLaunchKernel(*nothing)
if left: os.execv(sys.executable, [sys.executable, sys.argv[0], str(left - 1), *sys.argv[2:]])
sys.stdin.read()
"""
"""Arguments: how often it runs itself, the calls of each time, the seconds that the last time's first call takes."""


@pytest.mark.parametrize(
    ("execs", "calls", "stall", "missing"), [(1, 1, 1, 0), (9, 3000, 0, 9)], ids=["a call in progress", "many calls"]
)
def test_calls_while_an_exec_is_noticed(tmp_path: Path, execs: int, calls: int, stall: int, missing: int) -> None:
    """Calls made while the counts of the program before are put aside are counted, but one in the very instant."""
    again = tmp_path / "again.py"
    again.write_text(AGAIN)
    arguments = map(str, (sys.executable, again, execs, calls, stall))
    environment = os.environ | {"LD_LIBRARY_PATH": str(BUILD)}
    with (
        observe() as observed,
        started(observed, Script()),
        subprocess.Popen([*arguments], env=environment, stdin=subprocess.PIPE) as process,
    ):
        most = (execs + 1) * calls
        launches = lambda: everything(observed, LAUNCHES, process.pid)  # noqa: E731
        allocated = lambda: everything(observed, ALLOCATED, process.pid) // MIB  # noqa: E731
        try:
            until(lambda: most - missing <= launches() <= most, launches)
            until(lambda: most - missing <= allocated() <= most, allocated)
        finally:
            process.kill()


def test_killed_in_the_middle_of_an_allocation(observed: Observed) -> None:
    """After a process was killed inside cuMemAlloc what it held counts as freed, what it was allocating not at all."""
    with started(observed, Script()) as script:
        script.run("new(lib.cuMemAlloc_v2, size(3 << 20))")
        script.begin("lib.standin_stall(c_uint64(60 * 10**9)); new(lib.cuMemAlloc_v2, size(5 << 20))")
        until(lambda: observed.in_flight(script.pid), "the allocation begun")
        os.kill(script.pid, signal.SIGKILL)
        until(lambda: not observed.kernel("totals", script.pid), "the end noticed")
        assert 0 == observed.value(USED, script.pid, api_layer="driver", memory="device")
        assert {"": 0, "true": 3 * MIB} == freed(observed, script.pid, "driver")
        assert 3 * MIB == observed.value(ALLOCATED, script.pid, api_layer="driver")
        for table in ("in_flight", "live", "contexts", "calls"):
            assert [] == observed.kernel(table, script.pid)
        until(lambda: not observed.kernel("covered", script.pid), "the last row gone")


def test_the_end_of_a_process_frees_what_it_held(observed: Observed) -> None:
    """Usage falls to 0 when a job ends without freeing, and its counters stay."""
    with started(observed, Job("--gate", "--threads", "1", "--launches", "3", "--allocations", "7")) as job:
        job.go()
        made = job.report()
        job.process.wait()
        until(lambda: not observed.kernel("totals", job.pid), "the end noticed")
        for layer in LAYERS:
            assert 0 == observed.value(USED, job.pid, api_layer=layer, memory="device")
            assert {"": 0, "true": made["allocated"]} == freed(observed, job.pid, layer)
            assert 3 == observed.value(LAUNCHES, job.pid, api_layer=layer)


def test_calls_that_only_jump_are_not_counted_twice(observed: Observed) -> None:
    """`__cudaLaunchKernel` jumps to cudaLaunchKernel: one launch through it is one launch at each layer."""
    with started(observed, Script("libcudart.so.12")) as script:
        script.run(
            "class Dim3(ctypes.Structure): _fields_ = [(n, ctypes.c_int) for n in 'xyz']\n"
            "lib.__getattr__('__cudaLaunchKernel')(None, Dim3(1, 1, 1), Dim3(1, 1, 1), None, size(0), None)"
        )
        for layer in LAYERS:
            assert 1 == observed.value(LAUNCHES, script.pid, api_layer=layer)


def test_a_job_that_ran_before_and_one_after() -> None:
    """Jobs that were started before the exporter, and after it, are both counted."""
    build_standins()
    with Job("--gate", "--hold", "--launches", "29") as before, observe() as observed:
        started(observed, before)
        with started(observed, Job("--gate", "--hold", "--launches", "31")) as after:
            for job in (before, after):
                job.go()
                job.report()
            assert 29 == observed.value(LAUNCHES, before.pid, api_layer="driver")
            assert 31 == observed.value(LAUNCHES, after.pid, api_layer="driver")


def test_the_second_process_from_its_first_call(observed: Observed) -> None:
    """Once the libraries are known, a process that does not wait for the exporter is counted from its first call on."""
    with started(observed, Job("--gate")):
        job = Job("--launches", "1013", "--allocations", "1")
        try:
            assert 1013 == job.report()["launches"]
            assert 1013 == observed.value(LAUNCHES, job.pid, api_layer="driver")
            assert 1013 == observed.value(LAUNCHES, job.pid, api_layer="runtime")
        finally:
            job.end()


def test_seen_from_start_is_absent_until_it_is_known(observed: Observed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with calls from before the exporter has noticed it is not taken for one that was there before."""
    decide, start = threading.Event(), Sight.start

    def wait(*arguments: Any) -> None:
        assert decide.wait(60)
        start(*arguments)

    with started(observed, Script()), monkeypatch.context() as patched:
        patched.setattr(Sight, "start", wait)
        with Script() as script:
            script.run("assert lib.cuStreamSynchronize(None) == 0")
            assert 1 == observed.value(CALLS, script.pid, api="cuStreamSynchronize")
            assert {} == observed.values(SEEN, script.pid)
            decide.set()
            until(lambda: observed.values(SEEN, script.pid), "it decided")
            assert 1 == observed.value(SEEN, script.pid)
