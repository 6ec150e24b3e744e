"""Cost of a hit to the probed thread: this exporter's placement against bpftrace counting calls of the same code.

Three copies of one library are loaded by one program: nothing is attached to the first, the exporter's probe to the
second, bpftrace to the third. Rounds alternate between the copies, so that all see the same noise.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.result import Result
from exporter.bpf import object_path
from exporter.bpf.calibrate import ENTRY, calibrate
from exporter.bpf.elf import Elf
from exporter.bpf.libbpf import Object
from exporter.bpf.placement import place
from exporter.bpf.uprobe import Point, attach

ROUNDS, CALLS = 41, 2000
SLOW_STEPPING = 5
"""Single-stepping counts as slow where it costs that many times an emulated hit."""

LIBRARY = """
__attribute__((noinline)) void other(long a) { __asm__ volatile("" : : "r"(a)); }
long target(long a, long b) { other(a); __asm__ volatile("" : : : "rbx"); return a + b; }
"""
PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>
typedef long function(long, long);
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
int main(int argc, char **argv)
{
    function *targets[8];
    for (int i = 1; i < argc; i++)
        if (!(targets[i] = (function *)dlsym(dlopen(argv[i], RTLD_NOW | RTLD_LOCAL), "target")))
            return 1;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 1; i < argc; i++) {
            double start = now();
            for (long call = 0; call < CALLS; call++)
                targets[i](call, 1);
            printf("%.1f ", (now() - start) / CALLS);
        }
        printf("\\n");
    }
    return 0;
}
"""
PROLOGUES = {"push": "-fcf-protection=none", "endbr64": "-fcf-protection=branch"}


def run() -> list[Result]:
    """Measures both prologues in about five seconds; needs root, BPF, gcc and bpftrace (RuntimeError without)."""
    if missing := [tool for tool in ("gcc", "bpftrace") if not shutil.which(tool)]:
        raise RuntimeError(f"hits cannot be compared without {' and '.join(missing)}: install them")
    costs = calibrate()
    slow = costs.stepped > SLOW_STEPPING * costs.emulated
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = _measure(Path(folder), "push")
        results = _results("push", ours, theirs, 1.1)
        ours, theirs = _measure(Path(folder), "endbr64")
        return results + _results("endbr64", ours, theirs, 0.2 if slow else None)


def _results(prologue: str, ours: float, theirs: float, budget: float | None) -> list[Result]:
    how = f"median of {ROUNDS} interleaved rounds of {CALLS} calls, less the same calls without a probe"
    return [
        Result(f"hit at a {prologue} prologue", ours, "ns", note=how),
        Result(f"bpftrace hit at a {prologue} prologue", theirs, "ns", note=how),
        Result(f"hit against bpftrace's at a {prologue} prologue", ours / theirs, "ratio", budget),
    ]


def _measure(folder: Path, prologue: str) -> tuple[float, float]:
    """Nanoseconds that one hit adds: ours, bpftrace's. Both must have counted every call."""
    bare = folder / f"{prologue}-bare.so"
    _compile(LIBRARY, bare, "-shared", "-fPIC", PROLOGUES[prologue])
    copies = [bare, *(shutil.copy(bare, folder / f"{prologue}-{name}.so") for name in ("ours", "bpftrace"))]
    program = folder / "program"
    _compile(PROGRAM, program, f"-DROUNDS={ROUNDS}", f"-DCALLS={CALLS}")
    with Elf.open(copies[1]) as elf:
        placement = place(elf, elf.functions(["target"])["target"])
    if placement.kind != "emulated" or placement.moved != (prologue == "endbr64"):
        raise RuntimeError(f"gcc made no {prologue} prologue here: {placement}")
    with Object(object_path("calibrate")) as loaded, _bpftrace(copies[2]) as counted:
        link = attach(loaded.programs["on_entry"], copies[1], [Point(placement.offset)])
        output = subprocess.run([program, *copies], capture_output=True, text=True, timeout=60, check=True).stdout
        link.close()
        counts = [loaded.maps["hits"].get(ENTRY), counted()]
    if counts != [ROUNDS * CALLS] * 2:
        raise RuntimeError(f"of {ROUNDS * CALLS} calls we and bpftrace counted {counts}")
    rounds = [[float(value) for value in line.split()] for line in output.splitlines()]
    costs = [(ours - without, theirs - without) for without, ours, theirs in rounds]
    return median(ours for ours, _ in costs), median(theirs for _, theirs in costs)


def _compile(source: str, output: Path, *flags: str) -> None:
    command = ["gcc", "-O2", *flags, "-x", "c", "-", "-o", output]
    subprocess.run(command, input=source, text=True, timeout=60, check=True)


@contextmanager
def _bpftrace(library: Path) -> Iterator[Callable[[], int]]:
    """bpftrace counting calls of `target`; the function it yields stops the count and returns it."""
    script = f'uprobe:{library}:target {{ @calls = count(); }} BEGIN {{ printf("ready\\n"); }}'
    command = ["bpftrace", "-e", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as tracer:
        assert tracer.stdout is not None
        printed = ""
        for line in tracer.stdout:
            printed += line
            if line == "ready\n":
                break
        else:
            raise RuntimeError(f"bpftrace ended: {printed}")

        def counted() -> int:
            tracer.send_signal(signal.SIGINT)
            output, _ = tracer.communicate(timeout=30)
            found = re.search(r"@calls: (\d+)", output)
            return int(found[1]) if found else 0

        try:
            yield counted
        finally:
            tracer.kill()
