"""The verbs collector on a real process with a provider that has no device, for tests."""

from __future__ import annotations

import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from exporter.collectors.verbs import FLAGS, Verbs
from exporter.governor.governor import Governor
from tests.bpf.cuda_node import BUILD, build_standins
from tests.bpf.observed import Observed, running
from tests.support import until

__all__ = ["BUILD", "RC", "UD", "Job", "Observed", "attached", "build_standins", "observe", "returned"]


RC, UD = 2, 4

PROVIDER = BUILD / "libstandin-rdmav34.so"


def observe(governor: Governor | None = None, **settings: Any) -> AbstractContextManager[Observed]:
    """The collector with these settings (dashes as underscores); poll_cq is probed all the time by default."""
    always = {"poll_window_seconds": 1.0, "poll_interval_seconds": 1.0}
    return running(Verbs, FLAGS, shared={"governor": governor} if governor else {}, **always | settings)


class Job:
    """A process that uses the stand-in provider, a step for each call (tests/standins/verbs_job.c).

    `provider` is None for a program that contains one. `nccl` is a library that its step `reduce` calls.
    """

    def __init__(
        self, program: Path = BUILD / "verbs_job", provider: Path | None = PROVIDER, nccl: Path | None = None
    ) -> None:
        self.process = subprocess.Popen(
            [program, *filter(None, (provider, nccl))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def step(self, what: str, *numbers: int) -> int:
        self.begin(what, *numbers)
        return self.result()

    def begin(self, what: str, *numbers: int) -> None:
        """Begins a step; `result` waits for its end."""
        assert self.process.stdin
        self.process.stdin.write(" ".join([what, *map(str, numbers)]) + "\n")
        self.process.stdin.flush()

    def result(self) -> int:
        assert self.process.stdout
        return int(self.process.stdout.readline())

    def post(
        self, qp: int, count: int, *, opcode: int = 0, segments: int = 1, size: int = 1, every: int = 1, same: int = 0
    ) -> int:
        """A chain of so many requests of so many segments of so many bytes, each `every`-th and the last signaled."""
        return self.step("post", qp, count, opcode, segments, size, every, same)

    def build(
        self, qp: int, count: int, *, opcode: int = 0, segments: int = 1, size: int = 1, every: int = 1, abort: int = 0
    ) -> int:
        """The same between ibv_wr_start and ibv_wr_complete; fewer than 0 segments are inline data."""
        return self.step("build", qp, count, opcode, segments, size, every, abort)

    def create(self, qp: int = 8, *, all_signaled: bool = False, kind: int = RC, extended: int = 0) -> int:
        """A queue pair that libibverbs makes, in a place from 8 to 15, or create_qp_ex of the provider (2: for the
        extended calls); its number.
        """
        return self.step("create", qp, int(all_signaled), kind, int(extended))

    def connect(
        self, qp: int = 8, *, peer: int = 5, gid: int = 2, own: int = 1, sends_from: int = 0, receives_from: int = 0
    ) -> int:
        """From RESET to RTS, with an MTU of 1024 bytes; the peer's GID is fe80::<gid>, the own one has place `own`."""
        return self.step("connect", qp, 3, peer, gid, own, sends_from, receives_from)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream
            stream.close()


def calls_of(observed: Observed, pid: int) -> list[bool]:
    """Return whether ibv_create_qp is probed, for each file of a process that has the function."""
    probes = observed.collector.probes.present()
    states = [it for probed in probes if pid in probed.users for it in probed.hooked.states()]
    return [it.attached for it in states if it.symbol == "ibv_create_qp"]


def returned(observed: Observed, job: Job) -> bool:
    """Wake the job in its delayed calls, and return whether these have ended."""
    job.process.send_signal(signal.SIGUSR1)
    return not observed.in_flight(job.pid, "post_flights")


def attached(observed: Observed, job: Job) -> Job:
    """The job, once its provider is probed: poll_cq too if it is its time."""
    provider, settings = str(PROVIDER), observed.collector.node.settings
    always = settings["poll-window-seconds"] == settings["poll-interval-seconds"]

    def ready() -> bool:
        own = observed.values("accel_exporter_probe_attached", library=provider)
        calls = calls_of(observed, job.pid)
        probed = [it for it in observed.collector.windows.files.values() if it.library.path == provider]
        users = [it.users for it in observed.collector.attaching.providers.values() if it.library.path == provider]
        polled = any(job.pid in it for it in users) and (not always or all(it.opened for it in probed))
        return polled and bool(own and calls) and all([*own.values(), *calls]) and job.pid in observed.collector.ledger

    until(ready, "attached")
    return job
