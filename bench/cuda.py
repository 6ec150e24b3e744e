"""Run time of the CUDA programs by the kernel's statistics: a launch, a call with its return, a copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.result import Result
from exporter.bpf import object_path
from exporter.bpf.elf import Elf
from exporter.bpf.libbpf import Object, Program, run_time_statistics
from exporter.bpf.placement import place
from exporter.bpf.uprobe import Point, attach, close_all
from exporter.cuda.functions import FUNCTIONS

STANDINS = Path(__file__).parents[1] / "tests" / "standins"
LAUNCHES, CALLS = 100_000, 4000
LAUNCH_BUDGET_NS = 150
FULL_BUDGET = 1.3
_ON_TWO = """
import ctypes, sys
driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
for device in (0, 1):
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
print(flush=True)
sys.stdin.read()
"""


def run() -> list[Result]:
    """Runs a workload on stand-in libraries of its own; needs root, BPF and gcc. Takes two seconds."""
    subprocess.run(["make", "-s", "-C", STANDINS], check=True)
    with tempfile.TemporaryDirectory() as folder, Object(object_path("cuda")) as loaded:
        shutil.copytree(STANDINS / "build", folder, dirs_exist_ok=True)
        loaded.maps["returning"].set(0, 1)
        links = [
            attach(loaded.programs[program], path, where, returns)
            for path in (Path(folder, "libcuda.so.1"), Path(folder, "libcudart.so.12"))
            for (program, returns), where in points(loaded, path).items()
        ]
        try:
            statistics = run_time_statistics()
            _work(folder, 2, "--launches", str(LAUNCHES))
            _work(folder, 1, "--allocations", str(CALLS), "--frees", str(CALLS), "--copies", str(CALLS))
            results = [_result(loaded.programs[name], what, budget) for name, (what, budget) in PROGRAMS.items()]
            with _process_on_two_devices(folder):
                results.append(_while_some_use_two(loaded, folder))
            statistics.close()
        finally:
            close_all(links)
        return [*results, _when_full(folder)]


PROGRAMS: dict[str, tuple[str, float | None]] = {
    "on_launch": ("program run at a launch", LAUNCH_BUDGET_NS),
    "on_call": ("program run at any other call", None),
    "on_enter": ("program run before an allocation, copy or wait", None),
    "on_free": ("program run before a free", None),
    "on_return": ("program run at the return of these", None),
}


def points(loaded: Object, path: Path) -> dict[tuple[str, bool], list[Point]]:
    """Return the points of each program in a library with return probes allowed, by name and whether at the return."""
    wanted: dict[tuple[str, bool], list[Point]] = {}
    with Elf.open(path) as elf:
        found = elf.functions([function.name for function in FUNCTIONS])
        for api, function in enumerate(FUNCTIONS, 1):
            if function.name in found:
                offset = place(elf, found[function.name]).offset
                for hook in function.hooks(loaded.types, api, all_errors=False):
                    wanted.setdefault((hook.program, hook.returns), []).append(Point(offset, hook.cookie))
    return wanted


def _work(folder: str, threads: int, *arguments: str) -> None:
    command = [f"{folder}/workload", "--threads", str(threads), *arguments]
    environment = os.environ | {"LD_LIBRARY_PATH": folder}
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, timeout=60, check=True)


@contextmanager
def _process_on_two_devices(folder: str) -> Iterator[None]:
    """From the first such process on, a launch of any process looks up which device it is on."""
    environment = os.environ | {"LD_LIBRARY_PATH": folder}
    command = [sys.executable, "-c", _ON_TWO]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        try:
            if not process.stdout.readline():
                raise RuntimeError("the process on two devices did not start")
            yield
        finally:
            process.stdin.close()


def _while_some_use_two(loaded: Object, folder: str) -> Result:
    if not loaded.globals()["with_several"]:
        raise RuntimeError("a process on two devices was not seen")
    program = loaded.programs["on_launch"]
    before = program.stats()
    _work(folder, 2, "--launches", str(LAUNCHES))
    nanoseconds, runs = (now - then for now, then in zip(program.stats(), before, strict=True))
    what = "the same while a process uses two devices"
    return Result(what, nanoseconds / runs, "ns", LAUNCH_BUDGET_NS, f"mean of {runs} runs of {program.name}")


def _when_full(folder: str) -> Result:
    """Launches of a process that finds no room for its row, against those of the one that has it."""
    path = Path(folder, "libcuda.so.1")
    with Object(object_path("cuda"), entries={"launches": 1}) as loaded:
        program = loaded.programs["on_launch"]
        link = attach(program, path, points(loaded, path)[program.name, False], False)
        statistics = run_time_statistics()
        try:
            spent = []
            for _ in range(2):  # the row of the first stays
                before = program.stats()
                _work(folder, 2, "--layer", "driver", "--launches", str(LAUNCHES))
                nanoseconds, runs = (now - then for now, then in zip(program.stats(), before, strict=True))
                spent.append(nanoseconds / runs)
        finally:
            statistics.close()
            link.close()
        if loaded.globals()["launches_lost"] != 2 * LAUNCHES:
            raise RuntimeError("the table of launches was not full")
    note = f"{spent[1]:.0f} ns against {spent[0]:.0f} ns, mean of {2 * LAUNCHES} runs each"
    return Result("program run at a launch without room for a row", spent[1] / spent[0], "ratio", FULL_BUDGET, note)


def _result(program: Program, what: str, budget: float | None) -> Result:
    nanoseconds, runs = program.stats()
    if not runs:
        raise RuntimeError(f"{program.name} did not run")
    return Result(
        what, nanoseconds / runs, "ns", budget, f"mean of {runs} runs of {program.name}, by the kernel's clock"
    )
