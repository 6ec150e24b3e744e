"""CPU time that the CUDA probes add to calls of the runtime in the calling thread, by the layers that are probed.

Three copies of the stand-in libraries, each with a process of its own: nothing is attached to the first, probes on the
driver's functions to the second, probes on both layers to the third. Rounds alternate between the processes, so that
all see the same noise. The stand-ins do next to nothing themselves, and `cudaX` calls `cuX` as NVIDIA's runtime does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from bench.cuda import STANDINS, points
from bench.result import Result
from exporter.bpf import object_path
from exporter.bpf.libbpf import Object
from exporter.bpf.uprobe import attach

ROUNDS, CALLS = 41, 1000
BRIEF = {"ROUNDS": 9}
PATTERNS = {"launch": "launch", "copy": "copy to the device", "wait": "wait", "memory": "allocation and its free"}
LAYERS: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "driver": ("libcuda.so.1",),
    "both": ("libcuda.so.1", "libcudart.so.12"),
}
PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
typedef struct { unsigned x, y, z; } dim3;
static int (*launch)(const void *, dim3, dim3, void **, size_t, void *);
static int (*copy)(void *, const void *, size_t, int, void *);
static int (*wait)(void *);
static int (*take)(void **, size_t);
static int (*give)(void *);
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
int main(void)
{
    char what[32], source[64];
    void *library = dlopen("libcudart.so.12", RTLD_NOW), *target, *memory;
    dim3 one = {1, 1, 1};
    long calls;
    if (!library || !(launch = dlsym(library, "cudaLaunchKernel")) || !(copy = dlsym(library, "cudaMemcpyAsync")) ||
        !(wait = dlsym(library, "cudaStreamSynchronize")) || !(take = dlsym(library, "cudaMalloc")) ||
        !(give = dlsym(library, "cudaFree")) || take(&target, 4096))
        return 1;
    while (scanf("%31s %ld", what, &calls) == 2) {
        double start = now();
        for (long i = 0; i < calls; i++) {
            if (!strcmp(what, "launch"))
                launch(0, one, one, 0, 0, 0);
            else if (!strcmp(what, "copy"))
                copy(target, source, sizeof(source), 1, 0);
            else if (!strcmp(what, "wait"))
                wait(0);
            else if (take(&memory, 512) || give(memory))
                return 1;
        }
        printf("%.1f\\n", (now() - start) / calls);
        fflush(stdout);
    }
    return 0;
}
"""


def run() -> list[Result]:
    """Measures in ten seconds; needs root, BPF and gcc."""
    subprocess.run(["make", "-s", "-C", STANDINS], check=True)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        program = Path(folder, "program")
        subprocess.run(["gcc", "-O2", "-x", "c", "-", "-o", program], input=PROGRAM, text=True, check=True)
        jobs = {
            name: stack.enter_context(_probed(program, Path(folder, name), which)) for name, which in LAYERS.items()
        }
        rounds = [
            {(name, what): _time(job, what) for what in PATTERNS for name, job in jobs.items()} for _ in range(ROUNDS)
        ]
    return [
        Result(
            f"{called} with {name} probed" if name != "both" else f"{called} with both layers probed",
            median(it[name, what] - it["none", what] for it in rounds),
            "ns",
            note=f"median of {ROUNDS} interleaved rounds of {CALLS}, less the same unprobed; CPU time of the thread",
        )
        for what, called in PATTERNS.items()
        for name in ("driver", "both")
    ]


@contextmanager
def _probed(program: Path, folder: Path, libraries: tuple[str, ...]) -> Iterator[subprocess.Popen[str]]:
    """The program on libraries of its own, these of them probed."""
    shutil.copytree(STANDINS / "build", folder)
    with ExitStack() as stack:
        loaded = stack.enter_context(Object(object_path("cuda")))
        for path in (folder / name for name in libraries):
            for (name, returns), where in sorted(points(loaded, path).items(), key=lambda program: not program[0][1]):
                stack.callback(attach(loaded.programs[name], path, where, returns).close)
        environment = os.environ | {"LD_LIBRARY_PATH": str(folder)}
        job = stack.enter_context(
            subprocess.Popen([program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        yield job
        assert job.stdin
        job.stdin.close()


def _time(job: subprocess.Popen[str], what: str) -> float:
    """Nanoseconds a call, as the job measures it."""
    assert job.stdin and job.stdout
    print(what, CALLS, file=job.stdin, flush=True)
    answer = job.stdout.readline()
    if not answer:
        raise RuntimeError(f"the job ended at {what}")
    return float(answer)
