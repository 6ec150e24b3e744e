"""Allocations, and copies with waits, without pause: what their probes take is bounded, and no count is wrong."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from exporter.bpf import process_links
from exporter.governor import files
from exporter.governor.governor import Governor
from tests.bpf.cuda_node import Script, observe
from tests.bpf.observed import Observed
from tests.bpf.working_job import Api, Job, background
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.evidence(feature="cost of probes", on="stand-in"),
]

BOUND, KEPT, BYTES = 0.01, 1 << 20, 4096
BEGIN = (
    "void *context; unsigned long kept, block; static char host[4096];"
    f"cuInit(0); cuCtxCreate_v2(&context, 0, 0); cuMemAlloc_v2(&kept, {KEPT});"
)
DECLARED = (
    "int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int), cuMemAlloc_v2(unsigned long *, unsigned long);"
    "int cuMemFree_v2(unsigned long), cuMemcpyHtoD_v2(unsigned long, const void *, unsigned long);"
    "int cuStreamSynchronize(void *);"
)
ALLOCATING = Api(
    "libcuda.so.1", DECLARED, BEGIN, f"cuMemAlloc_v2(&block, {BYTES}); cuMemFree_v2(block);", "(void)host;", at_once=10
)
COPYING = Api(
    "libcuda.so.1",
    DECLARED,
    BEGIN,
    f"cuMemcpyHtoD_v2(kept, host, {BYTES}); cuStreamSynchronize(0);",
    "(void)block;",
    at_once=10,
)


@contextmanager
def governed(api: Api, folder: Path) -> Iterator[tuple[Observed, Job, Job]]:
    """The collector under the bound, with prices, and two processes that begin to use one file then."""

    def attached(running: Job) -> Job:
        until(lambda: observed.attached(running.process.pid, {str(running.library)}), "attached")
        return running

    with Job(api, folder) as first, observe(governor=Governor(BOUND), layers="driver") as observed:
        attached(first)
        until(lambda: observed.value("accel_exporter_overhead_seconds_total") is not None, "prices")
        time.sleep(1 / os.sysconf("SC_CLK_TCK"))  # a process that starts from now on has a later tick of the clock
        with Job(api, folder) as busy, Job(api, folder) as polite:
            yield observed, attached(busy), attached(polite)


def level(observed: Observed, running: Job, symbol: str) -> Any:
    name = "accel_exporter_probe_throttle_level"
    return observed.value(name, symbol=symbol, library=str(running.library))


def calls(observed: Observed, pid: int, api: str) -> Any:
    return observed.value("gpu_cuda_api_calls_total", pid, api=api)


def memory(observed: Observed, pid: int) -> tuple[Any, ...]:
    """Bytes allocated, freed and in use of device memory, and whether a process was seen from its start."""
    names = ("allocations_bytes_total", "frees_bytes_total", "usage_bytes")
    found = {name: observed.values(f"gpu_cuda_memory_{name}", pid, memory="device") for name in names}
    freed = [value for key, value in found["frees_bytes_total"].items() if "implicit" not in dict(key)]
    first = [next(iter(found[name].values()), None) for name in ("allocations_bytes_total", "usage_bytes")]
    return first[0], next(iter(freed), None), first[1], observed.value("gpu_cuda_seen_from_start", pid)


def calm(observed: Observed, running: Job, symbol: str) -> None:
    """Wait until all calls are probed again, as the job does nothing."""

    def state() -> str:
        watched = [it for watch in observed.collector.watches for it in watch._files.values()]
        now = [(it.ladder.share, it.rates, it._step.__name__, it.due - it._clock()) for it in watched]
        return f"all calls are probed again: {now}"

    until(lambda: level(observed, running, symbol) == 0, state)


def throttle(observed: Observed, running: Job, symbol: str) -> None:
    """Call until calls are left out for some cycles."""
    for _ in range(60):
        if level(observed, running, symbol) == 1:
            break
        running.work(0.5)
    else:  # not asserted after the loop: without work it falls again
        pytest.fail("calls are not left out")
    running.work(3)


def test_a_job_that_only_allocates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of its calls are not probed, and what it has in use is not known any more: absent for the rest of its life.
    Of a process that uses the same file and allocates little every byte is counted, also of one that starts meanwhile.
    When the first one calms down all its calls are probed again."""
    if not process_links.supported():
        pytest.skip("this kernel cannot attach to one process: allocations are always probed")
    monkeypatch.setattr(files, "CYCLE_SECONDS", 0.5)
    with governed(ALLOCATING, tmp_path) as (observed, busy, polite):
        pid = busy.process.pid
        assert (KEPT, 0, KEPT, 1) == memory(observed, pid)
        with background(lambda: polite.work(0.2, pause_us=100_000)) as its:
            throttle(observed, busy, "cuMemAlloc_v2")
            seen, stretch = observed.value("accel_exporter_probe_hits_total", symbol="cuMemAlloc_v2"), busy.work(4)
            hits = observed.value("accel_exporter_probe_hits_total", symbol="cuMemAlloc_v2") - seen
            assert hits < 0.1 * stretch.calls
            assert (None, None, None, 0) == memory(observed, pid)
            with background(lambda: busy.work(0.2)), Script(libraries=tmp_path) as late:
                until(lambda: observed.attached(late.pid, {str(busy.library)}), "attached")
                sight = observed.collector._sight
                until(
                    lambda: sight.memory.has_links(late.pid) and late.pid not in sight.unknown, "it has its own links"
                )
                late.run("context = new(lib.cuCtxCreate_v2, 0, 0); block = new(lib.cuMemAlloc_v2, size(12345))")
                late.run("other = new(lib.cuMemAlloc_v2, size(100)); lib.cuMemFree_v2(other)")
                assert level(observed, busy, "cuMemAlloc_v2") == 1
                assert (12445, 100, 12345, 1) == memory(observed, late.pid)
            calm(observed, busy, "cuMemAlloc_v2")
        made = its[-1].total
        assert made == calls(observed, polite.process.pid, "cuMemFree_v2")
        assert (KEPT + made * BYTES, made * BYTES, KEPT, 1) == memory(observed, polite.process.pid)
        before = memory(observed, pid), calls(observed, pid, "cuMemAlloc_v2")
        assert before[0][2:] == (None, 0)
        little = busy.work(1, pause_us=20_000).calls
        (allocated, freed, used, whole), called = memory(observed, pid), calls(observed, pid, "cuMemAlloc_v2")
        assert (allocated - before[0][0], freed - before[0][1]) == (little * BYTES, little * BYTES)
        assert (called - before[1], used, whole) == (little, None, 0)
        assert not observed.values("gpu_cuda_memory_frees_unseen_total", pid)
        busy.end()
        until(lambda: pid not in observed.collector.ledger, "its end is known")
        implicit = observed.value("gpu_cuda_memory_frees_bytes_total", pid, memory="device", implicit="true")
        untracked = observed.value("gpu_cuda_memory_untracked_bytes_total", pid, memory="device")
        assert (implicit, untracked) == (0, allocated - freed), "it is not known what freed the rest"


def copies(observed: Observed, running: Job) -> tuple[Any, ...]:
    """Bytes copied, waits that have ended, calls that wait, bytes in use, and whether a process was seen from start."""
    pid = running.process.pid
    waits = observed.value("gpu_cuda_sync_wait_seconds", pid)
    return (
        observed.value("gpu_cuda_memory_copies_bytes_total", pid),
        waits and sum(waits.counts),
        calls(observed, pid, "cuStreamSynchronize"),
        *memory(observed, pid)[2:],
    )


def test_a_job_that_copies_and_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most calls of a process that does nothing else are not probed: their number, bytes and times are absent, its
    memory is not. Of a process that uses the same file and copies little each copy and wait is counted. When the first
    one calms down all its calls are probed again."""
    monkeypatch.setattr(files, "CYCLE_SECONDS", 0.5)
    with governed(COPYING, tmp_path) as (observed, busy, polite):
        with background(lambda: polite.work(0.2, pause_us=100_000)) as its:
            throttle(observed, busy, "cuMemcpyHtoD_v2")
            assert level(observed, busy, "cuMemAlloc_v2") == 0
            seen, stretch = observed.value("accel_exporter_probe_hits_total", symbol="cuMemcpyHtoD_v2"), busy.work(4)
            hits = observed.value("accel_exporter_probe_hits_total", symbol="cuMemcpyHtoD_v2") - seen
            assert hits < 0.1 * stretch.calls
            assert (None, None, None, KEPT, 0) == copies(observed, busy)
            calm(observed, busy, "cuMemcpyHtoD_v2")
        if process_links.supported():
            made = its[-1].total
            assert (made * BYTES, made, made, KEPT, 1) == copies(observed, polite)
        before, little = copies(observed, busy), busy.work(1, pause_us=20_000).calls
        after = copies(observed, busy)
        assert (little * BYTES, little, little) == tuple(b - a for a, b in zip(before[:3], after[:3], strict=True))
        assert (KEPT, 0) == after[3:]


def test_calls_of_a_job_that_works_are_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its CPU time, within what its calls take longer in gaps: other probes on this machine slow them down there,
    too, and windows by less than their price. Bytes and times are absent."""
    monkeypatch.setattr(files, "CYCLE_SECONDS", 0.5)
    with governed(COPYING, tmp_path) as (observed, busy, _):
        price = sum(observed.collector.probes.price(it) for it in ("cuMemcpyHtoD_v2", "cuStreamSynchronize"))
        work = 8 * price
        turns = round(work * 10_000 / min(busy.work(0.2, own=10_000).each for _ in range(3)))
        for _ in range(60):
            if level(observed, busy, "cuMemcpyHtoD_v2") == 1:
                break
            busy.work(0.5, own=turns)
        last = busy.work(8, own=turns)
        assert level(observed, busy, "cuMemcpyHtoD_v2") == 1
        name = "accel_exporter_probe_sampled_ratio"
        assert observed.value(name, symbol="cuMemcpyHtoD_v2", library=str(busy.library)) < 1
        copied, waits, called, *_ = copies(observed, busy)
        assert (None, None) == (copied, waits)
        assert called == pytest.approx(last.total, rel=0.2 + abs(last.each - work) / work)


@pytest.mark.parametrize("api", [ALLOCATING, COPYING], ids=["allocations", "copies"])
def test_a_kernel_without_links_for_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: Api) -> None:
    """Allocations are never left out: one process would take the memory in use from all. Copies are, of all processes
    that use the file, until the costly one calms down."""
    monkeypatch.setattr(files, "CYCLE_SECONDS", 0.5)
    monkeypatch.setattr(process_links, "supported", lambda: False)
    with governed(api, tmp_path) as (observed, busy, polite):
        assert level(observed, busy, "cuMemAlloc_v2") is None
        if api is COPYING:
            throttle(observed, busy, "cuMemcpyHtoD_v2")
            polite.work(0.2, pause_us=20_000)
            assert (None, None, KEPT, 0) == (*copies(observed, polite)[:2], *copies(observed, polite)[3:])
            calm(observed, busy, "cuMemcpyHtoD_v2")
            before, little = copies(observed, polite), polite.work(1, pause_us=20_000).calls
            after = copies(observed, polite)
            assert [little * BYTES, little] == [b - (a or 0) for a, b in zip(before[:2], after[:2], strict=True)]
        else:
            made = busy.work(4).total
            assert made + 1 == calls(observed, busy.process.pid, "cuMemAlloc_v2")
            assert (KEPT + made * BYTES, made * BYTES, KEPT, 1) == memory(observed, busy.process.pid)
