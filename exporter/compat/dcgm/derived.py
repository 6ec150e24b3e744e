"""Readings over several snapshots: the last Xids, reasons for lowered clocks over time, NVLink rates."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from exporter.compat.dcgm.field import Reading
from exporter.compat.dcgm.fields import LINKS
from exporter.nvml.snapshot import FAST, Event, Gpu, GpuSnapshot, Readings, Values

WINDOW_SECONDS = 300
MOST_EVENTS = 4096
"""Largest number of events of a GPU in the window."""
MOST_XIDS = 256
"""Largest number of distinct Xids counted on a GPU; NVIDIA has fewer."""
_CLOCK_EVENTS = (
    "gpu_idle",
    "clocks_setting",
    "power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
    "display_clocks",
)
"""dcgm-exporter's names for the bits of NVML's reasons, from the lowest."""


@dataclass(slots=True)
class _Recent:
    """Events within the window, with their times."""

    events: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))

    def add(self, at: float, what: str) -> None:
        self.events.append((at, what))

    def counts(self, now: float) -> Counter[str]:
        while self.events and self.events[0][0] < now - WINDOW_SECONDS:
            self.events.popleft()
        return Counter(what for _, what in self.events)


@dataclass(slots=True)
class _GpuHistory:
    """History of one GPU. `read_at` is the time of the newest readings, `kib` the traffic of the links up to then."""

    last_xid: int = 0
    xids: Counter[str] = field(default_factory=Counter)
    recent_xids: _Recent = field(default_factory=_Recent)
    reasons: int | None = None
    begun: Counter[str] = field(default_factory=Counter)
    recent_reasons: _Recent = field(default_factory=_Recent)
    read_at: float = 0.0
    kib: Mapping[str, float] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)


class Derived:
    """Readings derived from all events, and from snapshots taken at least as often as readings change. Thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._gpus: dict[str, _GpuHistory] = {}

    def event(self, event: Event) -> None:
        """Takes an event of NVML."""
        if event.kind != "xid":
            return
        with self._lock:
            history = self._gpus.setdefault(event.uuid, _GpuHistory())
            history.last_xid, number = event.data, str(event.data)
            history.recent_xids.add(self._now(), number)
            if number in history.xids or len(history.xids) < MOST_XIDS:
                history.xids[number] += 1

    def look(self, snapshot: GpuSnapshot) -> None:
        """Takes the new readings of a snapshot; GPUs missing in the snapshot are forgotten."""
        with self._lock:
            present = {gpu.uuid for gpu in snapshot.gpus}
            if present:
                self._gpus = {uuid: history for uuid, history in self._gpus.items() if uuid in present}
            for gpu in snapshot.gpus:
                fast, history = gpu.sets.get(FAST), self._gpus.setdefault(gpu.uuid, _GpuHistory())
                if fast is None:
                    history.kib, history.rates, history.reasons = {}, {}, None
                elif fast.at != history.read_at:
                    _reasons(history, fast)
                    _rates(history, gpu, fast)
                    history.read_at = fast.at

    def readings(self, uuid: str) -> dict[str, Reading]:
        """Returns the readings of a GPU, by key of exporter/compat/dcgm/fields.py."""
        with self._lock:
            history, now = self._gpus.get(uuid, _GpuHistory()), self._now()
            return {
                "last_xid": history.last_xid,
                "xids": dict(history.xids),
                "xids_in_window": history.recent_xids.counts(now),
                "clock_events": history.recent_reasons.counts(now),
                "clock_events_begun": dict(history.begun),
                **history.rates,
            }


def _reasons(history: _GpuHistory, fast: Readings) -> None:
    mask = fast.values.get("clocks_event_reasons")
    if mask is None:
        history.reasons = None
        return
    now, before = int(mask), history.reasons
    for bit, word in enumerate(_CLOCK_EVENTS):
        if now >> bit & 1:
            history.recent_reasons.add(fast.at, word)
            if before is not None and not before >> bit & 1:
                history.begun[word] += 1
    history.reasons = now


def _rates(history: _GpuHistory, gpu: Gpu, fast: Readings) -> None:
    """Computes rates as DCGM does: KiB since the reading before, divided by 1000 and the seconds between."""
    kib = {f"nvlink_{link}_mb_per_s": _kib(gpu.link_values(link)) for link in LINKS if link < gpu.identity.links}
    of_all = {"tx_kib": "nvlink_tx_kib", "rx_kib": "nvlink_rx_kib"}
    total = _kib({key: fast.values[total_key] for key, total_key in of_all.items() if total_key in fast.values})
    if total is None and kib and None not in kib.values():
        total = sum(filter(None, kib.values()))
    counted = {key: value for key, value in {"nvlink_mb_per_s": total, **kib}.items() if value is not None}
    seconds = fast.at - history.read_at
    history.rates = {
        key: (value - history.kib[key]) / seconds / 1000
        for key, value in counted.items()
        if value >= history.kib.get(key, value + 1)
    }
    history.kib = counted


def _kib(values: Values) -> float | None:
    """Returns the KiB of both directions, out of bytes on NVLink 5; None when unknown."""
    if "tx_kib" in values and "rx_kib" in values:
        return values["tx_kib"] + values["rx_kib"]
    if "tx_bytes" in values and "rx_bytes" in values:
        return (values["tx_bytes"] + values["rx_bytes"]) / 1024
    return None
