"""What RDMA did in each process: the maps of bpf/verbs.h as plain numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from exporter.verbs import control
from exporter.verbs.control import Control, Map, device_name

MAPS = ("contexts", "queues", "posted", "completions", "times", "post_flights", "poll_flights")
"""Each has `tgid` in its key, alone or in `qp`."""


class Posted(NamedTuple):
    """Work requests of one queue pair and opcode."""

    requests: int = 0
    bytes: int = 0
    packets: int = 0
    unsized: int = 0
    """Requests without a known MTU: then packets are not known."""


class Times(NamedTuple):
    sum_ns: int
    slots: tuple[int, ...]


@dataclass(slots=True)
class Activity:
    """RDMA of one process. Devices by name; `what` is a number of enum timed."""

    control: Control = field(default_factory=Control)
    calls: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By device and queue pair's number."""
    posted: dict[tuple[str, int, int], Posted] = field(default_factory=dict)
    """By device, queue pair's number and opcode."""
    completions: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By device and status."""
    times: dict[tuple[int, str, int], Times] = field(default_factory=dict)
    """By what, device and opcode."""

    def ended(self) -> None:
        self.control.ended()

    def absorb(self, late: Activity) -> None:
        """Adds what was counted after this was read."""
        self.control.absorb(late.control)
        self.calls += late.calls
        self.completions += late.completions
        for key, posted in late.posted.items():
            self._add_posted(key, posted)
        for timed, times in late.times.items():
            self._add_times(timed, times)

    def _add_posted(self, key: tuple[str, int, int], more: Posted) -> None:
        self.posted[key] = Posted(*(a + b for a, b in zip(self.posted.get(key, Posted()), more, strict=True)))

    def _add_times(self, key: tuple[int, str, int], more: Times) -> None:
        known = self.times.get(key) or Times(0, (0,) * len(more.slots))
        slots = tuple(a + b for a, b in zip(known.slots, more.slots, strict=True))
        self.times[key] = Times(known.sum_ns + more.sum_ns, slots)


def read(maps: Mapping[str, Map]) -> dict[int, Activity]:
    """Everything the maps hold now, by pid. Contexts of one device are one."""
    seen: dict[int, Activity] = defaultdict(Activity)
    for pid, controlled in control.read(maps).items():
        seen[pid].control = controlled
    names = {(key.tgid, key.context): device_name(value.name) for key, value in maps["contexts"].items()}

    def device(pid: int, context: int) -> str:
        return names.get((pid, context), "")

    for key, queue in maps["queues"].items():
        seen[key.tgid].calls[device(key.tgid, key.context), key.number] += queue.calls
    for key, row in maps["posted"].items():
        place = device(key.qp.tgid, key.qp.context), key.qp.number, key.opcode
        counted = (_signed(getattr(row, name)) for name in Posted._fields)
        seen[key.qp.tgid]._add_posted(place, Posted(*counted))
    for key, count in maps["completions"].items():
        seen[key.tgid].completions[device(key.tgid, key.context), key.status] += count
    for key, row in maps["times"].items():
        where = int(key.what), device(key.tgid, key.context), key.opcode
        seen[key.tgid]._add_times(where, Times(row.sum_ns, tuple(row.slots)))
    return dict(seen)


def clear(maps: Mapping[str, Map], pid: int) -> None:
    """Deletes all that the kernel keeps of one process."""
    control.clear(maps, pid)
    for name in MAPS:
        for key, _ in maps[name].items():
            if getattr(key, "qp", key).tgid == pid:
                maps[name].delete(key)


def _signed(count: int) -> int:
    """Calls that failed take back what they had counted, a moment later and from memory that may have changed."""
    return 0 if count >> 63 else count
