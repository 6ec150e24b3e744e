"""Looks for processes that hang, and keeps the stacks of all threads of their jobs' processes on this node."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from exporter.faults.processes import uninterruptible
from exporter.model import Labels, Unavailable
from exporter.model import Sample as Shown
from exporter.profile import JOB
from exporter.resolve.communicators import Communicators
from exporter.stack_profiles import hangs
from exporter.stack_profiles.hangs import Standing
from exporter.stack_profiles.model import LABELS, Stack, StackProfile, StackSample
from exporter.stack_profiles.published import StackProfiles
from exporter.stacks import metrics
from exporter.stacks.threads import MOST_OF_PROCESS, Key

REST_SECONDS = 600.0
"""Time between two profiles of hangs."""
LEAST_LOOK, MOST_LOOK = 0.5, 30.0
MOST_PROCESSES = 64
"""Processes of one profile, and of which threads are followed."""

log = logging.getLogger(__name__)


class HangWatch:
    """A thread that looks. `seconds` is how long a call may last.

    `processes` returns the pids that use GPUs, `labels_of` their labels, `snapshot` the stacks of all their threads.
    """

    def __init__(
        self,
        seconds: float,
        profiles: StackProfiles,
        communicators: Communicators,
        proc: Path,
        processes: Callable[[], Collection[int]],
        labels_of: Callable[[int], Labels],
        snapshot: Callable[[Collection[int]], dict[Key, Stack]],
    ) -> None:
        self._seconds, self._profiles, self._communicators, self._proc = seconds, profiles, communicators, proc
        self._processes, self._labels_of, self._snapshot = processes, labels_of, snapshot
        self._stuck = StuckThreads(proc)
        self._kept: dict[int, int] = {}
        """The beginning of the newest call of each process that is in a profile."""
        self._rested = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hangs", daemon=True)

    def start(self) -> None:
        self._profiles.standing.add("stuck", lambda: self._stuck.look(self._processes()))
        self._thread.start()

    def close(self) -> None:
        """End the thread; a snapshot that waits for the kernel is left alone."""
        self._closing.set()
        self._profiles.standing.remove("stuck")
        if self._thread.ident is not None:
            self._thread.join(2.0)

    def collect(self) -> Iterator[Shown]:
        """Yield the number of profiles."""
        yield metrics.HANGS.sample(self._profiles.hangs.count)

    def look(self) -> None:
        """Keep a profile if a call lasts too long that is in none yet, and the last one is long enough ago."""
        now = time.monotonic_ns()
        late = {
            pid: it for pid, it in self._profiles.standing.oldest().items() if now - it.since_ns > self._seconds * 1e9
        }
        self._kept = {pid: since for pid, since in self._kept.items() if pid in late}
        new = [it for pid, it in late.items() if self._kept.get(pid) != it.since_ns]
        if not new or time.monotonic() < self._rested:
            return
        first = min(new, key=lambda call: call.since_ns)
        pids = [first.pid, *sorted(self._of_job(first.pid) - {first.pid})][:MOST_PROCESSES]
        self._rested = time.monotonic() + REST_SECONDS
        self._keep(first, pids)
        self._kept |= {pid: late[pid].since_ns for pid in pids if pid in late}

    def _keep(self, call: Standing, pids: Collection[int]) -> None:
        time_ns, now_ns = time.time_ns(), time.monotonic_ns()
        found = self._snapshot(pids)
        labels = {pid: self._sample_labels(pid) for pid in {pid for pid, _ in found}}
        samples = tuple(StackSample(stack, labels[pid], (1,)) for (pid, _), stack in found.items())
        comment = f"{call.what} of process {call.pid} had not returned for {(now_ns - call.since_ns) / 1e9:.0f} s"
        profile = StackProfile(hangs.TYPES, samples, hangs.TYPES[0], time_ns=time_ns, comments=(comment,))
        kept = self._profiles.hangs.add(profile, self._sample_labels(call.pid), call, now_ns, time_ns)
        log.warning(
            "%s: /debug/pprof/gpu_hang?n=%d has the stacks of %d threads (processes: %d)",
            comment,
            kept.number,
            len(found),
            len(pids),
        )

    def _of_job(self, pid: int) -> set[int]:
        """Return the processes of this node that are in a communicator with a process, or in its pod or job."""
        related = self._communicators.peers(pid)
        job = self._job(pid)
        return related | {other for other in self._processes() if job and self._job(other) == job}

    def _job(self, pid: int) -> Labels:
        labels = self._labels_of(pid)
        return {name: labels[name] for name in JOB if name != "gpu" and labels.get(name)}

    def _sample_labels(self, pid: int) -> Labels:
        rank = self._communicators.ranks().get(pid)
        labels = {**self._labels_of(pid), **({} if rank is None else {"rank": str(rank)})}
        return {name: labels[name] for name in LABELS if labels.get(name)}

    def _run(self) -> None:
        while not self._closing.wait(min(max(self._seconds / 4, LEAST_LOOK), MOST_LOOK)):
            try:
                self.look()
            except Unavailable as error:
                log.warning("there are no stacks of jobs that hang: %s", str(error).partition("\n")[0])
                return
            except Exception:
                log.exception("the stacks of a job that hangs could not be kept")


class StuckThreads:
    """Follows the threads of GPU processes in state D: one has not run while the kernel has not switched to it."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._since: dict[Path, tuple[tuple[bytes, ...], int]] = {}

    def look(self, pids: Collection[int]) -> Iterator[Standing]:
        """Yield the threads in state D, each since the first look at which it was and has not run since."""
        before, self._since = self._since, {}
        for pid in sorted(pids)[:MOST_PROCESSES]:
            for thread in self._threads(pid):
                try:
                    switches = uninterruptible(thread)
                except OSError:
                    continue  # it has ended
                if switches is None:
                    continue
                known = before.get(thread)
                since = known[1] if known and known[0] == switches else time.monotonic_ns()
                self._since[thread] = switches, since
                yield Standing(pid, since, "a system call in state D")

    def _threads(self, pid: int) -> list[Path]:
        try:
            return [*(self._proc / f"{pid}/task").iterdir()][:MOST_OF_PROCESS]
        except OSError:
            return []
