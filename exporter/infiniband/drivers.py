"""The meaning of each driver's counters (drivers.yaml)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PORT_GROUP, HW_GROUP = "counters", "hw_counters"
CounterName = tuple[str, str]
"""A counter by its group and the name of its file."""
Sum = tuple[tuple[CounterName, ...], ...]
"""Counters to be added, each with its substitutes for drivers without the counter."""
Values = Mapping[CounterName, int]

_TABLE = Path(__file__).with_name("drivers.yaml")
_WORDS = frozenset({"port_xmit_data", "port_rcv_data"})
_EXTENDED = frozenset({"port_xmit_data_64", "port_rcv_data_64"})
_GAUGES = frozenset({"lifespan"})
_SUMS = (
    *("packets", "bytes", "packets_received", "bytes_received", "discarded"),
    *("timeouts", "retransmitted", "ecn_marked", "link_downed"),
)
_KINDS = ("received", "sent", "cnps", "retries")


@dataclass(frozen=True)
class Driver:
    """One driver's counters; `sums` and `kinds` are described in drivers.yaml, and empty where there is no counter."""

    name: str
    wraps: frozenset[str] | None
    """Names in hw_counters/ of counters with 32 bits; None means all but `wide`."""
    wide: frozenset[str]
    gauges: frozenset[str]
    sums: Mapping[str, Sum]
    kinds: Mapping[str, Mapping[str, Sum]]

    def narrow(self, name: CounterName) -> bool:
        """Return whether the device's counter has 32 bits and wraps around."""
        group, file = name
        if group != HW_GROUP:
            return False  # counters of other groups saturate (InfiniBand's PortCounters) or have 64 bits
        return file not in self.wide if self.wraps is None else file in self.wraps

    def gauge(self, name: CounterName) -> bool:
        return name[1] in self.gauges or name[1] in _GAUGES

    def total(self, what: str, values: Values) -> int | None:
        """Return a sum of drivers.yaml such as packets or bytes, or None where the driver does not count it."""
        return add(self.sums.get(what, ()), values)

    def by_kind(self, what: str, values: Values) -> dict[str, int]:
        """Return NAKs or congestion notifications by kind, without kinds that the driver does not count."""
        found = {kind: add(wanted, values) for kind, wanted in self.kinds.get(what, {}).items()}
        return {kind: value for kind, value in found.items() if value is not None}


def scale(name: CounterName) -> int:
    """Return the factor of a file's number: data is counted in words of 4 octets (InfiniBand Architecture
    Specification, PortCounters), and the kernel does not convert it.
    """
    return 4 if name[0].startswith(PORT_GROUP) and name[1] in _WORDS | _EXTENDED else 1


def add(wanted: Sum, values: Values) -> int | None:
    """Return the sum of the wanted counters, or None when none is wanted or one is missing."""
    found = [next((values[name] for name in names if name in values), None) for names in wanted]
    known = [value for value in found if value is not None]
    return sum(known) if known and len(known) == len(found) else None


@cache
def load() -> dict[str, Driver]:
    """Return the drivers by their names in the kernel."""
    import yaml  # where there are RDMA devices only

    found: dict[str, Driver] = {}
    for name, row in yaml.safe_load(_TABLE.read_text()).items():
        driver = _driver(name, row)
        found |= dict.fromkeys(row["kernel"], driver)
    return found


def unknown(name: str) -> Driver:
    """Return a driver that is not in drivers.yaml: its counters are shown as read."""
    return Driver(name, frozenset(), frozenset(), frozenset(), {}, {})


def _driver(name: str, row: Mapping[str, Any]) -> Driver:
    wraps = row.get("wraps", [])
    return Driver(
        name,
        None if wraps == "*" else frozenset(wraps),
        frozenset(row.get("wide", [])),
        frozenset(row.get("gauges", [])),
        {what: _sum(row[what]) for what in _SUMS if what in row},
        {what: {kind: _sum(names) for kind, names in row[what].items()} for what in _KINDS if what in row},
    )


def _sum(entries: Iterable[str]) -> Sum:
    return tuple(tuple(_name(name) for name in entry.split("|")) for entry in entries)


def _name(text: str) -> CounterName:
    group, slash, file = text.rpartition("/")
    return (group, file) if slash else (HW_GROUP, file)
