"""Libraries put before the driver: each call counts once, in the driver, and no driver goes uncounted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

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
            until(lambda: second.pid in observed.collector.probes.present()[-1].users, "looked at")
            assert 1 == observed.value(SEEN, second.pid)  # the driver was probed when it was mapped


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
