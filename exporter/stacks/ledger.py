"""Stacks and what they allocated and launched: the sums that profiles are made of.

Numbers of stacks come from the child that unwinds, and begin again with each child; here a stack has one index for all
time. What was allocated is known before its stack is, so it waits for that.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from exporter.stack_profiles.model import Stack
from exporter.stacks.metrics import TRUNCATIONS
from exporter.stacks.table import NO_STACK, StackTable

MOST_ROWS, MOST_WAITING, MOST_ENDED = 1 << 17, 1 << 14, 1024
IN_FLIGHT = 512
"""Newest stacks that may be of allocations that have not returned yet, so that they are not among the live ones."""


class AllocationSite(NamedTuple):
    """The owner of memory, its kind and its place: `memory` and `device` as in bpf/cuda/cuda.h. `since` counts the
    programs of one pid. The pid 0 has what programs did that ended long ago; of their memory the device is not known.
    """

    pid: int
    since: int
    memory: int
    device: int


class AllocationSums(NamedTuple):
    """Bytes and number of allocations."""

    bytes: int
    objects: int


class StackLedger:
    """Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table = StackTable()
        self._ended: deque[tuple[int, int]] = deque()
        self._of_id: OrderedDict[int, int] = OrderedDict()
        self._settled = 0
        self._waiting: OrderedDict[int, tuple[AllocationSite, int]] = OrderedDict()
        self._allocated: defaultdict[tuple[AllocationSite, int], list[int]] = defaultdict(lambda: [0, 0])
        self._launched: Counter[tuple[int, int, int]] = Counter()
        self._since: Counter[int] = Counter()
        self._taken: set[int] = set()
        self._taken_launches: Counter[tuple[int, int]] = Counter()
        self.truncated = Counter(dict.fromkeys(TRUNCATIONS, 0))

    def begin(self) -> None:
        """Begin with another child, which numbers stacks from the start; what waits for the one before has no stack."""
        with self._lock:
            self._table.begin()
            for place, size in self._waiting.values():
                self._add(place, NO_STACK, size)
            self._waiting.clear()
            self._of_id.update(dict.fromkeys(self._taken, NO_STACK))
            self._settled += len(self._taken)
            self._taken.clear()
            for (pid, since), weight in self._taken_launches.items():
                self._add_launches(pid, since, NO_STACK, weight)
            self._taken_launches.clear()

    def taken(self, number: int, pid: int, weight: int) -> int:
        """Take note of a stack that `unwound` follows for, unless the child ends first. `number` is that of an
        allocation, 0 for a launch. Returns which program of its pid that is.
        """
        with self._lock:
            if number:
                self._taken.add(number)
            else:
                self._taken_launches[pid, self._since[pid]] += weight
            return self._since[pid]

    def program(self, pid: int) -> int:
        """Return which program of its pid runs now."""
        with self._lock:
            return self._since[pid]

    def launched(self, pid: int, weight: int) -> None:
        """Count launches without a stack, of the program that a pid runs now."""
        with self._lock:
            self._add_launches(pid, self._since[pid], NO_STACK, weight)

    def define(self, number: int, frames: Iterable[Any]) -> None:
        """Take further frames of a stack of the child. Raises ValueError, TypeError for what is no frame."""
        with self._lock:
            self._table.define(number, frames)

    def unwound(self, message: Mapping[str, Any]) -> None:
        """Take the stack of one allocation or launch: a message of child.py with a `number`.

        Raises ValueError, TypeError and KeyError for what is no such message.
        """
        truncated = message.get("truncated")
        if truncated and truncated not in TRUNCATIONS:
            raise ValueError("no reason why a stack is truncated")
        stack, number, pid = message.get("number"), int(message["id"]), int(message["pid"])
        with self._lock:
            index = NO_STACK if stack is None else self._table.index(int(stack))
            if truncated:
                self.truncated[truncated] += 1
            if not number:
                since, weight = int(message["program"]), int(message["weight"])
                self._taken_launches[pid, since] -= weight
                if self._taken_launches[pid, since] <= 0:
                    del self._taken_launches[pid, since]
                self._add_launches(pid, since, index, weight)
                return
            self._taken.discard(number)
            self._settle(number, index)

    def lost(self, number: int, pid: int, weight: int) -> None:
        """Take note of a stack that is not unwound, and was not taken note of before."""
        with self._lock:
            if number:
                self._settle(number, NO_STACK)
            else:
                self._add_launches(pid, self._since[pid], NO_STACK, weight)

    def allocated(self, pid: int, memory: int, device: int, size: int, number: int) -> None:
        """Count a successful allocation; `number` is that of its stack, 0 for none."""
        with self._lock:
            place = AllocationSite(pid, self._since[pid], memory, device)
            index = self._of_id.get(number) if number else NO_STACK
            if index is not None:
                self._add(place, index, size)
                return
            self._waiting[number] = place, size
            if len(self._waiting) > MOST_WAITING:
                _, (place, size) = self._waiting.popitem(last=False)
                self._add(place, NO_STACK, size)

    def ended(self, pids: Collection[int]) -> None:
        """Begin with another program for each of these pids, as the one before has ended or was replaced."""
        with self._lock:
            for pid in pids:
                self._ended.append((pid, self._since[pid]))
                self._since[pid] += 1
            if len(self._ended) > 2 * MOST_ENDED:
                self._fold({self._ended.popleft() for _ in range(MOST_ENDED)}, stacks=True)

    def stack_of(self, number: int) -> int:
        """Return the index of the stack of an allocation; NO_STACK where it was not taken."""
        with self._lock:
            return self._of_id.get(number, NO_STACK) if number else NO_STACK

    def unknown(self, numbers: Collection[int]) -> list[int]:
        """Return the numbers of allocations that have a stack which is not here yet."""
        with self._lock:
            return [number for number in numbers if number and number not in self._of_id]

    @property
    def settled(self) -> int:
        """Return how many stacks of allocations came here, or are known to be lost, in all time."""
        return self._settled

    def keep(self, live: Collection[int], settled: int) -> None:
        """Forget the stacks of allocations that are not live any more, once that is worth while. `settled` is what the
        property was before `live` was read: later ones may be live.
        """
        with self._lock:
            later = self._settled - settled + MOST_WAITING // 2
            if len(self._of_id) > 2 * len(live) + later + MOST_WAITING // 2:
                self._keep(live, later)

    @property
    def waiting(self) -> int:
        """Return how many allocations have a stack that is not here yet."""
        return len(self._waiting)

    @property
    def waiting_launches(self) -> int:
        """Return how many launches stand for those with a stack that is not here yet."""
        with self._lock:
            return sum(self._taken_launches.values())

    @property
    def remembered(self) -> int:
        return len(self._of_id)

    def stack(self, index: int) -> Stack:
        with self._lock:
            return self._table.stack(index)

    def stack_numbered(self, number: Any) -> Stack:
        """Return a stack by the child's number, None for none. Raises ValueError, TypeError for what is no number."""
        with self._lock:
            return () if number is None else self._table.stack(self._table.index(int(number)))

    @property
    def refused(self) -> int:
        """Stacks for which the table had no room."""
        return self._table.refused

    @property
    def needs_room(self) -> bool:
        """Return whether the table is full, and make_room may change that."""
        with self._lock:
            return self._table.is_full and bool(self._ended or self._table.is_worn)

    def make_room(self, live: Collection[int], settled: int) -> bool:
        """Forget the stacks of programs that have ended, and of freed memory, where the table is full. Returns whether
        the child has to number stacks from the start. Arguments are those of `keep`.
        """
        with self._lock:
            if not self._table.is_full or not (self._ended or self._table.is_worn):
                return False
            self._keep(live, self._settled - settled + IN_FLIGHT)
            self._fold(set(self._ended), stacks=False)
            self._ended.clear()
            used = {index for _, index in self._allocated} | {index for _, _, index in self._launched}
            self._table.keep(used.union(self._of_id.values()))
            return True

    def allocations(self) -> list[tuple[AllocationSite, int, AllocationSums]]:
        """Return everything allocated so far by place and index of its stack; of what waits none."""
        with self._lock:
            found = [(place, index, AllocationSums(*sums)) for (place, index), sums in self._allocated.items()]
            return found + [(place, NO_STACK, AllocationSums(size, 1)) for place, size in self._waiting.values()]

    def launches(self) -> list[tuple[int, int, int, int]]:
        """Return pid, program of that pid, index of the stack and number of launches; of what waits none."""
        with self._lock:
            found = [(pid, since, index, count) for (pid, since, index), count in self._launched.items()]
            return found + [(pid, since, NO_STACK, count) for (pid, since), count in self._taken_launches.items()]

    def _keep(self, live: Collection[int], later: int) -> None:
        kept = set(islice(reversed(self._of_id), later)).union(live)
        self._of_id = OrderedDict((number, index) for number, index in self._of_id.items() if number in kept)

    def _settle(self, number: int, index: int) -> None:
        self._of_id[number] = index
        self._settled += 1
        if waiting := self._waiting.pop(number, None):
            self._add(waiting[0], index, waiting[1])

    def _add_launches(self, pid: int, since: int, index: int, weight: int) -> None:
        if (pid, since, index) not in self._launched and len(self._launched) >= MOST_ROWS:
            index = NO_STACK
        self._launched[pid, since, index] += weight

    def _fold(self, ended: Collection[tuple[int, int]], stacks: bool) -> None:
        """Add up what these programs and those folded before did, by kind of memory and, if wanted, by stack."""
        folded = {*ended, (0, 0)}
        for place, index in [key for key in self._allocated if key[0][:2] in folded]:
            sums = self._allocated.pop((place, index))
            rest = self._allocated[AllocationSite(0, 0, place.memory, 0), index if stacks else NO_STACK]
            rest[:] = map(sum, zip(rest, sums, strict=True))
        for pid, since, index in [key for key in self._launched if key[:2] in folded]:
            count = self._launched.pop((pid, since, index))
            self._launched[0, 0, index if stacks else NO_STACK] += count

    def _add(self, place: AllocationSite, index: int, size: int) -> None:
        if (place, index) not in self._allocated and len(self._allocated) >= MOST_ROWS:
            index = NO_STACK
        sums = self._allocated[place, index]
        sums[0] += size
        sums[1] += 1
