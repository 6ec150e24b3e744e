"""The node as collectors see it: shared state and settings. Tests pass a Node with fakes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from exporter.bpf.trial import Trial
from exporter.faults.ledger import FaultLedger
from exporter.faults.transitions import KeptTransitions
from exporter.governor.governor import Governor
from exporter.infiniband.counters import KeptCounters
from exporter.kmsg.kernel_log import KernelLog, KmsgSettings
from exporter.linking.served import RecentRequests
from exporter.model import Labels, Span
from exporter.nccl.recent_collectives import RecentCollectives
from exporter.nvml.gpus import Gpus
from exporter.profile import Profile
from exporter.resolve.allocations import Allocations
from exporter.resolve.communicators import Communicators
from exporter.resolve.pod_workload import PodWorkloads
from exporter.stack_profiles.published import StackProfiles
from exporter.verbs.posted import Posted

if TYPE_CHECKING:
    from exporter.bpf.targets import Targets


class Processes(Protocol):
    """The labels of processes (exporter/resolve/process.py)."""

    def labels(self, pid: int) -> Labels:
        """Return the process labels of a pid, at least `pid`; read once and kept until `forget`."""
        ...

    def named(self, pid: int, of_pod: Callable[[str, str], Labels]) -> Labels:
        """Return the process labels of a pid and its workload; `of_pod` returns that of a pod by namespace and name."""
        ...

    def forget(self, pid: int) -> None:
        """Drop a pid that has ended or runs another program now; the next query reads it again."""
        ...


class Clock:
    """Converts the kernel's monotonic nanoseconds (bpf_ktime_get_ns) to wall time, also after the clock was set."""

    REFRESH_NS = 10_000_000_000
    READINGS = 3

    def __init__(self) -> None:
        self._offset = self._read_at = 0

    def now_ns(self) -> int:
        """Return the wall time now, by the same reading of the clocks."""
        return self.wall_ns(time.monotonic_ns())

    def wall_ns(self, monotonic_ns: int) -> int:
        now = time.monotonic_ns()
        if not self._offset or now - self._read_at > self.REFRESH_NS:
            # of several readings the one that took least: another thread may have run during one
            _, self._offset = min(_offset() for _ in range(self.READINGS))
            self._read_at = now
        return monotonic_ns + self._offset


def _offset() -> tuple[int, int]:
    """Return how long a reading of both clocks took, and how much wall time is ahead of monotonic time."""
    before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
    return after - before, wall - (before + after) // 2


@dataclass(frozen=True)
class Node:
    """The state shared by all collectors, and one collector's settings. No field has a default: a collector with an own
    object in place of a shared one would silently miss what other collectors put there.
    """

    settings: Mapping[str, Any]
    """The collector's own settings, by flag name: "live-allocations" is --collector.cuda.live-allocations."""
    processes: Processes
    targets: Targets
    spans: Callable[[Span], None]
    """Receives a finished span; never blocks or raises, and counts spans that it drops."""
    wants_spans: bool
    """True if spans are exported: without an OTLP endpoint collectors need not make any."""
    clock: Clock
    trial: Trial
    governor: Governor
    gpus: Gpus
    allocations: Allocations
    workloads: PodWorkloads
    communicators: Communicators
    collectives: RecentCollectives
    requests: RecentRequests
    faults: FaultLedger
    transitions: KeptTransitions
    kernel_log: KernelLog
    posted: Posted
    stack_profiles: StackProfiles
    """Place where a collector that captures stacks publishes its profiles."""
    port_counters: KeptCounters
    profile: Profile
    """Level of detail: the metrics and labels that have series of their own."""
    proc: Path
    sys: Path

    @classmethod
    def new(
        cls,
        processes: Processes,
        targets: Targets,
        spans: Callable[[Span], None],
        proc: Path,
        sys: Path,
        kmsg: KmsgSettings,
        wants_spans: bool = True,
        max_ratio: float = 0.0,
        max_cores: float = 0.0,
        profile: Profile = Profile.DEBUG,
        profiles_wanted: bool = False,
        returns_wanted: bool = True,
    ) -> Node:
        """Return a node with empty shared state and without settings, for all collectors."""
        clock, faults = Clock(), FaultLedger()
        return cls(
            settings={},
            processes=processes,
            targets=targets,
            spans=spans,
            wants_spans=wants_spans,
            clock=clock,
            trial=Trial(returns_wanted),
            governor=Governor(max_ratio, max_cores=max_cores),
            gpus=Gpus(),
            allocations=Allocations(),
            workloads=PodWorkloads(),
            communicators=Communicators(),
            collectives=RecentCollectives(),
            requests=RecentRequests(),
            faults=faults,
            transitions=KeptTransitions(faults.add),
            kernel_log=KernelLog(kmsg, clock.wall_ns),
            posted=Posted(),
            stack_profiles=StackProfiles(profiles_wanted),
            port_counters=KeptCounters(),
            profile=profile,
            proc=proc,
            sys=sys,
        )

    def with_settings(self, settings: Mapping[str, Any]) -> Node:
        """Return the same node for a collector with these settings."""
        return replace(self, settings=settings)
