"""State of NVML and the GPUs in the parent: the child's messages merged, without readings that are too old."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from exporter.nvml.snapshot import DriverVersions, Event, Gpu, GpuIdentity, GpuSnapshot, NvmlStarted, Readings, SetRead

MOST_EVENTS = 256
FRESH = 3
"""Number of intervals for which the readings of a set are valid."""


@dataclass(slots=True)
class _GpuState:
    identity: GpuIdentity
    state: str = "ok"
    sets: dict[str, Readings] = field(default_factory=dict)


class NvmlState:
    """State of NVML and the GPUs. `intervals` are seconds by set. Thread-safe."""

    def __init__(self, intervals: Mapping[str, float]) -> None:
        self._intervals = intervals
        self._lock = threading.Lock()
        self._state, self._reason = "starting", ""
        self._driver: DriverVersions | None = None
        self._entries: dict[str, _GpuState] = {}
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)

    def ended(self, text: str, absent: bool) -> None:
        """Notes the end of the child. Readings stay valid for their time; `absent` (no NVML) drops all GPUs."""
        with self._lock:
            self._state, self._reason = ("absent" if absent else "restarting"), text
            if absent:
                self._entries.clear()

    def released(self, seconds: float) -> None:
        """Drops all readings while the handles are closed for `seconds`."""
        with self._lock:
            self._state, self._reason = "released", f"on request, for {seconds:.0f} s more"
            for entry in self._entries.values():
                entry.sets = {}

    def started(self, message: NvmlStarted, quarantined: Collection[int]) -> None:
        """Takes over the list of GPUs. A GPU missing in the list is lost, or stalled when in quarantine."""
        with self._lock:
            self._state, self._reason, self._driver = "running", "", message.driver
            before, self._entries = self._entries, {identity.key: _GpuState(identity) for identity in message.gpus}
            for key, entry in before.items():
                if key in self._entries:
                    self._entries[key].sets = entry.sets
                elif entry.identity.uuid:
                    stalled = entry.identity.index in quarantined
                    self._entries[key] = replace(entry, state="stalled" if stalled else "lost", sets={})
            for index in quarantined:
                if index not in {entry.identity.index for entry in self._entries.values()}:
                    self._entries[f"#{index}"] = _GpuState(GpuIdentity("", index, "", ""), "stalled")
            self._merge_unidentified()

    def _merge_unidentified(self) -> None:
        """Drops a GPU with an unreadable UUID where a lost GPU had the same index: both are one GPU."""
        lost = {entry.identity.index for entry in self._entries.values() if entry.identity.uuid and entry.state != "ok"}
        self._entries = {
            key: entry
            for key, entry in self._entries.items()
            if entry.identity.uuid or entry.identity.index not in lost
        }

    def read(self, message: SetRead) -> None:
        with self._lock:
            entry = self._entries.get(message.gpu)
            if entry is None:
                return
            entry.state = message.state
            if message.readings is None:
                entry.sets = {}
            else:
                entry.sets[message.set_name] = message.readings

    def event(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)

    def ages(self, now: float) -> dict[str, float]:
        """Returns the seconds since each set was read, for the readable GPU that was read longest ago."""
        with self._lock:
            readable = [entry for entry in self._entries.values() if entry.state == "ok"]
            times = {
                name: [entry.sets[name].at for entry in readable if name in entry.sets] for name in self._intervals
            }
        return {name: now - min(at) for name, at in times.items() if at}

    def snapshot(self, now: float, stalled: str = "") -> GpuSnapshot:
        """Returns the valid readings at `now` (CLOCK_MONOTONIC). `stalled` is the reason while the child is stalled."""
        with self._lock:
            gpus = tuple(
                Gpu(
                    entry.identity,
                    entry.state,
                    {name: entry.sets[name] for name in entry.sets if self._fresh(name, entry, now)},
                )
                for entry in self._entries.values()
            )
            state, reason = ("stalled", stalled) if stalled else (self._state, self._reason)
            ordered = tuple(sorted(gpus, key=lambda gpu: gpu.index))
            return GpuSnapshot(state, reason, self._driver, ordered, tuple(self._events))

    def _fresh(self, name: str, entry: _GpuState, now: float) -> bool:
        return now - entry.sets[name].at <= FRESH * self._intervals[name]
