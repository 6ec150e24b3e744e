"""What a field of dcgm-exporter is declared by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from exporter.model import Kind

Number = int | float
Reading = Number | str | Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Field:
    """One row; `kind` None is a text that becomes a label of the other rows.

    `key` names the reading: one of exporter/nvml/fields.py, or one that exporter/dcgm/readings.py adds. `instance`
    means that on a MIG device only its own reading counts: the GPU's says nothing of it. `split` is the label that
    tells the parts of a reading apart that has several. `id` is DCGM's number of a profiling field.
    """

    name: str
    kind: Kind | None
    help: str
    key: str
    convert: Callable[[Number], Number] | None = None
    default: bool = False
    instance: bool = False
    split: str = ""
    id: int = 0
    note: str = ""


_GPM = "From GPM, so on Hopper and newer; before that DCGM has to be asked (--dcgm.url, --dcgm.bindings)."
_GPM_COUNTS = "From GPM's counters, which newer drivers have, on Hopper and newer."


def gauge(
    name: str,
    help: str,
    key: str,
    convert: Callable[[Number], Number] | None = None,
    *,
    default: bool = False,
    instance: bool = False,
    split: str = "",
    note: str = "",
) -> Field:
    return Field(name, Kind.GAUGE, help, key, convert, default, instance, split, note=note)


def counter(name: str, help: str, key: str, *, default: bool = False, split: str = "", note: str = "") -> Field:
    return Field(name, Kind.COUNTER, help, key, None, default, False, split, note=note)


def label(name: str, help: str, key: str, default: bool = False) -> Field:
    return Field(name, None, help, key, default=default)


def active(name: str, help: str, key: str, id: int, default: bool = False) -> Field:
    return Field(f"DCGM_FI_PROF_{name}", Kind.GAUGE, help, key, hundredth, default, instance=True, id=id, note=_GPM)


def rate(name: str, help: str, key: str, id: int, default: bool = False) -> Field:
    return Field(f"DCGM_FI_PROF_{name}", Kind.GAUGE, help, key, from_mib, default, instance=True, id=id, note=_GPM)


def total(name: str, help: str, key: str) -> Field:
    return Field(f"DCGM_FI_PROF_{name}_TOTAL", Kind.COUNTER, help, key, instance=True, note=_GPM_COUNTS)


def mib(value: Number) -> int:
    return int(value) // 1048576


def from_mib(value: Number) -> float:
    return float(value * 1048576)


def thousandth(value: Number) -> float:
    return value / 1000


def hundredth(value: Number) -> float:
    return value / 100
