"""Declaration of readings: where NVML has a number, and which series shows the number.

Both processes use these types: the child calls the sources, the parent makes the series (exporter/nvml/readings).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from exporter.model import Labels, Metric

Number = int | float
Take = Callable[[Any], int | None]
"""Function from the result of a call to the reading; None for a value that is not available."""

ALL_LINKS = 0xFFFF_FFFF
"""Scope of a field value that is the sum of all NVLinks."""


def _available(value: int, size: int) -> int | None:
    """Returns the value; None for NVML_VALUE_NOT_AVAILABLE, which has all bits of `size` bytes set."""
    return None if value == (1 << 8 * size) - 1 else value


def number(result: Any) -> int | None:
    return _available(result, 4)


def wide(result: Any) -> int | None:
    """Takes an unsigned long long."""
    return _available(result, 8)


def item(place: int) -> Take:
    """Returns the Take of one number of several."""
    return lambda result: _available(result[place], 4)


def member(name: str) -> Take:
    """Returns the Take of a member of a structure."""
    return lambda result: _available(getattr(result, name), getattr(type(result), name).size)


@dataclass(frozen=True, slots=True)
class FieldValue:
    """A field value, read many in one call. `name` is NVML's constant without `NVML_FI_`.

    Fields that nvidia-ml-py does not know are not requested. In readings of a link `{link}` stands for its number in
    the names of fields per link, and the link is the scope.
    """

    name: str
    scope: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """A call about one device: `arguments` follow the handle, and in readings of a link the link's number.

    Readings with the same call share one call. `structure` is a versioned class of nvidia-ml-py: an instance is passed
    by reference and is the result. The call is left out while the reading of the key `unless` has a value.
    """

    function: str
    take: Take = number
    arguments: tuple[int, ...] = ()
    structure: str = ""
    unless: str = ""


@dataclass(frozen=True, slots=True)
class GpmMean:
    """A GPU performance metric of NVML by number: the mean over the time between two samples."""

    number: int


@dataclass(frozen=True, slots=True)
class GpmCount:
    """A GPU performance metric that counts since the driver was loaded; only newer drivers have these."""

    number: int


Source = FieldValue | Call | GpmMean | GpmCount


@dataclass(frozen=True, slots=True)
class Scale:
    """Factor from the unit of a reading to that of the metric. Integers stay exact as far as the factor allows."""

    times: int = 1
    over: int = 1

    def __call__(self, value: Number) -> Number:
        return value * self.times / self.over if self.over != 1 else value * self.times


SAME, PERCENT = Scale(), Scale(over=100)
MILLI, NANO = Scale(over=1000), Scale(over=1_000_000_000)
KB, MHZ, MBPS, KIB, MIB = Scale(1000), Scale(1_000_000), Scale(1_000_000), Scale(1 << 10), Scale(1 << 20)


@dataclass(frozen=True, slots=True)
class Reading:
    """A number that NVML reports, and the series that shows the number; without `metric` only others derive from it.

    `key` names the reading between the processes and in other tables, and has no meaning in its parts. `fallback`
    is called where `source` gives no value, for the same fact in the same unit. A reading with a value for
    `duplicate_of`, another key, is not shown. `mig` has metric and labels of the reading of a MIG device.
    """

    key: str
    source: Source
    metric: Metric | None = None
    scale: Scale = SAME
    labels: Labels = field(default_factory=dict)
    fallback: Call | None = None
    duplicate_of: str = ""
    mig: tuple[Metric, Mapping[str, str]] | None = None
