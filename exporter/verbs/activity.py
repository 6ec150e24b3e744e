"""What RDMA did in each process: the maps of bpf/verbs.h and bpf/verbs_qp.h as plain numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from exporter.verbs import control
from exporter.verbs.control import Control, Map, Qp, Rows, device_name
from exporter.verbs.gone import Destroyed, Gone, Place, Posted

MAPS = (
    *("contexts", "queues", "receives", "calls", "posted", "completions", "times", "post_flights", "poll_flights"),
    *("live_functions", "live_told", "extended_calls", "extended_posts", "extended_polls"),
)
"""Each has `tgid` in its key, alone, in `qp` or in `life`."""
READ = (*control.READ, "contexts", "calls", "posted", "completions", "times")
"""Those of them, and of control.MAPS, that are read."""


class Life(NamedTuple):
    """A queue pair, told apart from those that had its number before; `created_ns` is 0 if that was not seen."""

    device: str
    number: int
    created_ns: int


class Times(NamedTuple):
    sum_ns: int
    slots: tuple[int, ...]

    def plus(self, more: Times) -> Times:
        return Times(self.sum_ns + more.sum_ns, tuple(a + b for a, b in zip(self.slots, more.slots, strict=True)))


@dataclass(slots=True)
class Activity:
    """RDMA of one process. Devices by name; `what` is a number of enum timed."""

    control: Control = field(default_factory=Control)
    gone: dict[Life, Qp] = field(default_factory=dict)
    """Queue pairs that were destroyed, as they were."""
    calls: Counter[Life] = field(default_factory=Counter)
    posted: dict[tuple[Life, int], Posted] = field(default_factory=dict)
    """By queue pair and opcode."""
    completions: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By device and status."""
    times: dict[tuple[int, str, int], Times] = field(default_factory=dict)
    """By what, device and opcode."""

    @property
    def qps(self) -> dict[Life, Qp]:
        """Those that there are, and those that were."""
        return self.gone | {Life(qp.device, qp.number, qp.created_ns): qp for qp in self.control.qps.values()}

    def ended(self) -> None:
        self.gone = self.qps
        self.control.ended()

    def absorb(self, late: Activity) -> None:
        """Adds what was counted after this was read. Replaces what it changes: another thread may be reading it."""
        self.control.absorb(late.control)
        self.gone = self.gone | late.gone
        self.calls = self.calls + late.calls
        self.completions = self.completions + late.completions
        posted = {key: more.plus(self.posted.get(key, Posted())) for key, more in late.posted.items()}
        times = {key: more.plus(self.times[key]) if key in self.times else more for key, more in late.times.items()}
        self.posted, self.times = self.posted | posted, self.times | times

    def add_posted(self, life: Life, opcode: int, more: Posted) -> None:
        self.posted[life, opcode] = self.posted.get((life, opcode), Posted()).plus(more)

    def add_times(self, key: tuple[int, str, int], more: Times) -> None:
        self.times[key] = more.plus(self.times[key]) if key in self.times else more


def read(maps: Mapping[str, Map], gone: Gone) -> dict[int, Activity]:
    """Everything the maps hold now, by pid, with what destroyed queue pairs did. Contexts of one device are one."""
    destroyed = gone.now()  # before the maps: what moves meanwhile must not be there twice
    return _by_process({name: maps[name].items() for name in READ}, destroyed)


def take(maps: Mapping[str, Map], gone: Gone, pids: Collection[int]) -> dict[int, Activity]:
    """The same of these processes, of which nothing is kept any more then."""
    destroyed = gone.take(pids)
    return _by_process({name: list(maps[name].take(pids)) for name in (*control.MAPS, *MAPS)}, destroyed)


def _by_process(rows: Rows, destroyed: Mapping[Place, Destroyed]) -> dict[int, Activity]:
    seen: dict[int, Activity] = defaultdict(Activity)
    for pid, controlled in control.by_process(rows).items():
        seen[pid].control = controlled
    names = {(key.tgid, key.context): device_name(value.name) for key, value in rows["contexts"]}

    def life(place: Place) -> Life:
        return Life(names.get((place.tgid, place.context), ""), place.number, place.created_ns)

    for place, it in destroyed.items():
        activity, was = seen[place.tgid], life(place)
        activity.calls[was] += it.calls
        if it.qp:
            activity.gone[was] = it.qp
        for opcode, posted in it.posted.items():
            activity.add_posted(was, opcode, posted)
    for key, row in rows["calls"]:
        place = Place.of(key)
        seen[place.tgid].calls[life(place)] += row.count
    for key, row in rows["posted"]:
        place = Place.of(key.life)
        seen[place.tgid].add_posted(life(place), key.opcode, Posted.of(row))
    for key, count in rows["completions"]:
        seen[key.tgid].completions[names.get((key.tgid, key.context), ""), key.status] += count
    for key, row in rows["times"]:
        where = int(key.what), names.get((key.tgid, key.context), ""), key.opcode
        seen[key.tgid].add_times(where, Times(row.sum_ns, tuple(row.slots)))
    return dict(seen)
