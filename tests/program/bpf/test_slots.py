"""Slots of durations: the kernel's arithmetic, compiled for this machine, against exact fractions."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter import durations
from exporter.cuda import spans as cuda
from exporter.exponential import schema
from exporter.nccl import stragglers as nccl
from exporter.serving import activity as serving
from exporter.verbs import samples as verbs

BPF = Path(__file__).parents[3] / "bpf"
SOURCE = f"""
#include "{BPF / "slots.h"}"
unsigned slot(unsigned long long ns, int first, unsigned slots) {{ return duration_slot(ns, first, slots); }}
"""
MOST = (1 << 64) - 1
FIRSTS = (durations.FIRST, cuda.WAIT_FIRST, verbs.TIME_FIRST, nccl.LAG_FIRST, serving.GAP_FIRST, -29, 0, 3)
Slot = Callable[[int, int, int], int]


@pytest.fixture(scope="module")
def compiled(compile_library: Callable[[str, str], Path]) -> Slot:
    function = ctypes.CDLL(str(compile_library("libslots.so", SOURCE))).slot
    function.argtypes = (ctypes.c_uint64, ctypes.c_int, ctypes.c_uint)
    return lambda ns, first, slots: int(function(ns, first, slots))


def exact(ns: int, first: int, slots: int) -> int:
    """The first slot with a bound that is not below the time, by fractions; the last slot has no bound."""
    seconds = Fraction(ns, 10**9)
    return next((slot for slot in range(slots - 1) if seconds <= Fraction(2) ** (first + slot)), slots - 1)


def near_bounds() -> Iterator[int]:
    """The whole nanoseconds on both sides of each power of two of a second that 64 bits hold, and of a nanosecond."""
    for exponent in range(-30, 35):
        bound = 10**9 * Fraction(2) ** exponent
        yield from (n for n in range(int(bound) - 2, int(bound) + 4) if 0 <= n <= MOST)
    for bits in range(65):
        yield from (n for n in ((1 << bits) - 1, 1 << bits, (1 << bits) + 1) if n <= MOST)


@pytest.mark.parametrize("first", FIRSTS)
def test_slots_at_every_bound(compiled: Slot, first: int) -> None:
    """A time that equals a bound is within it, a nanosecond more is above; in C and in Python."""
    for slots in (2, 38, 64):
        for ns in near_bounds():
            expected = exact(ns, first, slots)
            assert expected == compiled(ns, first, slots) == durations.duration_slot(ns, first, slots), (ns, slots)


@given(st.integers(0, MOST), st.sampled_from(FIRSTS), st.integers(2, 64))
def test_slots_of_any_time(compiled: Slot, ns: int, first: int, slots: int) -> None:
    """Whatever 64 bits hold, also hours and years."""
    expected = exact(ns, first, slots)
    assert expected == compiled(ns, first, slots) == durations.duration_slot(ns, first, slots)


@pytest.mark.parametrize(
    ("header", "name", "first"),
    [
        ("thread.h", "DURATION", durations.FIRST),
        ("cuda/cuda.h", "WAIT", cuda.WAIT_FIRST),
        ("verbs/verbs.h", "TIME", verbs.TIME_FIRST),
        ("nccl/nccl.h", "LAG", nccl.LAG_FIRST),
        ("serving/serving.h", "GAP", serving.GAP_FIRST),
    ],
)
def test_bounds_are_those_of_the_header(header: str, name: str, first: int) -> None:
    """Python has the first bound of each header; the last one is 2^16 s, and all are those of a native schema."""
    text = (BPF / header).read_text()
    found = re.search(rf"^#define {name}_FIRST \((-\d+)\)", text, re.M)
    slots = re.search(rf"^#define {name}_SLOTS (\d+)", text, re.M)
    assert found and slots and first == int(found[1])
    step = 2 if name == "LAG" else 1
    bounds = durations.duration_bounds(int(slots[1]), first, step)
    assert (2.0**first, 2.0**16) == (bounds[0], bounds[-1])
    assert (1 - step, first // step) == schema(bounds)
    if name == "WAIT":
        assert int(slots[1]) == cuda.WAIT_SLOTS


def test_bounds_are_shown_exactly() -> None:
    """Bounds of 2^-10 s and others are shown exactly: a float holds the bound, and its text is exact."""
    assert ("0.0009765625", "9.5367431640625e-07") == tuple(repr(2.0**exponent) for exponent in (-10, -20))
    made = durations.durations([1] * 38, 38 * 10**9)
    assert ([2.0**exponent for exponent in range(-20, 17)], 38.0) == ([*made.bounds], made.sum)
    assert made.shown is not None
    assert 32.0 == made.bounds[made.shown[-1]]
