"""Rows of counts: what a process counted after its end was noticed is added, and numbers fit OTLP."""

from __future__ import annotations

import ctypes
from typing import Any

from exporter.call_collector import MOST, Rows, distribution, sample
from exporter.ledger import Process
from exporter.model import Kind, Metric

CALLS = Metric("test.calls", "Calls.", Kind.COUNTER, labels=("api",), process=True)


class Key(ctypes.Structure):
    _fields_ = (("tgid", ctypes.c_uint32), ("api", ctypes.c_uint32))


class Duration(ctypes.Structure):
    _fields_ = (("sum_ns", ctypes.c_uint64), ("slots", ctypes.c_uint64 * 3))


class Value(ctypes.Structure):
    _fields_ = (("calls", ctypes.c_uint64), ("last_ns", ctypes.c_uint64), ("took", Duration))


def rows(map_name: str, api: int, value: Any) -> Rows:
    key = Key(7, api)
    return Rows({map_name: {bytes(key): (key, value)}})


def value(calls: int, last_ns: int, *slots: int) -> Value:
    return Value(calls, last_ns, Duration(1000, (ctypes.c_uint64 * 3)(*slots)))


def test_late_counts_are_added() -> None:
    """Every field is added up, also in nested structures; of the last time the later one stays."""
    early = rows("io", 1, value(20, 500, 1, 2, 3))
    early.absorb(rows("io", 1, value(3, 400, 10, 20, 30)))
    early.absorb(rows("io", 2, value(5, 600)))
    early.absorb(rows("hits", 1, 23))
    early.absorb(rows("hits", 1, 100))
    (_, first), (_, second) = early.of("io")
    assert (23, 500, 2000, [11, 22, 33]) == (first.calls, first.last_ns, first.took.sum_ns, [*first.took.slots])
    assert (5, 600) == (second.calls, second.last_ns)
    assert [123] == [count for _, count in early.of("hits")]
    assert [] == [*early.of("errors")]


def test_a_number_that_otlp_cannot_hold() -> None:
    """A library of the job's own can return any number of bytes: the page of metrics survives it."""
    process = Process(7, {"pid": "7"}, Rows(), 5.0)
    made = sample(process, CALLS, 1 << 64, {"api": "read"})
    assert (MOST, {"pid": "7", "api": "read"}, 5.0) == (made.value, made.labels, made.start)


def test_durations_are_in_seconds() -> None:
    """Slot 0 ends at 2^-20 s, each further one at twice the one before."""
    took = distribution(Duration(1_500_000_000, (ctypes.c_uint64 * 3)(1, 2, 3)))
    assert ((2.0**-20, 2.0**-19), (1, 2, 3), 1.5) == (took.bounds, took.counts, took.sum)
