"""Calls of post_send and post_recv for exporter.governor: what they cost a process, and their counts while they are
probed in windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from math import inf
from typing import Protocol

from exporter.bpf.sampled_file import SampledFile
from exporter.governor.estimates import Counts, ProcessTally
from exporter.governor.processes import cpu_seconds, cpu_times
from exporter.governor.subject import POSTS_THIRD
from exporter.verbs.activity import Activity, QpId
from exporter.verbs.costs import Cost, VerbsCosts
from exporter.verbs.destroyed_qps import PostedRequests

UNKNOWN_QP = -1
"""The number in place of the queue pairs of requests that were not seen: which ones those were is not known."""
_CALLS = "calls"
_TRIES = 2
_Reading = tuple[Mapping[int, float], Mapping[int, Activity], Mapping[int, Cost], Mapping[int, float]]
"""CPU times, counts, costs and CPU times again."""


def _passed(reading: _Reading) -> float:
    """Return the CPU time between both readings of it."""
    return sum(reading[3].values()) - sum(reading[0].values())


class PostProbes(Protocol):
    """The part of exporter.bpf.probe.Probes that is used here."""

    def sampled_files(self, group: str) -> Mapping[int, SampledFile]: ...


class CountedPosts:
    """A governor's Subject. Nothing that is always counted goes with posts, so that their reference is CPU time.

    `activities` returns what processes posted until now.
    """

    name, rank = "verbs", POSTS_THIRD
    unit_bound, unit_flag, calls_only = inf, "", False

    def __init__(
        self,
        probes: PostProbes,
        costs: VerbsCosts,
        activities: Callable[[], Mapping[int, Activity]],
        cpu: Callable[[int], float] = cpu_seconds,
    ) -> None:
        self._probes, self._costs, self._activities, self._cpu = probes, costs, activities, cpu

    def sampled_files(self) -> Mapping[int, SampledFile]:
        return self._probes.sampled_files("posts")

    def sampled_cost(self) -> float | None:
        """Return the seconds that probes took at the posts of all processes that run; None without prices."""
        return self._costs.all() if self._costs.known else None

    def tallies(self, pids: Collection[int]) -> Mapping[int, ProcessTally]:
        """Read counts between two readings of CPU time, of which the mean counts: so both are of one time.

        Of two tries the one with less CPU time in between counts: in the other one the thread had to wait.
        """
        before, posted, costs, after = min((self._read(pids) for _ in range(_TRIES)), key=_passed)
        return {
            pid: _tally(posted.get(pid, Activity()), costs[pid], (before[pid] + after[pid]) / 2)
            for pid in before.keys() & after.keys()
        }

    def _read(self, pids: Collection[int]) -> _Reading:
        before = cpu_times(pids, self._cpu)
        return before, self._activities(), self._costs.of(pids), cpu_times(pids, self._cpu)

    def last(self, activity: Activity) -> Callable[[ProcessTally], ProcessTally]:
        """Return what makes the last tally of an ended process; its cost and CPU time are not known any more."""
        return lambda before: _tally(activity, Cost(), before.cpu)

    def add(self, activity: Activity, missed: Counts | None) -> None:
        """Add to the counts of a process what was estimated, as Estimates.missed returns it; remove them for None."""
        if missed is None:
            activity.calls.clear()
            activity.posted.clear()
            return
        requests: dict[tuple[str, int], dict[str, int]] = {}
        for (what, device, opcode), more in missed.items():
            if more and what == _CALLS:
                activity.calls[QpId(device, UNKNOWN_QP, 0)] += more
            elif more:
                requests.setdefault((device, opcode), {})[what] = more
        for (device, opcode), counts in requests.items():
            activity.add_posted(QpId(device, UNKNOWN_QP, 0), opcode, PostedRequests(**counts))


def _tally(activity: Activity, cost: Cost, cpu: float) -> ProcessTally:
    counts = Counter[tuple[str, str, int]]()
    for qp_id, calls in activity.calls.items():
        counts[_CALLS, qp_id.device, 0] += calls
    for (qp_id, opcode), posted in activity.posted.items():
        for name, count in posted._asdict().items():
            counts[name, qp_id.device, opcode] += count
    return ProcessTally(counts, reference=0.0, cost=cost.posts, other=cost.other, cpu=cpu)
