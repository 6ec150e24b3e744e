"""Libraries put before the driver: each call counts once, in the driver, and no driver goes uncounted."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.bpf.process_user import user_of
from tests.bpf.cuda_node import BUILD, Job, Script, build_standins, observe, started
from tests.bpf.observed import Observed
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="CUDA launches", on="stand-in")]

LAUNCHES = "gpu_cuda_kernel_launch_calls_total"
ALLOCATED = "gpu_cuda_memory_allocations_bytes_total"
FREED = "gpu_cuda_memory_frees_bytes_total"
USED = "gpu_cuda_memory_usage_bytes"
COPIED = "gpu_cuda_memory_copies_bytes_total"
CALLS = "gpu_cuda_api_calls_total"
SEEN = "gpu_cuda_seen_from_start"
ATTACHED = "accel_exporter_probe_attached"
INTERPOSER, DRIVER = BUILD / "libvgpu.so", BUILD / "libcuda.so.1"
LAUNCH = "for n in range({}): lib.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None)"


@pytest.fixture
def observed() -> Iterator[Observed]:
    build_standins()
    with observe(layers="driver") as observed:
        yield observed


def probed(observed: Observed, whole: bool = False) -> set[str]:
    """The libraries that have probes; with `whole`, of which every probe is attached, those of returns too."""
    attached = [(dict(labels)["library"], value) for labels, value in observed.values(ATTACHED).items()]
    return {path for path, _ in attached} - ({path for path, value in attached if not value} if whole else set())


def known(observed: Observed, job: Job) -> bool:
    return job.pid in observed.collector.ledger


def recognised(observed: Observed, interposer: Path = INTERPOSER) -> bool:
    """Return whether an interposer is known to pass calls on, and is no longer probed."""
    return str(interposer) in observed.collector.probes.passed() and str(interposer) not in probed(observed)


def calls(observed: Observed, job: Job) -> dict[str, int]:
    return {dict(labels)["api"]: count for labels, count in observed.values(CALLS, job.pid).items()}


def test_jobs_with_and_without_an_interposer(observed: Observed) -> None:
    """Two jobs on one driver, one of them through an interposer: launches, calls and bytes are exact for both."""
    work = ("--gate", "--hold", "--layer", "driver", "--launches", "2003", "--allocations", "23", "--frees", "19")
    with Job(*work) as plain, Job(*work, preload=INTERPOSER) as interposed:
        until(lambda: all(known(observed, job) for job in (plain, interposed)), "known")
        until(lambda: recognised(observed), "the interposer recognised")
        until(lambda: str(DRIVER) in probed(observed, whole=True), "return probes attached")
        assert {str(DRIVER)} == {it for it in probed(observed) if it.startswith(str(BUILD))}
        [problem] = [it for it in observed.collector.problems() if str(INTERPOSER) in it]
        assert str(DRIVER) in problem
        for job in (plain, interposed):
            job.go()
            made = job.report()
            assert 2003 == made["launches"] == observed.value(LAUNCHES, job.pid)
            found = calls(observed, job)
            assert (23, 19) == (found["cuMemAlloc_v2"], found["cuMemFree_v2"])
            assert made["allocated"] == observed.value(ALLOCATED, job.pid, memory="device")
            freed = observed.values(FREED, job.pid, memory="device")
            assert [0, made["freed"]] == sorted(freed.values())  # none implicitly
            assert made["allocated"] - made["freed"] == observed.value(USED, job.pid, memory="device")


def test_an_interposer_that_is_mapped_first(observed: Observed) -> None:
    """An interposer counts until it loads the driver, which counts from then on; for the next process it is known."""
    with Script("libc.so.6", preload=INTERPOSER) as first:
        until(lambda: str(INTERPOSER) in probed(observed), "the interposer alone is probed")
        until(lambda: known(observed, first), "known")
        first.run("lib = ctypes.CDLL(None); p = new(lib.cuMemAlloc_v2, size(1001))")
        until(lambda: recognised(observed) and str(DRIVER) in probed(observed, whole=True), "recognised")
        before = calls(observed, first)
        first.run(f"{LAUNCH.format(100)}\nheld = [new(lib.cuMemAlloc_v2, size(1000)) for n in range(10)]")
        first.run("[lib.cuMemFree_v2(p) for p in held[:5]]; lib.cuMemcpyHtoD_v2(held[9], b'x' * 777, size(777))")
        assert 100 == observed.value(LAUNCHES, first.pid)
        after = calls(observed, first)
        assert 10 == after["cuMemAlloc_v2"] - before["cuMemAlloc_v2"]
        assert (5, 1) == (after["cuMemFree_v2"], after["cuMemcpyHtoD_v2"])
        assert 11001 == observed.value(ALLOCATED, first.pid, memory="device")
        assert 6001 == observed.value(USED, first.pid, memory="device")
        assert [777] == list(observed.values(COPIED, first.pid).values())
        with Script("libc.so.6", preload=INTERPOSER) as second:
            until(lambda: known(observed, second), "known")
            second.run(f"lib = ctypes.CDLL(None)\n{LAUNCH.format(31)}\nnew(lib.cuMemAlloc_v2, size(7))")
            assert 31 == observed.value(LAUNCHES, second.pid)
            assert 1 == calls(observed, second)["cuMemAlloc_v2"]
            # The driver was probed when it was mapped.
            until(lambda: observed.value(SEEN, second.pid) == 1, "seen from its start")


def test_an_interposer_that_is_loaded_later(observed: Observed) -> None:
    """A stub that a process with the driver loads, and calls at once, is never probed: no call counts twice."""
    with Script("libcuda.so.1") as job:
        until(lambda: known(observed, job) and str(DRIVER) in probed(observed, whole=True), "known")
        made = job.run(
            f"lib = ctypes.CDLL({str(INTERPOSER)!r}); out = 0; end = time.monotonic() + 3\n"
            "while time.monotonic() < end: lib.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None); out += 1"
        )
        until(lambda: recognised(observed), "recognised")
        assert made == observed.value(LAUNCHES, job.pid)


def test_a_driver_of_another_name_counts(observed: Observed, tmp_path: Path) -> None:
    """The only library with the driver's functions is the driver, whatever it is called."""
    other = tmp_path / "libother.so"
    shutil.copy(DRIVER, other)
    with started(observed, Script()), Script("libother.so", libraries=tmp_path) as job:
        until(lambda: known(observed, job), "known")
        job.run(LAUNCH.format(29))
        assert 29 == observed.value(LAUNCHES, job.pid)
        assert not recognised(observed, other)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A driver that names itself otherwise, on which a job can be alone."""
    made = tmp_path / "libsimg.so.1"
    content = DRIVER.read_bytes().replace(b"\0libcuda.so.1\0", b"\0libsimg.so.1\0")
    [build_id] = re.findall(rb"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0(.{20})", content, re.DOTALL)
    made.write_bytes(content.replace(build_id, bytes(20)))  # files with one are shown as one
    return made


def of_another_user() -> Script:
    """A process of another user."""
    hostile = Script("libc.so.6")
    hostile.run("os.setresuid(65534, 0, 0)")  # it may open the same files
    if user_of(Path("/proc"), hostile.pid) == user_of(Path("/proc"), os.getpid()):
        hostile.end()
        pytest.skip("here all processes count to one user, of a login session or a container")
    return hostile


def map_both(other: Path) -> Script:
    """A process of another user that maps this driver and the one of the usual name."""
    hostile = of_another_user()
    hostile.run(f"other = ctypes.CDLL({str(other)!r}); lib = ctypes.CDLL({str(DRIVER)!r})")
    return hostile


def test_an_interposer_that_another_user_maps_alone(observed: Observed) -> None:
    """Nobody makes others' calls count twice: both are distinguished before the interposer is probed again."""
    with started(observed, Script()), Script("libc.so.6", preload=INTERPOSER) as job:
        job.run("lib = ctypes.CDLL(None); held = new(lib.cuMemAlloc_v2, size(1000))")
        until(lambda: recognised(observed) and known(observed, job), "recognised")
        before = observed.value(LAUNCHES, job.pid) or 0
        with of_another_user() as hostile:
            job.begin(
                "launch, out, end = lib.cuLaunchKernel, 0, time.monotonic() + 3\n"
                "while time.monotonic() < end: launch(None, 1, 1, 1, 1, 1, 1, 0, None, None, None); out += 1"
            )
            hostile.run(f"lib = ctypes.CDLL({str(INTERPOSER)!r})")
            until(lambda: str(INTERPOSER) in probed(observed, whole=True), "probed again")
            assert job.answer() == observed.value(LAUNCHES, job.pid) - before
            taken = calls(observed, job)["cuMemAlloc_v2"], observed.value(ALLOCATED, job.pid, memory="device")
            job.run("held = [new(lib.cuMemAlloc_v2, size(1000)) for n in range(23)]; lib.cuStreamSynchronize(None)")
            found = calls(observed, job)
            assert (23, 1) == (found["cuMemAlloc_v2"] - taken[0], found["cuStreamSynchronize"])
            assert 23_000 == observed.value(ALLOCATED, job.pid, memory="device") - taken[1]


def test_a_driver_that_another_user_maps_beside_one(observed: Observed, other: Path) -> None:
    """Nobody removes the probes of a driver that others use alone: not from a running job, and not from a later one."""
    take = "held = [new(lib.cuMemAlloc_v2, size(1000)) for n in range(150)]"
    with started(observed, Script(other)) as first:
        first.run(f"{LAUNCH.format(23)}\n{take}")
        with map_both(other) as hostile:
            until(lambda: observed.left_out(hostile.pid), "looked at")
            assert str(other) in observed.collector.probes.passed()
            hostile.run(f"new(other.cuMemAlloc_v2, size(7))\n{LAUNCH.format(31).replace('lib', 'other')}")
            with Script(other) as second:
                until(lambda: known(observed, second), "known")
                for job, made in ((first, 23), (second, 0)):
                    job.run(f"{LAUNCH.format(29)}\n{take}")
                    assert made + 29 == observed.value(LAUNCHES, job.pid)
                    bytes_taken = 150_000 * (2 if made else 1)
                    assert bytes_taken == observed.value(ALLOCATED, job.pid, memory="device")
                    assert bytes_taken == observed.value(USED, job.pid, memory="device")
                assert 1 == observed.value(SEEN, second.pid)
            assert observed.value(LAUNCHES, hostile.pid) is None  # what it shows holds for itself
            hostile.run(LAUNCH.format(19))
            assert 19 == observed.value(LAUNCHES, hostile.pid)


def test_a_driver_that_another_user_mapped_before(observed: Observed, other: Path) -> None:
    """The first job alone on such a driver is probed as soon as it is known, and is not seen whole; the next one is."""
    with started(observed, Script()), map_both(other) as hostile:
        until(lambda: recognised(observed, other), "recognised")
        for whole in (0, 1):
            with Script(other) as job:
                until(lambda: known(observed, job) and str(other) in probed(observed, whole=True), "known")
                job.run(f"{LAUNCH.format(29)}\nheld = new(lib.cuMemAlloc_v2, size(1000))")
                assert 29 == observed.value(LAUNCHES, job.pid)
                assert 1000 == observed.value(ALLOCATED, job.pid, memory="device")
                assert whole == observed.value(SEEN, job.pid)
        hostile.run(f"{LAUNCH.format(31).replace('lib', 'other')}\n{LAUNCH.format(19)}")
        assert 19 == observed.value(LAUNCHES, hostile.pid)


def test_a_job_whose_user_maps_both(observed: Observed, other: Path) -> None:
    """Bytes in use of a job are unknown once its user has shown in another process that the library passes calls on."""
    with started(observed, Script(other)) as alone, Script(other) as idle:
        alone.run("held = new(lib.cuMemAlloc_v2, size(1000))")
        until(lambda: known(observed, idle), "known")
        assert 1000 == observed.value(USED, alone.pid, memory="device")
        with started(observed, Script()) as both:
            both.run(f"other = ctypes.CDLL({str(other)!r})")
            until(lambda: recognised(observed, other), "recognised")
            alone.run("held = new(lib.cuMemAlloc_v2, size(1000))")
            assert observed.value(USED, alone.pid, memory="device") is None
            assert 0 == observed.value(SEEN, alone.pid)
            idle.run(f"lib = ctypes.CDLL({str(DRIVER)!r}); held = new(lib.cuMemAlloc_v2, size(777))")
            assert 777 == observed.value(USED, idle.pid, memory="device")  # it had called nothing where probes went


def test_the_driver_mapped_under_another_name(observed: Observed, tmp_path: Path) -> None:
    """A user who is the first to map the driver, by another name and beside a stub, does not end its probes."""
    driver, stub = tmp_path / "libcuda.so.1", BUILD / "cet/libcuda.so.1"
    shutil.copy(DRIVER, driver)
    (tmp_path / "libvgpu.so").hardlink_to(driver)
    with Script(tmp_path / "libvgpu.so") as first:
        until(lambda: known(observed, first), "known")
        first.run(f"stub = ctypes.CDLL({str(stub)!r})")
        until(lambda: str(stub) in probed(observed), "the stub probed")
        with Script(driver) as second:
            until(lambda: known(observed, second), "known")
            for job in (first, second):
                job.run(LAUNCH.format(23))
                assert 23 == observed.value(LAUNCHES, job.pid)
        assert {} == observed.collector.probes.passed()
