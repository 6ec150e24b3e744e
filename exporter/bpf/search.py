"""The search for users of libraries: in processes that the kernel's records hint at, and from time to time in all."""

from __future__ import annotations

import bisect
import operator
import threading
import time
from collections import defaultdict
from collections.abc import Iterable

from exporter.bpf.attachments import Attachments
from exporter.bpf.hints import Hint, Hints
from exporter.bpf.library import Vanished, Wait
from exporter.bpf.mappings import Mapping
from exporter.bpf.patient_lister import PatientLister
from exporter.bpf.status import LATENCY_BOUNDS
from exporter.bpf.users import LibraryUsers
from exporter.bpf.watch import Batch
from exporter.model import Distribution
from exporter.process_end import has_ended

MAX_UNINTERESTING = 1 << 13

_FORK_DELAY = 0.1
"""Seconds until a forked process is looked at: most run another program by then."""
_KNOWN_DELAY, _VANISHED_DELAY = 0.2, 0.1
_LONGEST_BACKOFF = 0.5
_SHORTEST_RESYNC = 1.0
_COSTLY = 0.02
SHARE, _LONGEST_REST = 0.1, 2.0
"""Limits on a node that cannot list a single process: share of one processor for listings, longest pause in seconds."""
_ATTEMPTS, _ATTEMPTS_TO_END = 3, 10
"""The last of the latter is 100 s after the first, as each waits twice as long as the one before."""
_START = operator.attrgetter("start")


class Search:
    """Finds which processes use which libraries, and has these attached to. One thread at a time.

    It stops in the middle of a look once `closing` is set. `resync` is how often everything is looked at, in seconds.
    """

    def __init__(
        self,
        lister: PatientLister,
        users: LibraryUsers,
        attachments: Attachments,
        closing: threading.Event,
        resync: float,
    ) -> None:
        self._lister, self._users, self._attachments = lister, users, attachments
        self._closing, self._resync = closing, resync
        self._hints = Hints()
        self._uninteresting: set[bytes] = set()
        self._latencies = [0] * (len(LATENCY_BOUNDS) + 1)
        self._latency_sum = 0.0
        self._unsure = False
        self.lost = self.late = 0
        self.last_resync, self.next_resync, self.next_listing = time.monotonic(), 0.0, 0.0
        self.complete = self.settled = False
        """True once all processes have been examined, and once a round since then deferred no file."""

    @property
    def latencies(self) -> Distribution:
        """The times from a mapping until its library was attached to."""
        return Distribution(LATENCY_BOUNDS, tuple(self._latencies), self._latency_sum)

    def next_look(self) -> float:
        """Return when a process is to be looked at, on time.monotonic."""
        return max(self._hints.next_due(), self.next_listing)

    def note(self, batch: Batch) -> None:
        """Takes note of the kernel's records: of exec at once, of all others as hints where to look."""
        for mapped in batch.mapped:
            if mapped.file not in self._uninteresting:
                self._add_hint(mapped.pid, mapped.time, 0.0, (mapped.address, mapped.file))
            elif mapped.pid in self._users:  # perhaps it runs another program now
                self._add_hint(mapped.pid, mapped.time, _KNOWN_DELAY)
        for pid in self._users.replace(batch.execs, self._attachments, self._hints):
            self._add_hint(pid, time.monotonic_ns(), 0.0)
        for fork in sorted(batch.forks):
            if fork.parent in self._users or fork.parent in self._hints:
                self._add_hint(fork.pid, fork.time, _FORK_DELAY)

    def _add_hint(self, pid: int, since_ns: int, delay: float, place: tuple[int, bytes] | None = None) -> None:
        if not self._hints.add(pid, since_ns, delay, place):
            self.count_lost(1)

    def look_again(self, pids: Iterable[int]) -> None:
        """Has processes looked at soon, as after a mapping."""
        for pid in pids:
            self._add_hint(pid, time.monotonic_ns(), _KNOWN_DELAY)

    def look(self) -> None:
        """Looks at the processes of the hints that are due."""
        due = self._hints.take_due()
        if not due:
            return
        began = self._lister.cpu_seconds
        began_ns = time.monotonic_ns()
        mappings = _by_process(self._lister.of(due))
        self._users.listed_ns = began_ns, time.monotonic_ns()
        cost = self._lister.cpu_seconds - began
        if not self._lister.one_process:
            self.next_listing = time.monotonic() + min(cost / SHARE, _LONGEST_REST)
        self._await_ends({pid: hint for pid, hint in due.items() if pid not in mappings})
        if self._users.any_queued(mappings):
            self._users.deliver_ends(self._attachments)
        self._users.check_images((pid, found[-1].image) for pid, found in mappings.items())
        for pid in self._attachments.begin_round(due):
            self._look_at(pid, mappings.get(pid, []), due[pid])
            if cost > _COSTLY:  # one that maps endlessly, or very much, gets a tenth of our time
                self._hints.rest(pid, min(10 * cost, _LONGEST_BACKOFF))
        self.settled |= self.complete and not self._attachments.contended

    def _await_ends(self, hints: dict[int, Hint]) -> None:
        """Takes note of processes that map nothing any more: they have ended, or are about to, which may take seconds.

        They were not listed before, and may have called whatever is attached to.
        """
        ended = set(filter(has_ended, hints))
        self._users.queue_ends((), ended)
        for pid, hint in hints.items():
            if pid not in ended and hint.attempts < _ATTEMPTS_TO_END:
                self._hints.add_again(pid, hint, _VANISHED_DELAY * 2**hint.attempts, hint.attempts + 1)

    def _look_at(self, pid: int, mappings: list[Mapping], hint: Hint) -> None:
        vanished = False
        wait: float | None = None
        since = None if self._unsure else hint
        # Attached files first: it is known of a new one then whether it passes calls on to one of these.
        for mapping in sorted(mappings, key=lambda mapping: not self._attachments.verdicts.is_attached(mapping.file)):
            if self._closing.is_set():
                return
            try:
                if self._add_use(mapping, mapping.started, since) and hint.places:
                    self._observe(time.monotonic_ns() - hint.since_ns)
            except Vanished:
                vanished = True
            except Wait as later:
                wait = max(wait or 0.0, later.seconds)
        if wait is not None:
            self._hints.add_again(pid, hint, wait, hint.attempts)
        elif vanished and hint.attempts < _ATTEMPTS:
            self._hints.add_again(pid, hint, _VANISHED_DELAY, hint.attempts + 1)
        self._remember_uninteresting(mappings, hint.places)

    def _add_use(self, mapping: Mapping, since_ns: int, hint: Hint | None) -> bool:
        """Makes the process a user of the mapped library. Returns False if that was known, or the file is none.

        Without a hint the mapping was made at `since_ns` at the earliest.
        """
        self._users.check_images([(mapping.pid, mapping.image)])  # also one that changes while it is listed
        if self._attachments.verdicts.is_uninteresting(mapping.file):
            return False
        with self._attachments.on_account_of(mapping.pid):
            attached = self._attachments.of(mapping)
            # A process may have mapped one file tens of thousands of times.
            if attached is None or self._users.knows(mapping.pid, attached):
                return False
            times = (hint.since_ns, hint.mapped_ns(mapping)) if hint else (since_ns, since_ns)
            return self._users.use(mapping.pid, mapping.image, attached, *times)

    def _remember_uninteresting(self, mappings: list[Mapping], places: list[tuple[int, bytes]]) -> None:
        """Takes note of files that hold nothing of interest: their records are no hints any more."""
        ordered = sorted(mappings, key=_START) if places else []
        starts = [mapping.start for mapping in ordered]
        for address, file in places:
            at = bisect.bisect_right(starts, address) - 1
            if at >= 0 and address < ordered[at].end and self._attachments.verdicts.is_uninteresting(ordered[at].file):
                if len(self._uninteresting) >= MAX_UNINTERESTING:
                    self._uninteresting.clear()
                self._uninteresting.add(file)

    def look_at_all(self) -> None:
        """Looks at every process: at start, when records were lost, and from time to time."""
        hints = self._hints.take_all()
        attached = len(self._attachments)
        self._attachments.verdicts.retry()
        began_ns = time.monotonic_ns()
        mappings = self._lister.everything()
        self._users.listed_ns = began_ns, time.monotonic_ns()
        running = {mapping.pid: mapping.image for mapping in mappings}
        if self.complete:
            self._attachments.begin_round((), shallow=True)
        self._users.check_images(running.items())
        for mapping in mappings:
            if self._closing.is_set():
                return
            hint = hints.get(mapping.pid)
            since = None if self._unsure else hint
            since_ns = since.since_ns if since else mapping.started
            try:
                self.late += self._add_use(mapping, since_ns, since) and not hint and self.complete
            except Vanished:
                self._add_hint(mapping.pid, since_ns, _VANISHED_DELAY)
            except Wait as later:
                self._add_hint(mapping.pid, since_ns, later.seconds)
        self._await_ends({pid: hint for pid, hint in hints.items() if pid not in running})
        listed = running.keys() | self._lister.left_out
        self._users.queue_ends([pid for pid in self._users.without_pidfd() if pid not in listed])
        if len(self._attachments) > attached:  # perhaps under the name of a file that held nothing before
            self._uninteresting.clear()
        self._unsure = False
        self.last_resync = time.monotonic()
        self.next_resync = self.last_resync + self._resync
        self.complete = True
        self.settled |= not self._attachments.contended

    def count_lost(self, count: int) -> None:
        """Counts lost records: what is found before the next look at everything may have been mapped at any time."""
        self.lost += count
        self._unsure = True
        self.resync_soon()

    def resync_soon(self) -> None:
        self.next_resync = min(self.next_resync, self.last_resync + _SHORTEST_RESYNC)

    def _observe(self, latency_ns: int) -> None:
        seconds = latency_ns / 1e9
        self._latencies[bisect.bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self._latency_sum += seconds


def _by_process(mappings: Iterable[Mapping]) -> dict[int, list[Mapping]]:
    grouped = defaultdict(list)
    for mapping in mappings:
        grouped[mapping.pid].append(mapping)
    return grouped
