"""A training loop in Python that launches and allocates through the stand-in driver, for measurements of its speed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

STANDINS = Path(__file__).parents[1] / "tests" / "standins"
LAUNCHES, STEP_SECONDS = 25, 0.005
"""A step launches so often and allocates once: 5,000 launches and 200 allocations in a second."""
STEPS = 100
CALLED = ("LaunchKernel", "MemAlloc_v2", "MemFree_v2")
PROGRAM = """\
import ctypes, hashlib, statistics, sys, time

library, prefix, launches = ctypes.CDLL(sys.argv[1]), sys.argv[2], int(sys.argv[3])
launch, allocate, free = (getattr(library, prefix + name) for name in ("LaunchKernel", "MemAlloc_v2", "MemFree_v2"))
address, size, memory = ctypes.c_uint64(), ctypes.c_size_t(1 << 20), ctypes.byref
none = ctypes.c_void_p()


def kernel():
    launch(none, 1, 1, 1, 1, 1, 1, 0, none, none, none)


class Layer:
    def __init__(self, inner):
        self.inner = inner

    def forward(self):
        return self.inner.forward()


class Attention:
    def forward(self):
        begun = time.thread_time_ns()
        assert not allocate(memory(address), size)
        allocated = time.thread_time_ns()
        for _ in range(launches):
            kernel()
        times.append((allocated - begun, (time.thread_time_ns() - allocated) / launches))
        assert not free(address)


model = Attention()
for _ in range(12):
    model = Layer(model)
print(flush=True)
for line in sys.stdin:
    steps, own = map(int, line.split())
    work, times = bytes(own), []
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        hashlib.sha256(work)
        model.forward()
    took = (time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps
    print(*took, *map(statistics.median, zip(*times)), flush=True)
"""


class Took(NamedTuple):
    """Times of a step in seconds, wall and CPU; median CPU times of an allocation and of a launch in nanoseconds."""

    wall: float
    cpu: float
    allocation: float
    launch: float


Job = Callable[[int, int], Took]
"""Takes so many steps, each with so many bytes to hash."""


class Running(NamedTuple):
    take: Job
    pid: int


@contextmanager
def job(folder: Path, prefix: str) -> Iterator[Running]:
    """The loop, which calls the stand-in driver's functions by names with this prefix."""
    made, library, program = folder / f"{prefix}.o", folder / f"lib{prefix}.so", folder / "train.py"
    program.write_text(PROGRAM)
    names = [f"--redefine-sym=cu{name}={prefix}{name}" for name in CALLED]
    subprocess.run(["make", "-s", "-C", STANDINS], check=True)
    subprocess.run(["objcopy", *names, STANDINS / "build" / "libcuda.o", made], check=True)
    subprocess.run(["gcc", "-shared", f"-Wl,-soname,{library.name}", "-o", library, made, "-lpthread"], check=True)
    command = [sys.executable, "-S", program, library, prefix, str(LAUNCHES)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:
        assert process.stdin and process.stdout
        requests, answers = process.stdin, process.stdout
        answers.readline()

        def take(steps: int, own: int) -> Took:
            requests.write(f"{steps} {own}\n")
            return Took(*map(float, answers.readline().split()))

        try:
            yield Running(take, process.pid)
        finally:
            process.kill()


def own_work(take: Job) -> int:
    """Bytes to hash with which a step takes STEP_SECONDS."""
    trial = 1 << 20
    both = min(take(STEPS // 4, trial).cpu for _ in range(3))
    calls = min(take(STEPS // 4, 0).cpu for _ in range(3))
    return int((STEP_SECONDS - calls) / (both - calls) * trial)
