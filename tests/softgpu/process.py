"""Processes that execute the lines that a test sends, such as calls of the soft driver and NVML through ctypes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from tests.softgpu.counts import Counts

HERE = Path(__file__).parent
_OF_USERS = ("CUDA_", "NVIDIA_VISIBLE_DEVICES", "PYTORCH_", "SOFTGPU_")
"""Beginnings of variables that choose or change the GPU of a program."""
RUNTIME = "13/libcudart.so.13"
_LOOP = (
    f"""
RUNTIME = {RUNTIME!r}"""
    + """
import ctypes as C, json, os, sys, threading, time
import pynvml as nvml
cu, MIB, GIB, u64, size, vp = C.CDLL("libcuda.so.1"), 1 << 20, 1 << 30, C.c_uint64, C.c_size_t, C.c_void_p
class Failed(Exception): pass
def ok(code):
    if code: raise Failed(code)
def new(kind, call, *rest):
    value = kind(); ok(call(C.byref(value), *rest)); return value
def runtime(): return C.CDLL(os.path.join(os.environ["LD_LIBRARY_PATH"], RUNTIME))
def context(gpu=0): ok(cu.cuInit(0)); return new(vp, cu.cuCtxCreate_v2, 0, gpu)
def allocate(many): return new(u64, cu.cuMemAlloc_v2, size(many))
def unused():
    free, total = size(), size(); ok(cu.cuMemGetInfo_v2(C.byref(free), C.byref(total))); return free.value
class Place(C.Structure):
    _fields_ = [("type", C.c_int), ("handles", C.c_int), ("at", C.c_int), ("id", C.c_int), ("security", vp),
                ("most", size), ("rest", C.c_ubyte * 56)]
def place(at, id=0, most=0): return C.byref(Place(1, 0, at, id, None, most))
def code(call, *arguments):
    try: call(*arguments)
    except Failed as failed: return failed.args[0]
    return 0
for line in open(0, "rb", buffering=0):  # what follows a line is left for a program that is executed by it
    out = None
    exec(json.loads(line))
    print(json.dumps(out), flush=True)
"""
)


def build(folder: Path) -> Path:
    """Compiles driver, NVML and the runtime of CUDA 13 into a folder of their own; returns it."""
    libraries = [folder / "libcuda.so.1", folder / "libnvidia-ml.so.1", folder / RUNTIME]
    subprocess.run(["make", "-s", "-C", HERE, f"BUILD={folder}", *map(str, libraries)], check=True)
    return folder


def inherited() -> dict[str, str]:
    """Return the variables of this process without those that users set for GPUs of their own."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OF_USERS)}


class Executor:
    """A context manager: a Python process that executes the lines that it is sent. `loop` is what it runs, `folder` is
    where the soft driver counts, `environment` is added to inherited().
    """

    def __init__(self, python: Path | str, loop: str, folder: Path | None, environment: Mapping[str, object]) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            [python, "-c", loop],
            env=inherited() | {name: str(value) for name, value in environment.items()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def begin(self, lines: str) -> None:
        """Like `run`, without waiting for the end."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(lines) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Return the value of `out` after the lines begun last."""
        assert self._process.stdout
        answer = self._process.stdout.readline()
        assert answer, "the process has ended; its error is above"
        return json.loads(answer)

    def run(self, lines: str) -> Any:
        """Executes lines; returns what they leave in `out`."""
        self.begin(lines)
        return self.answer()

    @property
    def counts(self) -> Counts:
        """Counts of the driver so far."""
        assert self.folder
        return Counts(self.folder, self.pid)

    def kill(self) -> None:
        """Ends it as `kill -9` does."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream
            stream.close()


class Process(Executor):
    """One that calls the soft driver and NVML. Variables of its environment are keywords."""

    def __init__(self, libraries: Path, folder: Path | None, **variables: object) -> None:
        counts = {"SOFTGPU_COUNTS": folder} if folder else {}
        super().__init__(sys.executable, _LOOP, folder, {"LD_LIBRARY_PATH": libraries, **counts, **variables})


Start = Callable[..., Process]
"""Starts a process with these variables."""
