"""A limit on the series of a collector: series beyond the limit are folded into series without identity labels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from exporter import values
from exporter.members import MOST_VANISHED, RETENTION, Members
from exporter.model import PROCESS_LABELS, Kind, Metric, Sample, Value
from exporter.moves import Move, Moves, MovesSample
from exporter.options import Flag
from exporter.profile import Profile
from exporter.reduction import Reduction

FOLDED = Metric(
    "accel_exporter.series.folded",
    "Series beyond the collector's limit, added to series labelled overflow=true without the labels of a process, "
    "queue pair, communicator or rank.",
    Kind.COUNTER,
    labels=("collector",),
)
LIMIT = Metric(
    "accel_exporter.series.limit",
    "Maximum number of series of the collector (--collector.NAME.series-limit), each bucket of a histogram being one. "
    "For collector=page: of one answer to /metrics (--web.series-limit).",
    Kind.GAUGE,
    labels=("collector",),
)
LIMIT_HELP = (
    "Maximum number of series, each bucket of a histogram being one. The last fifth is for those labelled "
    "overflow=true."
)
LEAST, MOST = 10, 1 << 24
ABOUT = 2
"""Lines of /metrics about a limit itself."""
OWN = ("accel_exporter.page.", "accel_exporter.collector.", "accel_exporter.series.")
"""Metrics, by their beginnings, that show what a page has and costs: they are folded last, as errors and faults are."""


def limit_flag(most: int) -> Flag:
    """Return the flag of a collector's limit; `most` is the default."""
    return Flag("series-limit", most, LIMIT_HELP, LEAST, MOST)


@dataclass(slots=True)
class _Fold:
    """A series into which others are folded. `counted` is the sum of its members' counts; unused for a gauge."""

    metric: Metric
    labels: Mapping[str, str]
    lines: int
    counted: Value
    present: bool = True
    """True if a member is on this page."""
    until: float = 0.0
    """Time at which the fold vanishes unless it has members then, in seconds of the limit's clock."""


class SeriesLimit:
    """Reduces a collector's samples to a profile, and limits them to `most` lines of /metrics.

    Once it folds, a series stays shown, or folded, while it exists.

    Folded series lose the labels of the process and those that the metric declares as identity; where too many series
    remain, all labels. Errors and faults come before all other series of a page, and one that is new has a quarter of
    the room for folded series besides. Series of the hardware and of the exporter come before those of processes, queue
    pairs and communicators, of which there may be any number. Another quarter is for those without labels: no flood of
    errors, or of labels of their own, leaves counts out. A folded counter or histogram keeps the counts of vanished
    members, and vanishes with the last member: the members of a process stay for five minutes after the process's end,
    and so does the folded series. The counts of ended processes that are too many are folded too, before their five
    minutes are over (`retire`). A folded gauge is the sum of its members, or the largest of times, ratios and
    temperatures. One thread at a time.

    A page of samples of other limits also receives their moves: series with counts in this page's sums and folded
    series that have since become part of those limits' folded series. `own` lines of the limit are those about it.
    """

    def __init__(
        self,
        collector: str,
        most: int,
        now: Callable[[], float] = time.monotonic,
        profile: Profile = Profile.DEBUG,
        own: int = 0,
    ) -> None:
        self._collector, self._most, self._now = collector, most, now
        self._reduction = Reduction(profile, now)
        self._most_folded = (most - own) // 5
        self._most_shown = most - own - self._most_folded
        self.shown: dict[str, int] = {}
        self.members = Members(now)
        self.folds: dict[str, _Fold] = {}
        self._lines = 0
        """Lines of all folded series."""
        self._lines_shown = 0
        self._ever = 0
        self._left: dict[str, None] = {}
        """Series that were shown and have vanished, in that order: they may return as folded ones."""
        self._moves = Moves()
        self._applied: float | None = None
        """The wall time of the page before."""

    def apply(self, samples: Iterable[Sample], moves: Iterable[Move] = ()) -> list[Sample]:
        """Return the samples within the limit, then the folded series, then the metrics of the limit.

        Counts that have moved by `moves` count once: they stay in the sums and folded series for at least RETENTION.
        """
        samples = list(samples)
        moved = list(self._reduction.move(moves, samples))
        samples = self._reduction.apply(samples)
        if self.members or self.folds or values.lines(samples) > self._most_shown:
            samples = self._fold(sorted(samples, key=_order), moved)
        of = {"collector": self._collector}
        folded = MovesSample(FOLDED, of, self._ever, moves=self._moves, count=self._moves.count)
        self._applied = time.time()
        return [*samples, folded, LIMIT.sample(self._most, of)]

    def _move(self, moved: Iterable[tuple[Move, tuple[str, ...]]], page: Mapping[str, Sample]) -> None:
        for move, keys in moved:
            if move.series is None:
                self.members.end_of(move.into)
                continue
            key = next((it for it in keys if it in self.members), keys[0])
            for into in self.members.move(key, move.series, move.into, lambda: page):
                self.folds[into].until = self._now() + RETENTION

    def retire(self, samples: Iterable[Sample], seconds: float) -> None:
        """Fold the counters and histograms of a process that is shown no more, for so many seconds at least.

        They keep the labels of its workload and its name while these series take a quarter of the room for folded ones.
        """
        for sample in self._reduction.retire(samples, seconds):
            key = values.key(sample.metric, sample.labels)
            self.shown.pop(key, None)
            known = key in self.members
            into = self.members.into(key) if known else self._into(sample, workload=True)
            if into and not known and self._may_be_shown(sample):
                self._moves.add(sample.metric, sample, into)
            rise, others = self.members.take(key, sample)
            if fold := self.folds.get(into or ""):
                fold.counted = values.plus(fold.counted, rise)
                others.add(into or "")
            for into in others:
                self.folds[into].until = self._now() + seconds

    def _fold(self, samples: list[Sample], moved: Iterable[tuple[Move, tuple[str, ...]]]) -> list[Sample]:
        keyed = {values.key(sample.metric, sample.labels): sample for sample in samples}
        self._move(moved, keyed)
        for key in self.members.moved.keys() & keyed.keys():
            keyed[key] = self.members.rest(key, keyed[key])
        self._begin(keyed)
        gauges: dict[str, Value] = {}
        for key, sample in keyed.items():
            if key in self.shown:
                continue
            if key in self.members or self.members.continues(key, sample) or not self._show(key, sample):
                self._add(key, sample, gauges)
        for key in self.shown.keys() & self.folds.keys():  # a series that a collector folded has the same labels
            self._lines_shown -= self.shown.pop(key)
            self._add(key, keyed[key], gauges)
        self._end()
        kept = [sample for key, sample in keyed.items() if key in self.shown]
        return [*kept, *self._folded(gauges)]

    def _may_be_shown(self, sample: Sample) -> bool:
        """Return whether a series may have been on a page: what began since has not."""
        return self._applied is not None and (sample.start is None or sample.start <= self._applied)

    def _show(self, key: str, sample: Sample) -> bool:
        """Return whether there is room for a new series, which it then has while it exists."""
        more = values.lines_of(sample.value)
        if self._lines_shown + more > self._room(sample.metric):
            return False
        self._left.pop(key, None)
        self.shown[key] = more
        self._lines_shown += more
        return True

    def _room(self, metric: Metric) -> int:
        """Return the lines that series may take which are shown singly, where this metric's is one of them."""
        if not _is_last_folded(metric):
            return self._most_shown
        quarter = self._most_folded // 4
        return self._most_shown + self._most_folded - max(self._lines + quarter, self._most_folded - quarter)

    def _begin(self, keyed: Mapping[str, Sample]) -> None:
        """Begin a page: drop series that have vanished."""
        for key in self.shown.keys() - keyed.keys():
            self._left[key] = None
            del self.shown[key]
        while len(self._left) > MOST_VANISHED:
            del self._left[next(iter(self._left))]
        self._lines_shown = sum(self.shown.values())
        self.members.begin(keyed)
        for fold in self.folds.values():
            fold.present = False

    def _end(self) -> None:
        """End a page: drop folded series that no series can return to."""
        now = self._now()
        for into, again in self.members.end(lambda before, into: False):
            self.folds[into].counted = values.minus(self.folds[into].counted, again)
        for into in self.members.held():
            self.folds[into].present = True
        for key, fold in list(self.folds.items()):
            if not self.members.has(key) and fold.until <= now:
                del self.folds[key]
                self._moves.add(fold.metric, None, key)
        self._lines = sum(fold.lines for fold in self.folds.values())

    def _into(self, sample: Sample, workload: bool = False) -> str | None:
        """Return the key of the folded series for a sample, which is made if there is none, or None without room."""
        identity = {*PROCESS_LABELS, *sample.metric.identity}
        own = {name: value for name, value in sample.labels.items() if name not in identity}
        lines = values.lines_of(sample.value)
        room = self._most_folded - max(0, self._lines_shown - self._most_shown)
        choices = [(own, min(room, self._most_folded // 2)), ({}, room)]
        if workload:
            of_many = {name: value for name, value in sample.labels.items() if name in PROCESS_LABELS and name != "pid"}
            choices.insert(0, (of_many | own, self._most_folded // 4))
        for labels, most in choices:
            labels = labels | {"overflow": "true"}
            key = values.key(sample.metric, labels)
            if key in self.folds:
                return key
            if self._lines + lines <= most:
                self.folds[key] = _Fold(sample.metric, labels, lines, values.zero(sample.value))
                self._lines += lines
                return key
        return None

    def _add(self, key: str, sample: Sample, gauges: dict[str, Value]) -> None:
        """Fold a series of the page."""
        if key in self.members:
            into = self.members.into(key)
        else:
            self._ever += 1
            into = self._into(sample)
            left = self._left.pop(key, self) is None
            # On the first page that folds there are series that were shown before.
            if into and sample.metric.kind is not Kind.GAUGE and (left or self._may_be_shown(sample)):
                self._moves.add(sample.metric, sample, into)
        rise = self.members.add(key, into, sample)
        if into is None:
            return
        fold = self.folds[into]
        fold.present = True
        if sample.metric.kind is not Kind.GAUGE:
            fold.counted = values.plus(fold.counted, rise) if rise is not None else fold.counted
        elif into in gauges:
            gauges[into] = values.combine(sample.metric, gauges[into], sample.value)
        else:
            gauges[into] = sample.value

    def _folded(self, gauges: Mapping[str, Value]) -> Iterable[Sample]:
        now = self._now()
        for key, fold in self.folds.items():
            if fold.metric.kind is Kind.GAUGE:
                if key in gauges:
                    yield Sample(fold.metric, fold.labels, gauges[key])
            elif fold.present or fold.until > now:
                yield Sample(fold.metric, fold.labels, fold.counted)


def _is_last_folded(metric: Metric) -> bool:
    return metric.fault or metric.name.startswith(OWN)


def _order(sample: Sample) -> int:
    if _is_last_folded(sample.metric):
        return 0
    return 2 if sample.metric.process or sample.metric.identity else 1
