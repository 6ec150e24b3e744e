"""Speed of a job that only launches, allocates, copies and waits, or calls collectives, within the bound on overhead:
by CPU time, beside the same job without probes.

Two processes run the same loop in turn: one calls a stand-in under its real names, the other one under names that
nothing probes, so that both see the same noise. The two loops lie at different addresses and are not equally fast
without probes: that difference is subtracted.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar
from unittest.mock import patch

from bench.result import Result
from exporter.bpf.targets import Targets
from exporter.collectors.cuda import FLAGS as CUDA_FLAGS
from exporter.collectors.cuda import Cuda
from exporter.collectors.nccl import FLAGS as NCCL_FLAGS
from exporter.collectors.nccl import Nccl
from exporter.governor import files
from exporter.governor.metrics import LEVEL
from exporter.kmsg.kernel_log import KmsgSettings
from exporter.node import Node
from exporter.options import Flag
from exporter.probe_collector import ProbeCollector
from exporter.resolve.process import ProcessTable

STANDINS = Path(__file__).parents[1] / "tests" / "standins"
BARE = "bare_"
"""Begins the names that nothing probes."""
BOUND, ROUNDS, SECONDS, WITHIN, SETTLED = 0.01, 9, 0.5, 60.0, 10.0
CYCLE_SECONDS = files.CYCLE_SECONDS
BRIEF = {"ROUNDS": 3, "SECONDS": 0.25, "SETTLED": 1.0, "CYCLE_SECONDS": 0.5}
PROGRAM = """
#include <stdio.h>
#include <time.h>
DECLARATIONS
static long now(int clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000 + t.tv_nsec;
}
int main(void)
{
    long ms, own;
    BEGIN
    puts("");
    for (fflush(stdout); scanf("%ld %ld", &ms, &own) == 2; fflush(stdout)) {
        long begun = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID), made = 0;
        for (; now(CLOCK_MONOTONIC) < begun + ms * 1000000; made += 100)
            for (int i = 0; i < 100; i++) {
                for (volatile long turn = 0; turn < own; turn++)
                    ;
                CALLS
            }
        printf("%f\\n", (double)(now(CLOCK_PROCESS_CPUTIME_ID) - cpu) / made);
    }
    return 0;
}
"""


@dataclass(frozen=True)
class Api:
    """A stand-in: C for a job that uses it, its object file, and the collector that probes it."""

    name: str
    """Pattern of the names of its functions."""
    declarations: str
    begin: str
    made: Callable[[Path], Path]
    """Returns the object file, which may be made in this folder."""
    kind: Callable[[Node], ProbeCollector[Any]]
    flags: Sequence[Flag]


def _nccl(folder: Path) -> Path:
    made = folder / "libnccl.o"
    subprocess.run(["gcc", "-O2", "-fPIC", "-c", "-o", made, STANDINS / "libnccl.c"], check=True)
    return made


CUDA = Api(
    r"cu\w+",
    """
int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int);
int cuLaunchKernel(const void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                   void **);
int cuMemAlloc_v2(unsigned long *, unsigned long), cuMemFree_v2(unsigned long);
int cuMemcpyHtoD_v2(unsigned long, const void *, unsigned long), cuStreamSynchronize(void *);
""",
    """
    static char host[64];
    void *context;
    unsigned long block, kept;
    cuInit(0);
    cuCtxCreate_v2(&context, 0, 0);
    cuMemAlloc_v2(&kept, 4096);
    (void)host, (void)block;
""",
    lambda folder: STANDINS / "build" / "libcuda.o",
    Cuda,
    CUDA_FLAGS,
)
NCCL = Api(
    r"nccl\w+",
    """
typedef struct { char internal[128]; } id_t_;
int ncclCommInitRank(void **, int, id_t_, int), ncclGroupStart(void), ncclGroupEnd(void);
int ncclAllReduce(const void *, void *, unsigned long, int, int, void *, void *);
""",
    """
    static id_t_ id;
    void *comm;
    ncclCommInitRank(&comm, 2, id, 0);
""",
    _nccl,
    Nccl,
    NCCL_FLAGS,
)
LAUNCH = "cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);"
ALLOCATE = "cuMemAlloc_v2(&block, 4096); cuMemFree_v2(block);"
COPY = "cuMemcpyHtoD_v2(kept, host, 64); cuStreamSynchronize(0);"
REDUCE = "ncclAllReduce(0, 0, 1000, 7, 0, comm, 0);"
GROUP = f"ncclGroupStart(); {REDUCE} ncclGroupEnd();"
PATTERNS = {
    "an empty loop of launches": (CUDA, LAUNCH, 0.0),
    "launches with 2 µs of other work": (CUDA, LAUNCH, 2000.0),
    "an empty loop of allocations": (CUDA, ALLOCATE, 0.0),
    "an empty loop of copies and waits": (CUDA, COPY, 0.0),
    "an empty loop of collectives": (NCCL, REDUCE, 0.0),
    "an empty loop of groups of a collective": (NCCL, GROUP, 0.0),
    "collectives with 5 µs of other work": (NCCL, REDUCE, 5000.0),
}
"""The stand-in, its calls, and nanoseconds of work before each turn."""
TRIED = 10_000
"""Turns of a loop that is timed."""
BUDGET = 1.05
Observer = TypeVar("Observer", bound=ProbeCollector[Any])


def run() -> list[Result]:
    """Takes seven minutes; needs root, BPF, gcc and objcopy. Nothing else may probe CUDA or NCCL on the machine."""
    return [_measure(what, api, calls, work) for what, (api, calls, work) in PATTERNS.items()]


def _measure(what: str, api: Api, calls: str, work: float) -> Result:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        bare, probed = (stack.enter_context(_job(Path(folder), api, calls, prefix)) for prefix in (BARE, ""))
        turns = round(work * TRIED / bare(TRIED))
        unlike = median(probed(turns) / bare(turns) for _ in range(ROUNDS))
        stack.enter_context(patch.object(files, "CYCLE_SECONDS", CYCLE_SECONDS))
        observer = stack.enter_context(collector(api.kind, api.flags))
        every = probed(turns)
        _throttle(observer, lambda: probed(turns))
        pairs = [(bare(turns), probed(turns)) for _ in range(ROUNDS)]
    each = median(it for it, _ in pairs)
    note = f"median of {ROUNDS} interleaved rounds by CPU time; a turn takes {each:.1f} ns in the job without probes"
    note += f", {unlike:.3f} of that in the other one before they come, {every:.1f} ns with one at each call"
    ratio = median(it / bare for bare, it in pairs) / unlike
    return Result(f"{what}, within the bound", ratio, "ratio", BUDGET, note)


def _throttle(observer: ProbeCollector[Any], work: Callable[[], float]) -> None:
    """Work until calls are in windows, and for some cycles more. Raises RuntimeError if they never are."""
    end = time.monotonic() + WITHIN
    while not any(it.metric is LEVEL and it.value for it in observer.collect()):
        if time.monotonic() > end:
            raise RuntimeError("calls were never probed in windows")
        work()
    end = time.monotonic() + SETTLED
    while time.monotonic() < end:
        work()


@contextmanager
def _job(folder: Path, api: Api, calls: str, prefix: str) -> Iterator[Callable[[int], float]]:
    """A process that makes these calls, by names with this prefix; yields what returns the ns of a turn, after so many
    turns of a loop each.
    """
    name = f"{prefix}job"
    made, library, program = folder / f"{name}.o", folder / f"lib{name}.so", folder / name
    symbols = re.findall(rf"\b{api.name}(?=\()", calls)
    subprocess.run(["make", "-s", "-C", STANDINS], check=True)
    renamed = [f"--redefine-sym={symbol}={prefix}{symbol}" for symbol in symbols if prefix]
    subprocess.run(["objcopy", *renamed, api.made(folder), made], check=True)
    text = PROGRAM.replace("CALLS", calls).replace("DECLARATIONS", api.declarations).replace("BEGIN", api.begin)
    for symbol in symbols:
        text = re.sub(rf"\b{symbol}\b", f"{prefix}{symbol}", text)
    subprocess.run(["gcc", "-shared", f"-Wl,-soname,{library.name}", "-o", library, made, "-lpthread"], check=True)
    flags = ["-O2", "-x", "c", "-", "-x", "none"]
    subprocess.run(["gcc", *flags, library, "-o", program], input=text, text=True, check=True)
    pipe = subprocess.PIPE
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder)}
    with subprocess.Popen(program, env=environment, stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:
        assert process.stdin and process.stdout
        requests, answers = process.stdin, process.stdout
        answers.readline()

        def run(turns: int) -> float:
            requests.write(f"{SECONDS * 1000:.0f} {turns}\n")
            return float(answers.readline())

        try:
            yield run
        finally:
            process.kill()


@contextmanager
def collector(kind: Callable[[Node], Observer], flags: Sequence[Flag]) -> Iterator[Observer]:
    """Run a collector with its default settings under the default bound; yield it once libraries have been found."""
    targets = Targets()
    node = Node.new(
        ProcessTable(), targets, lambda span: None, Path("/proc"), Path("/sys"), KmsgSettings(), max_ratio=BOUND
    )
    observer = kind(node.with_settings({flag.name: flag.default for flag in flags}))
    observer.start()
    try:
        targets.start()
        try:
            targets.scanned.wait(WITHIN)
            yield observer
        finally:
            targets.close()
    finally:
        observer.close()
