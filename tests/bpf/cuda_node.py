"""The CUDA collector on real processes with stand-in libraries, for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from exporter.collectors.cuda import FLAGS, Cuda
from exporter.governor.governor import Governor
from exporter.nvml.gpus import Gpus
from exporter.stack_profiles.published import StackProfiles
from tests.bpf.observed import Observed, running
from tests.support import until
from tests.workers import STANDINS, standins, take_standins

BUILD = standins()
MIB = 1 << 20


def build_standins() -> None:
    subprocess.run(["make", "-s", "-C", STANDINS], check=True)
    take_standins()


def observe(
    gpus: Gpus | None = None,
    layers: str = "both",
    governor: Governor | None = None,
    stack_profiles: StackProfiles | None = None,
    **settings: Any,
) -> AbstractContextManager[Observed]:
    """The collector with these settings (dashes as underscores), attached to what runs and what comes."""
    shared = {"gpus": gpus or Gpus(), "governor": governor or Governor(0)}
    shared["stack_profiles"] = stack_profiles or StackProfiles()
    return running(Cuda, FLAGS, shared=shared, layers=layers, **settings)


class Job:
    """A process with the stand-ins that waits to be let go (--gate), and may wait again before it ends (--hold)."""

    def __init__(self, *arguments: str, libraries: Path = BUILD, preload: Path | str = "") -> None:
        self.process = subprocess.Popen(
            [BUILD / "workload", *arguments],
            env=os.environ | {"LD_LIBRARY_PATH": str(libraries), "LD_PRELOAD": str(preload)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        self.libraries = {str(libraries / name) for name in ("libcuda.so.1", "libcudart.so.12")}

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def report(self) -> Mapping[str, int]:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream
            stream.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


J = TypeVar("J", bound=Job)


def started(observed: Observed, job: J) -> J:
    """The job, once it is attached to; a process that starts from now on has a later tick of the clock (proc(5))."""
    until(lambda: observed.attached(job.pid, job.libraries), "attached")
    time.sleep(1 / os.sysconf("SC_CLK_TCK"))
    return job


class Script(Job):
    """A Python process that calls a library through ctypes; `run` executes lines in it and gives their `out`."""

    DRIVER = """
import ctypes, json, os, sys, threading, time
from ctypes import byref, c_size_t, c_uint64, c_void_p
def new(function, *arguments, check=0):  # what a call stores where its first argument points
    made = c_uint64()
    result = function(byref(made), *arguments)
    assert result == check, result
    return made
def size(n):
    return c_size_t(n)
for line in sys.stdin:
    out = None
    exec(json.loads(line))
    print(json.dumps(out), flush=True)
"""

    def __init__(
        self,
        library: str | Path = "libcuda.so.1",
        libraries: Path = BUILD,
        preload: Path | str = "",
        loader: Sequence[str | Path] = (),
    ) -> None:
        self.process = subprocess.Popen(
            [*loader, sys.executable, "-c", self.DRIVER],
            env=os.environ | {"LD_LIBRARY_PATH": str(libraries), "LD_PRELOAD": str(preload)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        self.libraries = {str(libraries / library)}
        self.run(f"lib = ctypes.CDLL({str(library)!r})")

    def begin(self, lines: str) -> None:
        """Like `run`, without waiting for the end."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(lines) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Return the result of the lines begun last, once they have ended."""
        assert self.process.stdout
        answer = self.process.stdout.readline()
        assert answer, "the script ended"
        return json.loads(answer)

    def run(self, lines: str) -> Any:
        self.begin(lines)
        return self.answer()
