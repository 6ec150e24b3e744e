"""Cost of profiles of stacks: the kernel's programs, a training loop with and without profiles, the exporter's memory.

Two processes take the same steps in turn: one calls the stand-in driver under its real names, the other one under names
that nothing probes, so that both see the same noise. py-spy samples the same loop at the same rate.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.exporter import child, running, scrape
from bench.result import Result
from bench.training import LAUNCHES, STEP_SECONDS, STEPS, Job, Running, Took, job, own_work
from exporter.bpf.libbpf import Program, run_time_statistics
from exporter.bpf.targets import Targets
from exporter.collectors.cuda import FLAGS, Cuda
from exporter.kmsg.kernel_log import KmsgSettings
from exporter.node import Node
from exporter.resolve.process import ProcessTable
from exporter.stacks.capture import Capture
from tests import py_spy
from tests.wheels import NotFetched

EVERY = 1000
RATE = round((LAUNCHES / EVERY + 1) / STEP_SECONDS)
PAIRS, ROUNDS, TURNS, TURN, LAUNCH_TURNS, HELD, WITHIN = 6, 3, 200, 5, 15, 10, 60.0
BRIEF = {"PAIRS": 2, "ROUNDS": 1, "TURNS": 20, "LAUNCH_TURNS": 2, "HELD": 2}
BARE, PROBED = "bare", "cu"
READER = "exporter.bpf.reader"
"""Module of the processes that read libraries when a program starts, with profiles and without, and end soon after."""


@dataclass
class _Measured:
    """Steps beside those of the bare job, and nanoseconds of the program at a launch."""

    steps: list[Took] = field(default_factory=list)
    launches: list[float] = field(default_factory=list)


def run() -> list[Result]:
    """Takes three minutes; needs root, BPF, gcc and objcopy. Nothing else may probe CUDA on the machine."""
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        bare, probed = (stack.enter_context(job(folder, prefix)) for prefix in (BARE, PROBED))
        own = own_work(bare.take)
        results = _programs(probed.take, own)
        counting, profiling = _Measured(), _Measured()
        for _ in range(ROUNDS):
            for measured, profiles in ((counting, False), (profiling, True)):
                with _collector(profiles) as collector:
                    _await_probes(collector, probed.take, own)
                    measured.steps += _compare(bare.take, probed.take, own)
                    measured.launches += _launches(collector.object.programs["on_launch"], probed.take, own)
        results += _losses(counting, profiling)
        results += _py_spy(folder, bare.take, probed, own)
        return [*results, *_memory(probed.take, own)]


@contextmanager
def _collector(profiles: bool) -> Iterator[Cuda]:
    """The collector, with the stacks of all allocations and of one launch in EVERY, or without."""
    targets = Targets()
    node = Node.new(
        *(ProcessTable(), targets, lambda span: None, Path("/proc"), Path("/sys"), KmsgSettings()),
        profiles_wanted=profiles,
    )
    settings = {flag.name: flag.default for flag in FLAGS} | {"profile-launches-every": EVERY, "profile-cpu-ratio": 1.0}
    collector = Cuda(node.with_settings(settings))
    collector.start()
    try:
        targets.start()
        try:
            targets.scanned.wait(WITHIN)
            yield collector
        finally:
            targets.close()
    finally:
        collector.close()


def _await_probes(collector: Cuda, take: Job, own: int) -> None:
    """Take steps until calls are counted, and their stacks taken if they are to be. Raises RuntimeError."""
    end = time.monotonic() + WITHIN
    while time.monotonic() < end:
        take(STEPS // 10, own)
        counted = any(it.metric.name == "gpu.cuda.memory.allocations" for it in collector.collect())
        capture = collector.profiling.capture if collector.profiling else None
        if counted and (capture is None or capture.ledger.allocations()):
            return
    raise RuntimeError("the job's calls were not seen")


def _programs(take: Job, own: int) -> list[Result]:
    """Measure the run time of the BPF program at an allocation, and the CPU time of the unwinding child per stack."""
    with _collector(True) as collector:
        _await_probes(collector, take, own)
        assert collector.profiling
        capture = collector.profiling.capture
        capture.flush(WITHIN)
        program, dropped, began = capture.object.programs["on_allocation"], capture.dropped(), _unwinding(capture)
        statistics = run_time_statistics()
        spent, alone = ([_spent(program, take, TURN, work) for _ in range(TURNS)] for work in (own, 1))
        statistics.close()
        capture.flush(WITHIN)
        unwinding, unwound = (now - then for now, then in zip(_unwinding(capture), began, strict=True))
        lost = sum(capture.dropped().values()) - sum(dropped.values())
    how = f"by the kernel's clock, median of {TURNS} turns of {TURN} steps; {lost} stacks were dropped"
    note = f"CPU of the children, mean of {unwound:.0f}"
    return [
        Result("program run at an allocation, its stack copied", median(spent) / 1000, "µs", 5, how),
        Result("the same with no other work between", median(alone) / 1000, "µs", None, "its memory is in caches"),
        Result("unwinding a stack", unwinding / unwound * 1e6, "µs", None, note),
    ]


def _launches(program: Program, take: Job, own: int) -> list[float]:
    """Nanoseconds of the program at a launch, with what takes a stack at one in EVERY: means of so many launches."""
    statistics = run_time_statistics()
    try:
        return [_spent(program, take, EVERY // LAUNCHES, own) for _ in range(LAUNCH_TURNS)]
    finally:
        statistics.close()


def _spent(program: Program, take: Job, steps: int, own: int) -> float:
    """Nanoseconds of a run of the program, mean of these steps."""
    before = program.stats()
    take(steps, own)
    nanoseconds, runs = (now - then for now, then in zip(program.stats(), before, strict=True))
    return nanoseconds / runs


def _unwinding(capture: Capture) -> tuple[float, int]:
    """Processor time of the children in seconds, and the stacks that they have unwound."""
    return capture._worker.seconds(), capture._worker.unwound


def _compare(bare: Job, other: Job, own: int) -> list[Took]:
    """The steps of the other job against those of the bare one: ratios, and nanoseconds more."""
    pairs = [(bare(STEPS, own), other(STEPS, own)) for _ in range(PAIRS)]
    return [Took(b.wall / a.wall, b.cpu / a.cpu, b.allocation - a.allocation, b.launch - a.launch) for a, b in pairs]


def _losses(counting: _Measured, profiling: _Measured) -> list[Result]:
    """Return the cost of profiles to the job in addition to the cost of counting."""
    more = [
        [median(it[field] for it in found.steps) for found in (counting, profiling)]
        for field in range(len(Took._fields))
    ]
    (_, wall), cpu, allocation, launch = more
    stack = (allocation[1] - allocation[0]) / 1000
    counted, sampled = median(counting.launches), median(profiling.launches)
    how = (
        f"by the kernel's clock, medians of {len(profiling.launches)} turns of {EVERY:,} launches; "
        f"{counted:.0f} ns without profiles"
    )
    noisy = f"CPU time, median of {len(profiling.steps)} interleaved pairs of {STEPS} steps"
    loop = "CPU time beside the same loop without probes; {:.2f} % more with calls counted"
    return [
        Result(f"a launch, one in {EVERY:,} with its stack", sampled - counted, "ns more", 20, how),
        Result("the same in the job, without the stacks", launch[1] - launch[0], "ns more", None, noisy),
        Result("an allocation with its stack in the job", stack, "µs more", None, noisy),
        Result("a training loop", 100 * (cpu[1] - cpu[0]), "% more", 0.5, loop.format(100 * (cpu[0] - 1))),
        Result("the same by the clock", 100 * (wall - 1), "% more", None, "beside the loop without probes"),
    ]


def _py_spy(folder: Path, bare: Job, sampled: Running, own: int) -> list[Result]:
    """Measure the cost of py-spy to the loop at the same rate of stacks; no results where its wheel is unavailable."""
    try:
        program = py_spy.fetched()
    except NotFetched as error:
        print(f"bench: not compared with py-spy: {error}", file=sys.stderr)
        return []
    output = folder / "py-spy"
    command = [program, "record", "--native", "--idle", f"--pid={sampled.pid}", f"--rate={RATE}"]
    command += ["--duration=600", "--format=raw", f"--output={output}"]
    quiet = subprocess.DEVNULL
    with child(command, stdin=quiet, stdout=quiet, stderr=quiet) as sampler:
        end = time.monotonic() + WITHIN
        while Path(f"/proc/{sampled.pid}/status").read_text().partition("TracerPid:\t")[2][:1] == "0":
            if sampler.poll() is not None or time.monotonic() > end:
                raise RuntimeError("py-spy does not sample")
        before, began = sum(sampler.cpu_times()[:2]), time.monotonic()
        found = _compare(bare, sampled.take, own)
        seconds = time.monotonic() - began
        share = (sum(sampler.cpu_times()[:2]) - before) / seconds
        sampler.send_signal(signal.SIGINT)
        sampler.wait(WITHIN)
    taken = sum(int(line.rpartition(" ")[2]) for line in output.read_text().splitlines()) / seconds
    wall = median(it.wall for it in found) - 1
    note = f"record --native --rate={RATE}, which stops the process; {taken:.0f} samples in a second were taken"
    return [
        Result("the same with py-spy, by the clock", 100 * wall, "% more", None, note),
        Result("CPU of py-spy", 100 * share, "% of a core", None, "the same"),
    ]


def _memory(take: Job, own: int) -> list[Result]:
    """Measure the memory of the exporter and its children after the same work, with profiles and without."""
    held = []
    for flags in ((), ("--web.enable-profiles", f"--collector.cuda.profile-launches-every={EVERY}")):
        with running(*flags) as (port, exporter):
            end = time.monotonic() + WITHIN
            while b"gpu_cuda_memory_allocations_bytes_total{" not in scrape(port):
                if time.monotonic() > end:
                    raise RuntimeError("the job's calls were not seen")
                take(STEPS // 10, own)
            take(HELD * STEPS, own)
            if flags:
                scrape(port, "/debug/pprof/gpu_alloc")
            scrape(port)
            children = [it for it in exporter.children(recursive=True) if READER not in it.cmdline()]
            held.append(sum(it.memory_full_info().pss for it in (exporter, *children)))
    grown = (held[1] - held[0]) / 1e6
    note = f"proportional set size without those that read libraries, {held[1] / 1e6:.0f} against {held[0] / 1e6:.0f}"
    return [Result("memory of the exporter and its children, more with profiles", grown, "MB", 40, note)]
