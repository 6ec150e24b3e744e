"""Readings that take more than one look: the last Xids, reasons for lowered clocks over time, NVLink rates."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from exporter.dcgm.field import Reading
from exporter.dcgm.fields import LINKS
from exporter.nvml.snapshot import FAST, Event, Gpu, Readings, Snapshot, Values

WINDOW_SECONDS = 300
MOST_EVENTS = 4096
"""Remembered of a GPU within the window."""
MOST_XIDS = 256
"""Numbers of Xids told apart on a GPU; there are fewer."""
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
"""dcgm-exporter's words for the bits of NVML's reasons, from the lowest."""


@dataclass(slots=True)
class _Recent:
    """What occurred within the window, by when."""

    events: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))

    def add(self, at: float, what: str) -> None:
        self.events.append((at, what))

    def counts(self, now: float) -> Counter[str]:
        while self.events and self.events[0][0] < now - WINDOW_SECONDS:
            self.events.popleft()
        return Counter(what for _, what in self.events)


@dataclass(slots=True)
class _Known:
    """Of one GPU. `read_at` is when the newest readings seen were made, `kib` what had crossed its links by then."""

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
    """Told of every event, and shown snapshots at least as often as their readings change. Safe from any thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._gpus: dict[str, _Known] = {}

    def event(self, event: Event) -> None:
        """Takes an event of NVML."""
        if event.kind != "xid":
            return
        with self._lock:
            known = self._gpus.setdefault(event.uuid, _Known())
            known.last_xid, number = event.data, str(event.data)
            known.recent_xids.add(self._now(), number)
            if number in known.xids or len(known.xids) < MOST_XIDS:
                known.xids[number] += 1

    def look(self, snapshot: Snapshot) -> None:
        """Takes what is new in a snapshot; GPUs that are not in it are forgotten."""
        with self._lock:
            there = {gpu.uuid for gpu in snapshot.gpus}
            if there:
                self._gpus = {uuid: known for uuid, known in self._gpus.items() if uuid in there}
            for gpu in snapshot.gpus:
                fast, known = gpu.sets.get(FAST), self._gpus.setdefault(gpu.uuid, _Known())
                if fast is None:
                    known.kib, known.rates, known.reasons = {}, {}, None
                elif fast.at != known.read_at:
                    _reasons(known, fast)
                    _rates(known, gpu, fast)
                    known.read_at = fast.at

    def readings(self, uuid: str) -> dict[str, Reading]:
        """What is known of a GPU now, by keys of exporter/dcgm/fields.py."""
        with self._lock:
            known, now = self._gpus.get(uuid, _Known()), self._now()
            return {
                "last_xid": known.last_xid,
                "xids": dict(known.xids),
                "xids_in_window": known.recent_xids.counts(now),
                "clock_events": known.recent_reasons.counts(now),
                "clock_events_begun": dict(known.begun),
                **known.rates,
            }


def _reasons(known: _Known, fast: Readings) -> None:
    mask = fast.values.get("clocks_event_reasons")
    if mask is None:
        known.reasons = None
        return
    now, before = int(mask), known.reasons
    for bit, word in enumerate(_CLOCK_EVENTS):
        if now >> bit & 1:
            known.recent_reasons.add(fast.at, word)
            if before is not None and not before >> bit & 1:
                known.begun[word] += 1
    known.reasons = now


def _rates(known: _Known, gpu: Gpu, fast: Readings) -> None:
    """DCGM's arithmetic: KiB since the reading before, divided by 1000 and the seconds between."""
    kib = {f"nvlink_{link}_mb_per_s": _kib(gpu.link_values(link)) for link in LINKS if link < gpu.identity.links}
    both = ("tx_kib", "rx_kib")
    total = _kib({key: fast.values[f"nvlink_{key}"] for key in both if f"nvlink_{key}" in fast.values})
    if total is None and kib and None not in kib.values():
        total = sum(filter(None, kib.values()))
    counted = {key: value for key, value in {"nvlink_mb_per_s": total, **kib}.items() if value is not None}
    seconds = fast.at - known.read_at
    known.rates = {
        key: (value - known.kib[key]) / seconds / 1000
        for key, value in counted.items()
        if value >= known.kib.get(key, value + 1)
    }
    known.kib = counted


def _kib(values: Values) -> float | None:
    """KiB both ways; NVLink 5 has bytes instead."""
    if "tx_kib" in values and "rx_kib" in values:
        return values["tx_kib"] + values["rx_kib"]
    if "tx_bytes" in values and "rx_bytes" in values:
        return (values["tx_bytes"] + values["rx_bytes"]) / 1024
    return None
