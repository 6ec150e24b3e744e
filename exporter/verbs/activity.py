"""RDMA activity of each process: the maps of bpf/verbs/verbs.h and bpf/verbs/qp.h as plain numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast

from exporter.verbs import control
from exporter.verbs.control import Control, Qp, device_name
from exporter.verbs.destroyed_qps import Destroyed, DestroyedQps, PostedRequests, QpLife
from exporter.verbs.records import CountedRows, PostedKey, QpLifeKey

if TYPE_CHECKING:
    from exporter.bpf.maps import Map

MAPS = (
    *("contexts", "queues", "receives", "calls", "posted", "completions", "times"),
    *("live_functions", "live_sent", "extended_calls", "extended_posts", "extended_polls", "process_hits"),
)
"""The maps of the data path; each has `tgid` in its key, alone, in `qp` or in `life`."""
POSTED = ("contexts", "calls", "posted")
READ = (*control.READ, *POSTED, "completions", "times")
"""The maps of MAPS and control.MAPS that are read."""

_Ends = Mapping[QpLife, Destroyed]


class QpId(NamedTuple):
    """A queue pair: number and time of creation, as numbers are used again. `created_ns` is 0 where it was not seen."""

    device: str
    number: int
    created_ns: int


class Times(NamedTuple):
    """Durations: their sum and a histogram with slots of powers of two."""

    sum_ns: int
    slots: tuple[int, ...]

    def plus(self, more: Times) -> Times:
        return Times(self.sum_ns + more.sum_ns, tuple(a + b for a, b in zip(self.slots, more.slots, strict=True)))


@dataclass(slots=True)
class Activity:
    """RDMA of one process. Devices by name; `what` is a number of enum timed."""

    control: Control = field(default_factory=Control)
    destroyed: dict[QpId, Qp] = field(default_factory=dict)
    """Queue pairs that were destroyed, as they were."""
    calls: Counter[QpId] = field(default_factory=Counter)
    posted: dict[tuple[QpId, int], PostedRequests] = field(default_factory=dict)
    """By queue pair and opcode."""
    completions: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By device and status."""
    times: dict[tuple[int, str, int], Times] = field(default_factory=dict)
    """By what, device and opcode."""

    @property
    def qps(self) -> dict[QpId, Qp]:
        """The queue pairs of the process, destroyed ones included."""
        return self.destroyed | {QpId(qp.device, qp.number, qp.created_ns): qp for qp in self.control.qps.values()}

    def ended(self) -> None:
        """Keep what the process did, and count its queue pairs as destroyed."""
        self.destroyed = self.qps
        self.control.ended()

    def absorb(self, late: Activity) -> None:
        """Add counts that were made after this activity was read.

        Changed fields are replaced, not modified: another thread may be reading them.
        """
        self.control.absorb(late.control)
        self.destroyed = self.destroyed | late.destroyed
        self.calls = self.calls + late.calls
        self.completions = self.completions + late.completions
        posted = {key: more.plus(self.posted.get(key, PostedRequests())) for key, more in late.posted.items()}
        times = {key: more.plus(self.times[key]) if key in self.times else more for key, more in late.times.items()}
        self.posted, self.times = self.posted | posted, self.times | times

    def add_posted(self, qp_id: QpId, opcode: int, more: PostedRequests) -> None:
        self.posted[qp_id, opcode] = self.posted.get((qp_id, opcode), PostedRequests()).plus(more)

    def add_times(self, key: tuple[int, str, int], more: Times) -> None:
        self.times[key] = more.plus(self.times[key]) if key in self.times else more


def read(maps: Mapping[str, Map], qps: DestroyedQps, drain: Callable[[], None]) -> dict[int, Activity]:
    """Return everything the maps hold now, by pid, with what destroyed queue pairs did.

    Contexts of one device are one. `drain` hands the records of destroyed queue pairs that are still in the ring buffer
    to `qps`.
    """
    return _read(maps, qps, drain, READ)


def _read(
    maps: Mapping[str, Map], qps: DestroyedQps, drain: Callable[[], None], names: Collection[str]
) -> dict[int, Activity]:
    drain()
    added, before = qps.added, qps.now()
    rows = {name: [*maps[name].items()] if name in names else [] for name in READ}
    drain()
    destroyed = qps.now() if qps.added != added else before
    expired = qps.expire({QpLife.of(key).place for key, _ in rows["calls"]})
    if destroyed is not before:
        rows["calls"] = [row for row in rows["calls"] if not _calls_moved(row[0], before, destroyed)]
        rows["posted"] = [row for row in rows["posted"] if not _posted_moved(row[0], before, destroyed)]
    return _by_process(cast(CountedRows, rows), {life: it for life, it in destroyed.items() if life not in expired})


def read_posted(maps: Mapping[str, Map], qps: DestroyedQps, drain: Callable[[], None]) -> dict[int, Activity]:
    """Return what `read` returns of posts alone, which takes a fraction of the time."""
    return _read(maps, qps, drain, POSTED)


def _calls_moved(key: QpLifeKey, before: _Ends, after: _Ends) -> bool:
    """Return whether the record of a queue pair's calls came meanwhile: their row was read before it was deleted."""
    life = QpLife.of(key)
    return life in after and after[life].calls != _end(before, life).calls


def _posted_moved(key: PostedKey, before: _Ends, after: _Ends) -> bool:
    """Return whether the record of what a queue pair posted with one opcode came meanwhile."""
    life = QpLife.of(key.life)
    return life in after and after[life].posted.get(key.opcode) != _end(before, life).posted.get(key.opcode)


def _end(ends: _Ends, life: QpLife) -> Destroyed:
    return ends.get(life) or Destroyed(0.0)


def take(
    maps: Mapping[str, Map], qps: DestroyedQps, drain: Callable[[], None], pids: Collection[int]
) -> dict[int, Activity]:
    """Return what `read` returns of these processes, which have ended, and remove their rows and queue pairs."""
    drain()
    destroyed = qps.take(pids)
    rows = {name: list(maps[name].take(pids)) for name in (*control.MAPS, *MAPS)}
    return _by_process(cast(CountedRows, rows), destroyed)


def _by_process(rows: CountedRows, destroyed: Mapping[QpLife, Destroyed]) -> dict[int, Activity]:
    seen: dict[int, Activity] = defaultdict(Activity)
    for pid, controlled in control.by_process(rows).items():
        seen[pid].control = controlled
    names = {(key.tgid, key.context): device_name(value.name) for key, value in rows["contexts"]}

    def identified(qp: QpLife) -> QpId:
        return QpId(names.get((qp.tgid, qp.context), ""), qp.number, qp.created_ns)

    for was, end in destroyed.items():
        activity, ended = seen[was.tgid], identified(was)
        if not ended.device and end.qp:  # a record that comes after its process's end, when the context has no row
            ended = ended._replace(device=end.qp.device)
        activity.calls[ended] += end.calls
        if end.qp:
            activity.destroyed[ended] = end.qp
        for opcode, posted in end.posted.items():
            activity.add_posted(ended, opcode, posted)
    for life, calls in rows["calls"]:
        qp = QpLife.of(life)
        seen[qp.tgid].calls[identified(qp)] += calls.count
    for key, row in rows["posted"]:
        qp = QpLife.of(key.life)
        seen[qp.tgid].add_posted(identified(qp), key.opcode, PostedRequests.of(row))
    for status, count in rows["completions"]:
        seen[status.tgid].completions[names.get((status.tgid, status.context), ""), status.status] += count
    for timed, times in rows["times"]:
        where = int(timed.what), names.get((timed.tgid, timed.context), ""), timed.opcode
        seen[timed.tgid].add_times(where, Times(times.sum_ns, tuple(times.slots)))
    return dict(seen)
