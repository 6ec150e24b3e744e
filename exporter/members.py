"""Series of which others are the sum: what each added to it, also while a series is missing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from exporter import values
from exporter.model import Sample, Value

RETENTION = 300.0
"""Seconds for which the last value of a series that has vanished is kept: should it return, it goes on from there."""
MOST_VANISHED = 16_384
"""Vanished series that are kept at most; of more the longest vanished are forgotten."""
LATER = frozenset(("comm", "container_id", "pod", "namespace", "container", "slurm_job_id"))
"""Labels of a process that may become known after its start: kubelet names the pod of a container a while later."""
GPU = frozenset(("gpu", "gpu_uuid"))
"""Labels of the only GPU of a process: known after its start, and no more once it uses a second one."""


@dataclass(slots=True)
class _Member:
    into: str | None
    last: Value
    start: float | None
    vanished: float = 0.0


class Members:
    """The last values of series by their keys, and the key of the sum that each adds to (None: to none).

    Pages are between `begin` and `end`. One thread at a time.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._present: dict[str, _Member] = {}
        self._vanished: dict[str, _Member] = {}
        """In the order in which they vanished."""
        self._next: dict[str, _Member] = {}
        self._new: list[str] = []
        """Keys that the page before did not have."""
        self.moved: dict[str, Value] = {}
        """Counts of members that moved to another sum, by the key of the series that has had these counts since."""
        self._of: Counter[str | None] = Counter()
        """The number of members of each sum, with the vanished ones."""

    def __bool__(self) -> bool:
        return bool(self._present or self._vanished or self.moved)

    def __contains__(self, key: str) -> bool:
        return key in self._present or key in self._vanished

    def into(self, key: str) -> str | None:
        """Return the key of the sum that a known member adds to."""
        return (self._present.get(key) or self._vanished[key]).into

    def has(self, into: str) -> bool:
        """Return whether a sum has members, with those that have vanished for a while."""
        return self._of[into] > 0

    def begin(self) -> None:
        """Begin a page."""
        self._next, self._new = {}, []

    def add(self, key: str, into: str | None, sample: Sample) -> Value | None:
        """Return what a series of the page has counted since it was last on one, None for nothing; all of it for a new
        one.

        A series that began later is another one: its process runs another program, or its pid is another process's. One
        of unknown beginning that is lower has begun again. The result of a gauge has no meaning.
        """
        member = self._present.pop(key, None) or self._vanished.pop(key, None) or self._next.get(key)
        if member is None:
            member = _Member(into, values.zero(sample.value), sample.start)
            self._of[into] += 1
            self._new.append(key)
        rise = _rise(member, sample)
        if rise is not None:
            member.last, member.start = sample.value, sample.start
        self._next[key] = member
        return rise

    def end(self) -> list[tuple[str, str, Value]]:
        """End a page: members that were not on it have vanished.

        Returns what members had counted that have other labels of their process now, with the keys of the sum that has
        these counts, and of the sum to which they were added again.
        """
        now, known = self._now(), list(self._renamed())
        for key, member in self._present.items():
            member.vanished = now
            self._vanished[key] = member
        self._present, self._next = self._next, {}
        while self._vanished:
            key = next(iter(self._vanished))
            if len(self._vanished) <= MOST_VANISHED and self._vanished[key].vanished + RETENTION > now:
                break
            self._drop(self._vanished.pop(key))
        return known

    def _renamed(self) -> Iterator[tuple[str, str, Value]]:
        """Forget vanished members that are new ones with other labels; yield what they counted, with both sums."""
        if not self._present or not self._new:
            return
        new: dict[tuple[str, ...], list[str]] = {}
        for key in self._new:
            if same := _same(key, self._next[key].start):
                new.setdefault(same, []).append(key)
        for key, before in list(self._present.items()) if new else ():
            found = [it for it in new.get(_same(key, before.start) or (), ()) if _gpus_agree(it, key)]
            if before.into is None or len(found) != 1:
                continue
            after = self._next[found[0]]
            counted = values.alike(after.last, before.last) and values.count(after.last) >= values.count(before.last)
            if after.into and counted:
                del self._present[key]
                self._drop(before)
                yield before.into, after.into, before.last

    def take(self, key: str, sample: Sample) -> Value:
        """Return what a series has counted since it was last on a page, and forget it."""
        member = self._present.pop(key, None) or self._vanished.pop(key, None)
        if member is None:
            return sample.value
        self._drop(member)
        rise = _rise(member, sample)
        return values.zero(sample.value) if rise is None else rise

    def move(self, key: str, into: str) -> str | None:
        """Forget a series the counts of which are part of another one, `into`, from now on: there they count no more.

        Returns the key of the sum that keeps the counts; None where the series is not known, or was added to no sum.
        """
        member = self._present.pop(key, None) or self._vanished.pop(key, None)
        if member is None:
            return None
        self._drop(member)
        if member.into is not None:
            self.moved[into] = values.plus(self.moved[into], member.last) if into in self.moved else member.last
        return member.into

    def rest(self, key: str, sample: Sample) -> Sample:
        """Return a sample of one of the series in `moved` without the counts that have moved into it."""
        moved = self.moved[key]
        if values.count(sample.value) < values.count(moved):  # it has begun again
            del self.moved[key]
            return sample
        return Sample(sample.metric, sample.labels, values.minus(sample.value, moved), sample.start)

    def end_of(self, key: str) -> None:
        """Forget a series that has ended; another one of its key counts from 0."""
        self.moved.pop(key, None)
        if member := self._present.pop(key, None) or self._vanished.pop(key, None):
            self._drop(member)

    def _drop(self, member: _Member) -> None:
        self._of[member.into] -= 1
        if not self._of[member.into]:
            del self._of[member.into]


def _rise(member: _Member, sample: Sample) -> Value | None:
    """Return what a member has counted since, None for nothing, and where it is lower though it did not begin again.

    One with other buckets than before has counted nothing that can be known.
    """
    if sample.value == member.last and sample.start == member.start:
        return None
    if not values.alike(sample.value, member.last):
        return values.zero(sample.value)
    known = sample.start is not None and member.start is not None
    if known and sample.start > member.start:  # type: ignore[operator]
        return sample.value
    if values.count(sample.value) < values.count(member.last):
        return None if known else sample.value
    return values.minus(sample.value, member.last)


def _same(key: str, start: float | None) -> tuple[str, ...] | None:
    """Return what stays of a series of a process when LATER or GPU change; None of others, and without a start."""
    labels = _labels(key)
    if start is None or "pid" not in labels:
        return None
    return (
        key.split("\0", 1)[0],
        str(start),
        *(f"{name}={labels[name]}" for name in sorted(labels.keys() - LATER - GPU)),
    )


def _gpus_agree(key: str, other: str) -> bool:
    """Return whether two series are of one GPU, or one of them does not name it."""
    gpus = {_labels(it).get("gpu") or None for it in (key, other)}
    return len(gpus) == 1 or None in gpus


def _labels(key: str) -> dict[str, str]:
    """Return the labels of a series by its key (values.key)."""
    _, *rest = key.split("\0")
    return dict(zip(rest[: len(rest) // 2], rest[len(rest) // 2 :], strict=True))
