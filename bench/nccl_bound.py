"""Time that groups of messages take longer with the default collector: by CPU time of the thread that sends.

One program sends the same group on two copies of a stand-in in turn, of which the collector does not see the first one
(another file, which does not look like NCCL); another thread of the program is busy, as threads of a training job are.
The other work precedes each group of either copy: otherwise the first group alone would pay for the state of the
caches.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from bench.launches import STANDINS, collector
from bench.nccl_group import MESSAGES
from bench.result import Result
from exporter.collectors.nccl import FLAGS, Nccl
from exporter.governor import files
from exporter.governor.metrics import LEVEL

SECONDS, WITHIN, SETTLED = 30.0, 60.0, 10.0
CYCLE_SECONDS = files.CYCLE_SECONDS
BRIEF = {"SECONDS": 3.0, "SETTLED": 1.0, "CYCLE_SECONDS": 0.5}
BUDGET_NS = 30_000
PATTERNS = {"one after the other": 0, "with 2.5 ms of other work each": 2500}
BARE, FUNCTIONS = "bare", ("CommInitRank", "GroupStart", "GroupEnd", "Send", "Recv")
SOURCE = STANDINS / "libnccl.c"
PROGRAM = """
#include <pthread.h>
#include <stdio.h>
#include <time.h>
typedef struct { char internal[128]; } id_t_;
#define DECLARE(prefix) \\
    int prefix##CommInitRank(void **, int, id_t_, int), prefix##GroupStart(void), prefix##GroupEnd(void); \\
    int prefix##Send(const void *, unsigned long, int, int, void *, void *); \\
    int prefix##Recv(const void *, unsigned long, int, int, void *, void *);
#define GROUP(prefix, comm) \\
    static void prefix##Group(void) \\
    { \\
        prefix##GroupStart(); \\
        for (int peer = 0; peer < MESSAGES / 2; peer++) { \\
            prefix##Send(0, 1000, 7, peer, comm, 0); \\
            prefix##Recv(0, 1000, 7, peer, comm, 0); \\
        } \\
        prefix##GroupEnd(); \\
    }
DECLARE(nccl)
DECLARE(bare)
static void *comms[2];
GROUP(nccl, comms[0])
GROUP(bare, comms[1])
static double now(int clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
static void *busy(void *argument)
{
    for (volatile long turn = 0;; turn++)
        ;
    return argument;
}
static double after(long work, void (*group)(void))
{
    double begun = now(CLOCK_THREAD_CPUTIME_ID), until = begun + work * 1e3;
    while (work && begun < until)
        begun = now(CLOCK_THREAD_CPUTIME_ID);
    group();
    return now(CLOCK_THREAD_CPUTIME_ID) - begun;
}
int main(void)
{
    static id_t_ id;
    long ms, work;
    pthread_t thread;
    ncclCommInitRank(&comms[0], 64, id, 3);
    bareCommInitRank(&comms[1], 64, id, 3);
    pthread_create(&thread, 0, busy, 0);
    puts("");
    for (fflush(stdout); scanf("%ld %ld", &ms, &work) == 2; fflush(stdout)) {
        double end = now(CLOCK_MONOTONIC) + ms * 1e6, took = 0;
        long made = 0;
        for (; now(CLOCK_MONOTONIC) < end; made++)
            took += after(work, ncclGroup) - after(work, bareGroup);
        printf("%f\\n", took / made);
    }
    return 0;
}
"""


def run() -> list[Result]:
    """Takes two minutes; needs root, BPF, gcc and objcopy. Nothing else may probe NCCL on the machine."""
    return [_measure(what, work) for what, work in PATTERNS.items()]


def _measure(what: str, work: int) -> Result:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        groups = stack.enter_context(_job(Path(folder), work))
        stack.enter_context(patch.object(files, "CYCLE_SECONDS", CYCLE_SECONDS))
        observer = stack.enter_context(collector(Nccl, FLAGS))
        every = groups(1.0)
        end = time.monotonic() + WITHIN
        while not any(it.metric is LEVEL and it.value for it in observer.collect()):
            if time.monotonic() > end:
                raise RuntimeError("messages were never probed in windows")
            groups(1.0)
        groups(SETTLED)
        bounded = groups(SECONDS)
    note = f"mean of {SECONDS:.0f} s, less the same group without a probe; {every:,.0f} ns with a probe at each message"
    return Result(f"groups of {MESSAGES} messages {what}", bounded, "ns", BUDGET_NS, note)


@contextmanager
def _job(folder: Path, work: int) -> Iterator[Callable[[float], float]]:
    """Yield what sends groups for some seconds and returns how many ns one took longer than without probes."""
    subprocess.run(["make", "-s", "-C", STANDINS], check=True)
    seen = Path(shutil.copy(STANDINS / "build" / "libnccl.so.2", folder))
    made, bare, program = (folder / it for it in ("bare.o", "libbare.so", "groups"))
    _compile("-fPIC", "-c", "-o", made, SOURCE)
    renamed = [f"--redefine-sym=nccl{it}={BARE}{it}" for it in FUNCTIONS]
    subprocess.run(["objcopy", *renamed, made], check=True)
    (exports := folder / "exports").write_text(f"{{ global: {BARE}*; local: *; }};")
    _compile("-shared", f"-Wl,--version-script={exports}", f"-Wl,-soname,{bare.name}", "-o", bare, made)
    sources = ["-x", "c", "-", "-x", "none", seen, bare]
    _compile(f"-DMESSAGES={MESSAGES}", f"-Wl,-rpath,{folder}", "-o", program, *sources, "-lpthread", source=PROGRAM)
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:
        assert process.stdin and process.stdout
        requests, answers = process.stdin, process.stdout
        answers.readline()

        def groups(seconds: float) -> float:
            requests.write(f"{seconds * 1000:.0f} {work}\n")
            return float(answers.readline())

        try:
            yield groups
        finally:
            process.kill()


def _compile(*arguments: str | Path, source: str | None = None) -> None:
    subprocess.run(["gcc", "-O2", *arguments], input=source, text=True, check=True)
