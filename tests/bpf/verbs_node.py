"""The verbs collector on a real process with a provider that has no device, for tests."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from exporter.bpf.targets import Targets
from exporter.collectors.verbs import FLAGS, Verbs
from exporter.model import Span
from exporter.node import Node
from exporter.resolve.process import ProcessTable
from tests.bpf.cuda_node import BUILD, WITHIN, Observed, build_standins, eventually

__all__ = ["Job", "Observed", "attached", "build_standins", "eventually", "observe"]


@contextmanager
def observe(**settings: Any) -> Iterator[Observed]:
    """The collector with these settings (dashes as underscores); poll_cq is probed all the time unless they say."""
    spans: list[Span] = []
    targets = Targets()
    defaults = {flag.name: flag.default for flag in FLAGS} | {"poll-window-seconds": 1.0, "poll-interval-seconds": 1.0}
    chosen = {key.replace("_", "-"): value for key, value in settings.items()}
    assert chosen.keys() <= defaults.keys()
    verbs = Verbs(Node(defaults | chosen, ProcessTable(), targets, spans.append))
    verbs.start()
    try:
        targets.start()
        try:
            assert targets.scanned.wait(WITHIN)
            yield Observed(verbs, targets, spans)
        finally:
            targets.close()
    finally:
        verbs.close()


class Job:
    """A process that uses the stand-in provider, a step for each call (tests/standins/verbs_job.c)."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [BUILD / "verbs_job", BUILD / "libstandin-rdmav34.so"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def step(self, what: str, *numbers: int) -> int:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(" ".join([what, *map(str, numbers)]) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def post(
        self, qp: int, count: int, *, opcode: int = 0, segments: int = 1, size: int = 1, every: int = 1, same: int = 0
    ) -> int:
        """A chain of so many requests of so many segments of so many bytes, each `every`-th and the last signaled."""
        return self.step("post", qp, count, opcode, segments, size, every, same)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream
            stream.close()


def attached(observed: Observed, job: Job) -> Job:
    """The job, once its provider is probed: poll_cq too if it is its time."""
    provider = str(BUILD / "libstandin-rdmav34.so")

    def ready() -> bool:
        found = observed.values("accel_exporter_probe_attached", symbol="post_send", library=provider)
        return bool(found) and all(found.values()) and job.pid in observed.cuda._ledger

    eventually(ready, "attached")
    return job
