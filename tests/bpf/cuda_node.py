"""The CUDA collector on real processes with stand-in libraries, for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from exporter.bpf.targets import Targets
from exporter.collectors.cuda import FLAGS, Cuda
from exporter.governor.governor import Governor
from exporter.model import Distribution, Sample, Span
from exporter.nvml.gpus import Gpus
from exporter.resolve.process import ProcessTable
from exporter.stack_profiles.published import StackProfiles
from exporter.views.prometheus import name
from tests.nodes import make_node
from tests.support import PATIENCE, until

STANDINS = Path(__file__).parents[1] / "standins"
BUILD = STANDINS / "build"
WITHIN = PATIENCE
MIB = 1 << 20

Labels = frozenset[tuple[str, str]]


def build_standins() -> None:
    subprocess.run(["make", "-s", "-C", STANDINS], check=True)


class Observed:
    """A running collector, and questions to it."""

    def __init__(self, cuda: Cuda, targets: Targets, spans: list[Span]) -> None:
        self.cuda, self.targets, self.spans = cuda, targets, spans

    def samples(self) -> list[Sample]:
        return list(self.cuda.collect())

    def values(self, metric: str, pid: int | None = None, **labels: str) -> dict[Labels, Any]:
        """The values of a metric by the labels of its own, of samples that have these labels."""
        wanted = labels | ({} if pid is None else {"pid": str(pid)})
        found = [it for it in self.samples() if name(it.metric) == metric and wanted.items() <= it.labels.items()]
        own = [frozenset((key, value) for key, value in it.labels.items() if key in it.metric.labels) for it in found]
        return dict(zip(own, (it.value for it in found), strict=True))

    def value(self, metric: str, pid: int | None = None, **labels: str) -> Any:
        """The one value of a metric with these labels; None if there is none."""
        values = list(self.values(metric, pid, **labels).values())
        assert len(values) <= 1, f"{metric} {labels}: {values}"
        return values[0] if values else None

    def sums(self, *metrics: str) -> dict[str, dict[bool, int]]:
        """The sums of metrics over series with a pid (False) and over those that are folded (True)."""
        found = {metric: {False: 0, True: 0} for metric in metrics}
        for it in self.samples():
            if (metric := name(it.metric)) in found:
                value = sum(it.value.counts) if isinstance(it.value, Distribution) else int(it.value)
                found[metric]["overflow" in it.labels] += value
        return found

    def named(self, pid: int, program: str) -> bool:
        """Whether a process is known as one that runs this program."""
        labels, _ = self.cuda._ledger._known.get(pid, ({}, 0.0))
        return pid in self.cuda._ledger and labels.get("comm") == program

    def attached(self, pid: int, libraries: Collection[str]) -> bool:
        """Whether a process is known, and all probes are attached, those in these libraries among them."""
        attached = self.values("accel_exporter_probe_attached")
        found = {dict(labels)["library"] for labels in attached}
        return found.issuperset(libraries) and all(attached.values()) and pid in self.cuda._ledger._live

    @property
    def lost(self) -> dict[str, int]:
        """What the programs could not count, by map."""
        return {it: count for it, count in self.cuda._object.globals().items() if it.endswith("_lost") and count}

    def in_flight(self, pid: int, map: str = "in_flight") -> list[Any]:
        """Return the calls that threads of a process make now: FLIGHTS() of bpf/flight.h."""
        return [it for it in self.kernel(map, pid) if it.sp]

    def kernel(self, map: str, pid: int) -> list[Any]:
        """What a map holds of a process."""
        rows = self.cuda._object.maps[map].items()
        return [value for key, value in rows if getattr(key, "tgid", key) == pid]


@contextmanager
def observe(
    gpus: Gpus | None = None,
    layers: str = "both",
    governor: Governor | None = None,
    stack_profiles: StackProfiles | None = None,
    **settings: Any,
) -> Iterator[Observed]:
    """The collector with these settings (dashes as underscores), attached to what runs and what comes."""
    spans: list[Span] = []
    targets = Targets()
    defaults = {flag.name: flag.default for flag in FLAGS}
    chosen = {"layers": layers} | {key.replace("_", "-"): value for key, value in settings.items()}
    assert chosen.keys() <= defaults.keys()
    shared = {"gpus": gpus or Gpus(), "governor": governor or Governor(0)}
    shared["stack_profiles"] = stack_profiles or StackProfiles()
    cuda = Cuda(make_node(defaults | chosen, ProcessTable(), targets, spans.append, **shared))
    cuda.start()
    try:
        targets.start()
        try:
            assert targets.scanned.wait(WITHIN)
            yield Observed(cuda, targets, spans)
        finally:
            targets.close()
    finally:
        cuda.close()


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
    """The job, once it is attached to."""
    until(lambda: observed.attached(job.pid, job.libraries), "attached")
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
        """What the lines begun last give, at their end."""
        assert self.process.stdout
        answer = self.process.stdout.readline()
        assert answer, "the script ended"
        return json.loads(answer)

    def run(self, lines: str) -> Any:
        self.begin(lines)
        return self.answer()
