"""Answers to /metrics: the profile and the limit of their series, and what the last answer cost."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from exporter.model import Kind, Metric, Sample
from exporter.moves import MovesReader
from exporter.profile import Profile
from exporter.series import ABOUT, MOST, SeriesLimit
from exporter.values import lines

SERIES = Metric(
    "accel_exporter.page.series",
    "Series of the last answer to a request for all collectors in the exporter's own profile. Each bucket of a "
    "histogram is one series.",
    Kind.GAUGE,
)
BYTES = Metric(
    "accel_exporter.page.size",
    "Size of the last answer of /metrics to a request for all collectors, before compression.",
    Kind.GAUGE,
    "By",
)
SECONDS = Metric(
    "accel_exporter.page.render.time",
    "Time to write the last answer of /metrics to a request for all collectors, series limit and compression "
    "included, runs of the collectors not included.",
    Kind.GAUGE,
    "s",
)
MOST_SELECTIONS = 8
"""Selections of some collectors, each with a profile, that are remembered; of more the least recently requested is
forgotten. Those of all collectors always are: nobody who requests others makes the counters of a server's page fall.
"""

Selection = frozenset[str] | None
Gather = Callable[[], Sequence[Sample]]
"""Returns the samples of an answer. One that is called later never returns older ones."""
Write = Callable[[Sequence[Sample]], tuple[bytes, int]]
"""Returns an answer, and its size in bytes before compression."""


class Pages:
    """The answers to /metrics: samples reduced to a profile, `most` series at most (0: no limit). Safe from any thread.

    What was added up and folded is remembered for each selection of collectors (collect[] and exclude[]; None: all) and
    profile: a counter that one request leaves out is not gone for another.
    """

    def __init__(
        self,
        most: int,
        profile: Profile,
        clock: Callable[[], float] = time.perf_counter,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._profile, self._clock, self._now = most, profile, clock, now
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[Selection, Profile], tuple[SeriesLimit, MovesReader]] = OrderedDict()
        self._last: tuple[int, int, float] | None = None

    def profile(self, name: str | None) -> Profile:
        """Return the profile of a request's parameter; None stands for that of the exporter.

        Raises ValueError for an unknown one, and one with more series than collectors make.
        """
        wanted = self._profile if name is None else Profile.of(name)
        if wanted > self._profile:
            own = self._profile.name.lower()
            raise ValueError(
                f"profile {name} has more series than profile {own}: start the exporter with --profile={name}"
            )
        return wanted

    def write(self, gather: Gather, names: Selection, profile: Profile, write: Write) -> bytes:
        """Return the answer that `write` makes of the samples of a profile within the limit."""
        began = self._clock()
        within = self.within(gather, names, profile)
        body, size = write(within)
        if names is None and profile is self._profile:
            self._last = lines(within), size, self._clock() - began
        return body

    def within(self, gather: Gather, names: Selection, profile: Profile) -> Sequence[Sample]:
        """Return the samples of a profile within the limit.

        `gather` is called under the lock: with samples older than those of the answer before, counters would be taken
        for counters that began again.
        """
        if not self._most and profile is Profile.DEBUG:
            return gather()
        with self._lock:
            if (names, profile) not in self._known:
                limit = SeriesLimit("page", self._most or MOST, self._now, profile, own=ABOUT)
                self._known[names, profile] = limit, MovesReader()
            limit, reader = self._known[names, profile]
            self._known.move_to_end((names, profile))
            of_some = [selection for selection in self._known if selection[0] is not None]
            for selection in of_some[:-MOST_SELECTIONS]:
                del self._known[selection]
            samples = gather()
            return limit.apply(samples, reader.read(samples))

    def collect(self) -> Iterator[Sample]:
        """Yield what the last answer cost; nothing before the first one."""
        if self._last is not None:
            for metric, value in zip((SERIES, BYTES, SECONDS), self._last, strict=True):
                yield metric.sample(value)
