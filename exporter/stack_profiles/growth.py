"""Stacks with memory in use that only grows: where a leak is, if there is one."""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from exporter.stack_profiles.bounds import labels, printable
from exporter.stack_profiles.model import StackProfile, StackSample
from exporter.stack_profiles.published import StackProfiles
from exporter.stack_profiles.select import Key, added

STEPS = 10
"""Parts of the window: profiles are compared that often within it."""
LEAST_STEPS = 3
"""Increases that a stack needs within the window to be shown: memory that is allocated once is no leak."""
MOST_STACKS = 1024
"""Stacks that are followed, those with most in use."""
MOST_SHOWN = 20
MOST_FRAMES = 64


@dataclass(slots=True)
class _Followed:
    """A stack and its bytes in use since they fell last, the newest at the end."""

    sample: StackSample
    values: list[int] = field(default_factory=list)

    @property
    def increases(self) -> int:
        return sum(after > before for before, after in zip(self.values, self.values[1:], strict=False))


@dataclass(frozen=True, slots=True)
class _Look:
    """Time of a profile, in seconds of the monotonic clock, and the bytes in use of each process at that time."""

    at: float
    totals: Counter[str]


@dataclass(frozen=True, slots=True)
class Growing:
    """A stack, its bytes in use at the begin of the window and now, and the number of increases in between."""

    sample: StackSample
    before: int
    now: int
    increases: int


class Growth:
    """Compares the in-use profiles of a window of time in seconds. Safe from any thread.

    A stack of a process is shown when its bytes in use have grown at LEAST_STEPS of the comparisons since they fell
    last, if they did within the window, and those of the whole process have grown too. `now` is the monotonic clock.
    """

    def __init__(self, published: StackProfiles, window: float, now: Callable[[], float] = time.monotonic) -> None:
        self._published, self.window, self._now = published, window, now
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._followed: dict[Key, _Followed] = {}
        self._looks: list[_Look] = []
        self._problem = "no profile has been taken yet"

    def start(self) -> None:
        """Start a thread that takes a profile at each step of the window."""
        threading.Thread(target=self._run, name="growing-stacks", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def look(self) -> None:
        """Take the in-use profile and compare. A source without one is tried again at the next step."""
        source = self._published.source
        try:
            if problem := source.problem():
                raise RuntimeError(problem)
            profile = source.inuse()
        except (OSError, RuntimeError) as error:
            with self._lock:
                self._followed, self._looks, self._problem = {}, [], str(error)
            return
        with self._lock:
            self._problem = ""
            self._add(profile)

    def growing(self) -> list[Growing]:
        """Return the stacks that grow, the fastest first, MOST_SHOWN at most."""
        with self._lock:
            followed = [it for it in self._followed.values() if it.increases >= LEAST_STEPS]
            followed = [it for it in followed if self._process_grew(it)]
        found = (Growing(it.sample, it.values[0], it.values[-1], it.increases) for it in followed)
        ranked = sorted(found, key=lambda stack: stack.before - stack.now)
        return ranked[:MOST_SHOWN]

    def document(self) -> dict[str, Any]:
        """Return what grows for JSON: names are printable, stacks begin at the leaf and have MOST_FRAMES at most."""
        found = self.growing()
        with self._lock:
            covered = self._now() - self._looks[0].at if self._looks else 0.0
            looks, problem = len(self._looks), self._problem
        return {
            "window": self.window,
            "covered": min(covered, self.window),
            "profiles": looks,
            "problem": printable(problem),
            "stacks": [
                {
                    "labels": dict(labels(it.sample)),
                    "before": it.before,
                    "now": it.now,
                    "increases": it.increases,
                    "stack": [
                        {
                            "function": printable(frame.name),
                            "file": printable(frame.file),
                            "line": frame.line,
                            "kind": frame.kind,
                        }
                        for frame in it.sample.stack[:MOST_FRAMES]
                    ],
                }
                for it in found
            ],
        }

    def _run(self) -> None:
        while True:
            self.look()
            if self._ended.wait(self.window / STEPS):
                return

    def _add(self, profile: StackProfile) -> None:
        """Add a profile: stacks that fell begin again, and so do those that were not in the one before."""
        totals: Counter[str] = Counter()
        for sample in profile.samples:
            totals[sample.labels.get("pid", "")] += sample.values[0]
        self._looks = [*self._looks, _Look(self._now(), totals)][-(STEPS + 1) :]
        values = {key: of[0] for key, of in added(profile).items()}
        earlier, self._followed = self._followed, {}
        for key in heapq.nlargest(MOST_STACKS, values, key=values.__getitem__):
            known, value = earlier.get(key), values[key]
            if known is None or value < known.values[-1]:
                known = _Followed(StackSample(key[0], dict(key[1]), (value,)))
            self._followed[key] = known
            known.values = [*known.values, value][-(STEPS + 1) :]

    def _process_grew(self, followed: _Followed) -> bool:
        """Return whether the process of a stack has more in use than when the stack began to grow."""
        pid, begin = followed.sample.labels.get("pid", ""), self._looks[-len(followed.values)]
        return self._looks[-1].totals[pid] > begin.totals[pid]
