"""Series that are parts of sums: the counts that each added to its sum, also while it is missing or relabelled."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain

from exporter import values
from exporter.member import Member, gpus_agree, later, rise_of, same
from exporter.model import Kind, Sample, Value

RETENTION = 300.0
"""Seconds for which the last value of a series that has vanished is kept: should it return, it goes on from there."""
MOST_VANISHED = 16_384
"""Vanished series that are kept at most; of more the longest vanished are forgotten."""


class Members:
    """The last values of series by their keys, and the key of the sum that each adds to (None: to none).

    Pages are between `begin` and `end`. One thread at a time. A series of a process stays the same series when LATER or
    GPU change, also if it was divided by GPU before and is no longer. Its counts stay in the sum of the former labels
    as long as the series is there, or move to a new sum if the former sum has no other counts.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._present: dict[str, Member] = {}
        self._vanished: dict[str, Member] = {}
        """In the order in which they vanished."""
        self._next: dict[str, Member] = {}
        self._page: Collection[str] = ()
        self._new: set[str] = set()
        """Keys that the page before did not have."""
        self._risen: dict[str, Value] = {}
        """Counts since the page before, by key."""
        self._absent: dict[int, list[str]] | None = None
        """The keys of members that are not on the page, by `same`; None if they are not known yet."""
        self._scattered: set[str] = set()
        """Keys of members with counts elsewhere."""
        self.moved: dict[str, Value] = {}
        """Counts of members that moved to another sum, by the key of the series that has had these counts since."""
        self._kept: dict[str, set[str]] = {}
        """The sums with these counts."""
        self._of: Counter[str | None] = Counter()
        """The number of members with counts in each sum, with the vanished ones."""

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

    def held(self) -> Iterator[str]:
        """Yield the sums with counts of the page's members from the time when these members had other labels."""
        for key in self._scattered & self._present.keys():
            yield from self._present[key].elsewhere
        for key in self._kept.keys() & self._present.keys():
            yield from self._kept[key]

    def begin(self, page: Collection[str] = ()) -> None:
        """Begin a page; `page` has its keys if they are known in advance."""
        self._next, self._new, self._risen, self._page, self._absent = {}, set(), {}, page, None

    def continues(self, key: str, sample: Sample) -> bool:
        """Return whether a series of the page is unknown and may be one that is not on the page, with other labels."""
        return key not in self and key not in self._next and bool(self._former(key, sample.start))

    def add(self, key: str, into: str | None, sample: Sample) -> Value | None:
        """Return what a series of the page has counted since it was last on one, None for nothing; all of it for a new
        one.

        A series that began later is another one: its process runs another program, or its pid is another process's. One
        of unknown beginning that is lower has begun again. The result of a gauge has no meaning.
        """
        member = self._present.pop(key, None) or self._next.get(key)
        if member is None:
            self._new.add(key)
            member = self._vanished.pop(key, None)
        if member is None:
            member = Member(into, values.zero(sample.value), sample.start)
            self._of[into] += 1
        elif later(member, sample) and member.stays(key):
            member = self._succeed(key, member, sample)
        rise = rise_of(member, sample)
        if rise is not None:
            if sample.start != member.start:
                member.same = None
            member.last, member.start = sample.value, sample.start
            if sample.metric.kind is not Kind.GAUGE:
                self._risen[key] = rise
        self._next[key] = member
        return rise

    def end(self, may_move: Callable[[str, str], bool]) -> list[tuple[str, Value]]:
        """End a page: members that were not on it have vanished.

        Returns keys of sums, each with the counts to subtract from it: counts that members had under other labels, and
        that are in two sums now. The sum of the former labels keeps them. If that sum has no other counts and
        `may_move` allows it, the new sum keeps them instead.
        """
        now, less = self._now(), self._once(may_move)
        for key, member in self._present.items():
            member.vanished = now
            self._vanished[key] = member
        self._present = self._next
        self.begin()
        while self._vanished:
            key = next(iter(self._vanished))
            if len(self._vanished) <= MOST_VANISHED and self._vanished[key].vanished + RETENTION > now:
                break
            self._pop(key)
        return less

    def _once(self, may_move: Callable[[str, str], bool]) -> list[tuple[str, Value]]:
        found: dict[str, list[tuple[str, Value]]] = {}
        less = []
        for key, before, counted in self._again():
            into = self._next[key].into
            if before == into or into is None:
                less += [(before, counted)] if before == into else []
            else:
                found.setdefault(before, []).append((key, counted))
        for before, again in found.items():
            takers = {key for key, _ in again}
            sums = {key: self._next[key].into or "" for key in takers}
            alone = self._of[before] == len(takers) == len(again)
            move = alone and all(may_move(before, sums[key]) for key in takers)
            less += [(before if move else sums[key], counted) for key, counted in again]
            for key in takers if move else ():
                del self._next[key].elsewhere[before]
                self._of[before] -= 1
        return less

    def _again(self) -> Iterator[tuple[str, str, Value]]:
        """Let members of the page take over counts from the same members with former labels.

        Yields the key of each such member, a sum that has counts of it, and these counts.
        """
        missing = self._present
        if not missing and not (self._new and self._vanished):
            return
        self._page, self._absent = self._next, None
        index = self._index()
        for key in self._risen if index else ():
            after = self._next[key]
            for before in self._former(key, after.start) if after.stays(key) in index else ():
                if before in missing or key in self._new:
                    for into, counted in self._take_over(before, self._risen[key]):
                        self._risen[key] = values.minus(self._risen[key], counted)
                        if into is None:
                            continue
                        if into != after.into:
                            self._of[into] += into not in after.elsewhere
                            after.elsewhere[into] = values.plus(
                                after.elsewhere.get(into, values.zero(counted)), counted
                            )
                            self._scattered.add(key)
                        yield key, into, counted

    def _take_over(self, before: str, most: Value) -> list[tuple[str | None, Value]]:
        """Take counts from a member, no more than `most`, and return each sum with its part of them."""
        member = self._present.get(before) or self._vanished[before]
        if not values.alike(most, member.last):
            return []
        taken: list[tuple[str | None, Value]] = []
        for into, part in list(member.parts()):
            counted = values.least(most, part)
            if not values.count(counted):
                continue
            most, member.last = values.minus(most, counted), values.minus(member.last, counted)
            taken.append((into, counted))
            if into in member.elsewhere:
                member.elsewhere[into] = values.minus(part, counted)
                if not values.count(member.elsewhere[into]):
                    del member.elsewhere[into]
                    self._forget(into)
        if not values.count(member.last):
            self._pop(before)
        return taken

    def take(self, key: str, sample: Sample) -> tuple[Value, set[str]]:
        """Forget a series. Return its counts since it was last on a page, and the sums that have its other counts."""
        former = self._former(key, sample.start)
        member = self._pop(key)
        if member is not None:
            rise = rise_of(member, sample)
            return values.zero(sample.value) if rise is None else rise, {*member.elsewhere}
        return self._without(former, sample.value)

    def move(self, key: str, sample: Sample, into: str, page: Callable[[], Mapping[str, Sample]]) -> set[str]:
        """Forget a series that is part of another series, `into`, from now on, where its counts are not counted again.

        `page` returns the series of the next page. Returns the keys of the sums that keep the counts; none if the
        series is not known, or was added to no sum.
        """
        parts = self.leave(key, sample, page)
        if not parts:
            return set()
        has = {it for it, _ in parts}
        counted = values.zero(sample.value)
        for _, part in parts:
            counted = values.plus(counted, part)
        self.moved[into] = values.plus(self.moved[into], counted) if into in self.moved else counted
        kept = self._kept.setdefault(into, set())
        self._of.update(has - kept)
        kept |= has
        return has

    def leave(self, key: str, sample: Sample, page: Callable[[], Mapping[str, Sample]]) -> list[tuple[str, Value]]:
        """Forget a series. Return the keys of the sums with its counts, and these counts; `page` is as in `move`."""
        former = self._former(key, sample.start)
        member = self._pop(key)
        if member is not None:
            return [(into, counted) for into, counted in member.parts() if into is not None]
        on_page = page() if former else {}
        found, value = [], sample.value
        for before in former:
            if before not in on_page or on_page[before].start != sample.start:
                for into, counted in self._take_over(before, value):
                    if into is not None:
                        value = values.minus(value, counted)
                        found.append((into, counted))
        return found

    def _without(self, former: list[str], value: Value) -> tuple[Value, set[str]]:
        """Take over the counts of series. Return the counts of `value` that they lack, and sums with the rest."""
        has = set[str]()
        for before in former:
            for into, counted in self._take_over(before, value):
                if into is not None:  # counts that are in no sum are counted from now on
                    value = values.minus(value, counted)
                    has.add(into)
        return value, has

    def rest(self, key: str, sample: Sample) -> Sample:
        """Return a sample of one of the series in `moved` without the counts that have moved into it."""
        moved = self.moved[key]
        if values.count(sample.value) < values.count(moved):  # it has begun again
            self._keep_no_more(key)
            return sample
        return Sample(sample.metric, sample.labels, values.minus(sample.value, moved), sample.start)

    def end_of(self, key: str) -> None:
        """Forget a series that has ended; another one of its key counts from 0."""
        self._keep_no_more(key)
        self._pop(key)

    def _keep_no_more(self, key: str) -> None:
        self.moved.pop(key, None)
        for into in self._kept.pop(key, ()):
            self._forget(into)

    def _former(self, key: str, start: float | None) -> list[str]:
        """Return the keys of members that are not on the page and may be the same series with other labels."""
        if start is None or key in self:
            return []
        index = self._index()
        of = index.get(same(key, start), ()) if index else ()
        return [it for it in of if it != key and it not in self._page and it in self and gpus_agree(it, key)]

    def _index(self) -> dict[int, list[str]]:
        """Return the keys of members that were not on the page at the first call, by the hash of what stays of them."""
        if self._absent is None:
            self._absent = {}
            for key, member in chain(self._present.items(), self._vanished.items()):
                if key not in self._page and (stays := member.stays(key)):
                    self._absent.setdefault(stays, []).append(key)
        return self._absent

    def _succeed(self, key: str, member: Member, sample: Sample) -> Member:
        """Return a new member for a process with the labels of an earlier one that vanished or was relabelled."""
        member.vanished = self._now()
        self._vanished[key.replace("\0", f"\1{member.start}\0", 1)] = member
        self._scattered.discard(key)
        self._of[member.into] += 1
        return Member(member.into, values.zero(sample.value), sample.start)

    def _pop(self, key: str) -> Member | None:
        member = self._present.pop(key, None) or self._vanished.pop(key, None)
        if member is not None:
            for into in (member.into, *member.elsewhere):
                self._forget(into)
            self._scattered.discard(key)
        return member

    def _forget(self, into: str | None) -> None:
        self._of[into] -= 1
        if not self._of[into]:
            del self._of[into]
