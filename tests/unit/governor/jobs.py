"""A job with slow probes, and a file that the job uses, under a clock of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf

from exporter.governor.estimates import ProcessTally

TRAP = 0.8e-6


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Job:
    """Groups of messages: `own` seconds of CPU time and `idle` ones without it for each, in one thread.

    Each message takes a trap longer while it is probed, and each group `other` seconds.
    """

    own: float
    messages: int = 128
    idle: float = 0.0
    other: float = 0.0
    grouped: bool = True
    seen: float = 0.0
    sent: float = 0.0
    groups: float = 0.0
    cpu: float = 0.0

    def run(self, seconds: float, probed: bool) -> None:
        busy = self.own + self.other + (self.messages * TRAP if probed else 0)
        groups = seconds / (busy + self.idle)
        self.groups += groups
        self.cpu += groups * busy
        self.sent += groups * self.messages
        self.seen += groups * self.messages if probed else 0

    @property
    def tally(self) -> ProcessTally:
        counts = {"calls": int(self.seen), "bytes": int(self.seen) * 1000}
        groups = self.groups if self.grouped else 0
        cost, other = self.seen * TRAP, self.groups * self.other
        return ProcessTally(counts, groups, cost, other, self.cpu, begun=self.groups > 0)


@dataclass
class File:
    """A file that these jobs use; time passes by `pass_until`."""

    clock: Clock
    jobs: dict[int, Job]
    name: str = "/lib/libnccl.so.2"
    symbols: Collection[str] = ("ncclSend",)
    on: bool = True
    turns: list[tuple[float, bool]] = field(default_factory=list)
    alone: bool = False
    """True if processes can be probed one by one."""
    kept: Collection[int] = ()

    @property
    def pids(self) -> Collection[int]:
        return [*self.jobs]

    def probe(self, on: bool) -> None:
        self.on = on
        self.turns.append((self.clock.now, on))

    def keep(self, pids: Collection[int]) -> Collection[int]:
        self.kept = list(pids) if self.alone else []
        return self.kept

    def restore(self) -> None:
        self.on = True

    def pass_until(self, time: float) -> None:
        for pid, job in self.jobs.items():
            job.run(max(0.0, time - self.clock.now), self.on or pid in self.kept)
        self.clock.now = max(time, self.clock.now)


class Subject:
    """A collector of these files."""

    name, unit_flag, calls_only = "nccl", "--units", False

    def __init__(self, *files: File, rank: int = 0, threads: Collection[Job] = (), unit_bound: float = inf) -> None:
        """`threads`: what else is in the one process."""
        self.rank, self.threads, self.unit_bound = rank, threads, unit_bound
        self.files = dict(enumerate(files))
        self.known = True
        self.reads = 0

    def sampled_files(self) -> Mapping[int, File]:
        return self.files

    def sampled_cost(self) -> float | None:
        return sum(job.seen * TRAP for it in self.files.values() for job in it.jobs.values()) if self.known else None

    def tallies(self, pids: Collection[int]) -> Mapping[int, ProcessTally]:
        self.reads += 1
        rest = sum(it.cpu for it in self.threads)
        found = {pid: job.tally for it in self.files.values() for pid, job in it.jobs.items() if pid in pids}
        return {pid: it._replace(cpu=it.cpu + rest) for pid, it in found.items()}
