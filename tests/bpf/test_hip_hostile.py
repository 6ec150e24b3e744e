"""HIP jobs that do what a job seldom does: calls that never return, other programs, forks, libraries in between."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporter.bpf.process_user import user_of
from exporter.views.prometheus import render
from tests.bpf.cuda_node import BUILD, Script, build_standins, started
from tests.bpf.fixtures import each
from tests.bpf.hip_node import (
    ALLOCATED,
    CALLS,
    COPIED,
    ERRORS,
    GRAPHS,
    LAUNCHES,
    UNSEEN,
    UNTRACKED,
    USED,
    HipScript,
    observe,
)
from tests.bpf.jumper import JUMPER, leave
from tests.bpf.observed import Observed
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="HIP calls", on="stand-in")]

SEEN = "gpu_hip_seen_from_start"
ATTACHED = "accel_exporter_probe_attached"


@pytest.fixture(scope="module")
def observed() -> Iterator[Observed]:
    build_standins()
    with (
        observe() as observed,
        started(observed, HipScript()),
    ):  # attached to the library: jobs are seen from their start
        yield observed


job = each(HipScript)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="on arm64 the stack does not show that a call has ended")
@pytest.mark.parametrize(
    ("call", "used"),
    [("hipStreamSynchronize, c_uint64()", {"device": 1007}), ("hipFree, held", {}), ("hipMalloc, byref(at)", {})],
)
def test_a_call_that_is_left_by_longjmp(
    compile_library: Callable[[str, str], Path], observed: Observed, job: HipScript, call: str, used: dict[str, int]
) -> None:
    """Later calls count. If it was a call on memory, bytes in use are absent: what it did is not known."""
    job.run(
        f"jumper = ctypes.CDLL({str(compile_library('jumper.so', JUMPER))!r}); at = c_uint64()\n"
        "held = new(lib.hipMalloc, size(1000)); lib.standin_stall(c_uint64(600 * 10**9))"
    )
    assert {"device": 1000} == observed.by(USED, job.pid, "memory")
    job.begin(f"out = jumper.abandon(lib.{call}, size(1))")
    leave(observed, job)
    assert -1 == job.answer()
    job.run("lib.standin_stall(c_uint64(0)); assert 0 == jumper.deeper(lib.hipMalloc, byref(at), size(7), 3)")
    assert {"device": 1007} == observed.by(ALLOCATED, job.pid, "memory")
    assert used == observed.by(USED, job.pid, "memory")
    assert bool(used) == observed.value(SEEN, job.pid)


def test_a_thread_that_is_cancelled_in_a_call_on_memory(observed: Observed, job: HipScript) -> None:
    """Bytes in use are absent, since it is not known whether it has freed; those of another process are not."""
    with started(observed, HipScript()) as other:
        other.run("new(lib.hipMalloc, size(5))")
        job.run(
            "held = new(lib.hipMalloc, size(1000)); libc = ctypes.CDLL(None)\n"
            "def work(): lib.standin_stall(c_uint64(600 * 10**9)); lib.hipFree(held)\n"
            "thread = threading.Thread(target=work, daemon=True); thread.start()"
        )
        until(lambda: observed.in_flight(job.pid), "a call in flight")
        assert {"device": 1000} == observed.by(USED, job.pid, "memory")
        job.run("assert 0 == libc.pthread_cancel(c_uint64(thread.ident))")
        until(lambda: not observed.in_flight(job.pid), "the thread's end")
        assert {} == observed.by(USED, job.pid, "memory")
        assert {"device": 5} == observed.by(USED, other.pid, "memory")


@pytest.mark.parametrize(("meanwhile", "used"), [("", {}), ("lib.hipFree(held)", {"device": 7})])
def test_another_program_that_allocates_before_it_is_noticed(
    noticing: threading.Event, meanwhile: str, used: dict[str, int]
) -> None:
    """Nothing of two programs is shown as one's; of memory from before it was noticed no usage leaves it out."""
    build_standins()
    with observe() as observed, started(observed, HipScript()), started(observed, HipScript()) as job:
        job.run("new(lib.hipMalloc, size(1000))")
        assert {"device": 1000} == observed.by(USED, job.pid, "memory") and 1 == observed.value(SEEN, job.pid)
        noticing.clear()
        job.begin(f"os.execv(sys.executable, [sys.executable, '-c', {HipScript.DRIVER!r}, 'second'])")
        until(lambda: b"second" in Path(f"/proc/{job.pid}/cmdline").read_bytes(), "another program")
        job.run("lib = ctypes.CDLL('libamdhip64.so.5'); held = new(lib.hipMalloc, size(50))")
        assert {} == observed.by(USED, job.pid, "memory") and 0 == observed.value(SEEN, job.pid)
        if meanwhile:
            job.run(meanwhile)
        noticing.set()
        until(lambda: not observed.kernel("totals", job.pid) and job.pid in observed.collector.ledger, "exec noticed")
        job.run("new(lib.hipMalloc, size(7))")
        assert used == observed.by(USED, job.pid, "memory") and 0 == observed.value(SEEN, job.pid)


def test_programs_that_follow_each_other(noticing: threading.Event) -> None:
    """A process that runs one program after another, none of them noticed, takes its share of the table, no more."""
    build_standins()
    with (
        observe(live_allocations=64) as observed,
        started(observed, HipScript()) as other,
        started(observed, HipScript()) as job,
    ):
        noticing.clear()
        for number in range(7):
            job.begin(f"os.execv(sys.executable, [sys.executable, '-c', {HipScript.DRIVER!r}, 'program {number}'])")
            program = f"program {number}".encode()
            until(lambda program=program: program in Path(f"/proc/{job.pid}/cmdline").read_bytes(), "another program")  # type: ignore[misc]
            job.run("lib = ctypes.CDLL('libamdhip64.so.5'); held = [new(lib.hipMalloc, size(10)) for _ in range(40)]")
        assert len(observed.kernel("live", job.pid)) <= 32
        other.run("new(lib.hipMalloc, size(5))")
        assert {"device": 5} == observed.by(USED, other.pid, "memory")
        noticing.set()
        until(lambda: not observed.kernel("live", job.pid), "exec noticed")


def test_a_job_that_was_there_before() -> None:
    """A job that runs already is shown as one that was not seen from its start, a later one as one that was."""
    build_standins()
    with HipScript() as before:
        before.run("new(lib.hipMalloc, size(1000))")
        with observe() as observed, started(observed, before), started(observed, HipScript()) as after:
            for job in (before, after):
                job.run("new(lib.hipMalloc, size(7))")
            assert [0, 1] == [observed.value(SEEN, it.pid) for it in (before, after)]


def test_a_forked_child_counts_for_itself(observed: Observed, job: HipScript) -> None:
    """A child's frees of memory inherited from its parent are no frees of the parent."""
    job.run("held = new(lib.hipMalloc, size(1000)); [launch() for _ in range(7)]")
    child = job.run(
        "out = os.fork()\n"
        "if not out:\n"
        "    for _ in range(5): launch()\n"
        "    new(lib.hipMalloc, size(30)); lib.hipFree(held); os._exit(0)\n"
        "os.waitpid(out, 0)"
    )
    assert [7, 5] == [observed.value(LAUNCHES, pid) for pid in (job.pid, child)]
    assert {"device": 1000} == observed.by(USED, job.pid, "memory")
    assert {"device": 30} == observed.by(ALLOCATED, child, "memory")
    assert {"device": 1} == observed.by(UNSEEN, child, "memory")


SHIM = """
#include <dlfcn.h>
static void *real(const char *name) { return dlsym(dlopen("libamdhip64.so.5", RTLD_NOW), name); }
int hipGraphLaunch(void *graph, void *stream)
{
    volatile int code = ((int (*)(void *, void *))real("hipGraphLaunch"))(graph, stream);
    return code;
}
int hipMalloc(void **at, unsigned long size)
{
    volatile int code = ((int (*)(void **, unsigned long))real("hipMalloc"))(at, size);
    return code;
}
int hipFree(void *at)
{
    volatile int code = ((int (*)(void *))real("hipFree"))(at);
    return code;
}
"""


def test_a_library_that_passes_calls_on(compile_library: Callable[[str, str], Path], observed: Observed) -> None:
    """Launches through a library put before HIP count once."""
    shim = compile_library("libhipshim.so", SHIM)
    with started(observed, HipScript()), Script(shim) as job:
        until(lambda: job.pid in observed.collector.ledger, "known")
        job.run("lib.hipGraphLaunch(None, None)")  # it loads HIP
        until(lambda: str(shim) in observed.collector.probes.passed(), "recognised")
        until(lambda: not observed.values(ATTACHED, library=str(shim)), "no longer probed")
        until(lambda: observed.attached(job.pid, {str(BUILD / "libamdhip64.so.5")}), "attached")
        before = observed.value(GRAPHS, job.pid)
        job.run("for _ in range(23): lib.hipGraphLaunch(None, None); lib.hipFree(new(lib.hipMalloc, size(10)))")
        assert 23 == observed.value(GRAPHS, job.pid) - before
        calls = observed.by(CALLS, job.pid, "api")
        assert (23, 23) == (calls["hipMalloc"], calls["hipFree"])
        assert {"device": 230} == observed.by(ALLOCATED, job.pid, "memory")
        assert {"device": 0} == observed.by(USED, job.pid, "memory")


def test_hip_that_another_user_maps_beside_one(tmp_path: Path, observed: Observed) -> None:
    """Nobody removes the probes of a library with HIP's functions that others use alone."""
    library, usual = tmp_path / "libsimhip64.so.5", BUILD / "libamdhip64.so.5"
    library.write_bytes(usual.read_bytes().replace(b"\0libamdhip64.so.5\0", b"\0libsimhip64.so.5\0"))
    with HipScript(library) as alone, Script("libc.so.6") as hostile:
        until(lambda: alone.pid in observed.collector.ledger, "known")
        hostile.run("os.setresuid(65534, 0, 0)")  # it may open the same files
        if user_of(Path("/proc"), hostile.pid) == user_of(Path("/proc"), alone.pid):
            pytest.skip("here all processes count to one user, of a login session or a container")
        alone.run("[launch() for _ in range(7)]; held = new(lib.hipMalloc, size(1000))")
        hostile.run(f"other = ctypes.CDLL({str(library)!r}); lib = ctypes.CDLL({str(usual)!r})")
        until(lambda: observed.left_out(hostile.pid), "looked at")
        assert str(library) in observed.collector.probes.passed()
        before = observed.value(GRAPHS, hostile.pid)
        hostile.run("for _ in range(5): other.hipGraphLaunch(None, None); new(other.hipMalloc, size(10))")
        hostile.run("for _ in range(23): lib.hipGraphLaunch(None, None)")
        alone.run("[launch() for _ in range(23)]; new(lib.hipMalloc, size(500))")
        assert 30 == observed.value(LAUNCHES, alone.pid)
        assert {"device": 1500} == observed.by(USED, alone.pid, "memory")
        assert before is None and 23 == observed.value(GRAPHS, hostile.pid)
        assert {} == observed.by(ALLOCATED, hostile.pid, "memory")  # what it shows holds for itself


LIAR = """
#include <stddef.h>
#define SUCCEEDS(name) int name(void) { asm volatile("nop; nop; nop; nop"); return 0; }
SUCCEEDS(hipMalloc) SUCCEEDS(hipMallocPitch) SUCCEEDS(hipMalloc3D) SUCCEEDS(hipMemcpy3D) SUCCEEDS(hipMemcpyParam2D)
SUCCEEDS(hipMemcpy2D) SUCCEEDS(hipFree) SUCCEEDS(hipHostRegister) SUCCEEDS(hipMemcpy)
"""


def test_a_library_that_lies(compile_library: Callable[[str, str], Path], observed: Observed, job: HipScript) -> None:
    """Calls that succeed with any pointer and any size change nothing for others, and nothing on the page is wrong."""
    liar = compile_library("libliar.so", LIAR)
    with started(observed, Script(liar)) as hostile:
        hostile.run(
            "wild = [c_void_p(0), c_void_p(8), c_void_p(2**64 - 1), c_void_p(2**63), c_void_p(0xffff800000000000)]\n"
            "for it in wild:\n"
            "    for n in (1, 1 << 63, (1 << 64) - 1):\n"
            "        lib.hipMalloc(it, size(n)); lib.hipHostRegister(it, size(n)); lib.hipFree(it)\n"
            "        lib.hipMallocPitch(it, it, size(n), size(n)); lib.hipMalloc3D(it, size(n), size(n), size(n))\n"
            "        lib.hipMemcpy3D(it); lib.hipMemcpyParam2D(it); lib.hipMemcpy(it, it, size(n), 77)\n"
            "        lib.hipMemcpy2D(it, it, it, it, size(n), size(n), size(n))"
        )
        job.run(
            "for _ in range(23): launch(); lib.hipMemcpyHtoD(memory, memory, size(10)); new(lib.hipMalloc, size(3))"
        )
        assert 23 == observed.value(LAUNCHES, job.pid)
        assert {"h2d": 230} == observed.by(COPIED, job.pid, "direction")
        assert {"device": 69} == observed.by(USED, job.pid, "memory")
        assert 15 == observed.by(CALLS, hostile.pid, "api")["hipMemcpy3D"]
        assert observed.by(UNTRACKED, hostile.pid, "memory")["device"]
        assert "device" not in observed.by(USED, hostile.pid, "memory")
        page = render(observed.samples()).text
        assert page.count(b"gpu_hip") > 10
        assert not [line for line in page.splitlines() if line.startswith(b"gpu_hip") and b" -" in line]


CODES = """
int hipFree(long code) { asm volatile("nop; nop; nop; nop"); return (int)code; }
"""


def test_a_library_with_any_number_of_errors(
    compile_library: Callable[[str, str], Path], observed: Observed, job: HipScript
) -> None:
    """A process that returns one code after another takes half of the table of errors; others' errors count."""
    library = compile_library("libcodes.so", CODES)
    for _ in range(2):
        with started(observed, Script(library)) as hostile:
            hostile.run("for code in range(1, 5000): lib.hipFree(code)")
            assert 2048 == len([*observed.collector.object.maps["errors"].items()])
            job.run("lib.standin_fail(719); lib.hipDeviceSynchronize()")
        until(lambda pid=hostile.pid: not observed.kernel("shares", pid), "its end")  # type: ignore[misc]
    assert {("hipDeviceSynchronize", "719"): 2} == observed.by(ERRORS, job.pid, "api", "code")
