"""What the parent knows of the GPUs: the messages of the child put together, and what of it still counts."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from exporter.nvml.snapshot import Driver, Event, Gpu, Identity, Read, Readings, Snapshot, Started

MOST_EVENTS = 256
FRESH = 3
"""A set's readings count for so many of its intervals."""


@dataclass(slots=True)
class _Entry:
    identity: Identity
    state: str = "ok"
    sets: dict[str, Readings] = field(default_factory=dict)


class Known:
    """Safe from any thread. `intervals` are seconds by set."""

    def __init__(self, intervals: Mapping[str, float]) -> None:
        self._intervals = intervals
        self._lock = threading.Lock()
        self._state, self._reason = "starting", ""
        self._driver: Driver | None = None
        self._entries: dict[str, _Entry] = {}
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)

    def ended(self, text: str, absent: bool) -> None:
        """The child has; readings grow old, or count no more because there is no NVML."""
        with self._lock:
            self._state, self._reason = ("absent" if absent else "restarting"), text
            if absent:
                self._entries.clear()

    def released(self, seconds: float) -> None:
        """The GPUs are given back, for so long: no reading counts any more."""
        with self._lock:
            self._state, self._reason = "released", f"on request, for {seconds:.0f} s more"
            for entry in self._entries.values():
                entry.sets = {}

    def started(self, message: Started, shunned: Collection[int]) -> None:
        """These GPUs are there. One that was and is not any more is lost, unless it is shunned for having stalled."""
        with self._lock:
            self._state, self._reason, self._driver = "running", "", message.driver
            before, self._entries = self._entries, {it.key: _Entry(it) for it in message.gpus}
            for key, entry in before.items():
                if key in self._entries:
                    self._entries[key].sets = entry.sets
                elif entry.identity.uuid:
                    stalled = entry.identity.index in shunned
                    self._entries[key] = replace(entry, state="stalled" if stalled else "lost", sets={})
            for index in shunned:
                if index not in {it.identity.index for it in self._entries.values()}:
                    self._entries[f"#{index}"] = _Entry(Identity("", index, "", ""), "stalled")
            self._forget_nameless()

    def _forget_nameless(self) -> None:
        """A GPU that does not even tell its UUID is the one of that index that was lost, where there is one."""
        lost = {it.identity.index for it in self._entries.values() if it.identity.uuid and it.state != "ok"}
        self._entries = {
            key: it for key, it in self._entries.items() if it.identity.uuid or it.identity.index not in lost
        }

    def read(self, message: Read) -> None:
        with self._lock:
            entry = self._entries.get(message.gpu)
            if entry is None:
                return
            entry.state = message.state
            if message.readings is None:
                entry.sets = {}
            else:
                entry.sets[message.set] = message.readings

    def event(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)

    def ages(self, now: float) -> dict[str, float]:
        """Seconds since each set was read last, of the readable GPU where that is longest ago; not before the first."""
        with self._lock:
            readable = [it for it in self._entries.values() if it.state == "ok"]
            times = {set: [it.sets[set].at for it in readable if set in it.sets] for set in self._intervals}
        return {set: now - min(at) for set, at in times.items() if at}

    def snapshot(self, now: float, stalled: str = "") -> Snapshot:
        """What counts at that time of CLOCK_MONOTONIC; `stalled` is the sentence that says so when the child is."""
        with self._lock:
            gpus = tuple(
                Gpu(it.identity, it.state, {set: read for set, read in it.sets.items() if self._counts(set, read, now)})
                for it in self._entries.values()
            )
            state, reason = ("stalled", stalled) if stalled else (self._state, self._reason)
            ordered = tuple(sorted(gpus, key=lambda gpu: gpu.index))
            return Snapshot(state, reason, self._driver, ordered, tuple(self._events))

    def _counts(self, set: str, readings: Readings, now: float) -> bool:
        return now - readings.at <= FRESH * self._intervals[set]
