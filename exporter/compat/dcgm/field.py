"""Declaration of a field of dcgm-exporter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from exporter.model import Kind

Number = int | float
Reading = Number | str | Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Field:
    """One field; `kind` is None for a text, which becomes a label of the other fields.

    `key` is the key of a reading: of exporter/nvml/readings, or one of Derived. With `instance` only the MIG device's
    own reading counts on a MIG device, never the GPU's. `split` is the label of the parts of a reading that has several
    parts. `field_id` is DCGM's id of a profiling field.
    """

    name: str
    kind: Kind | None
    help: str
    key: str
    convert: Callable[[Number], Number] | None = None
    default: bool = False
    instance: bool = False
    split: str = ""
    field_id: int = 0
    note: str = ""


_GPM = "From GPM, so on Hopper and newer; before that only with DCGM (--dcgm.url, --dcgm.bindings)."
_GPM_COUNTS = "From GPM's counters, which newer drivers have, on Hopper and newer."


def gauge(
    name: str,
    help_text: str,
    key: str,
    convert: Callable[[Number], Number] | None = None,
    *,
    default: bool = False,
    instance: bool = False,
    split: str = "",
    note: str = "",
) -> Field:
    return Field(name, Kind.GAUGE, help_text, key, convert, default, instance, split, note=note)


def counter(name: str, help_text: str, key: str, *, default: bool = False, split: str = "", note: str = "") -> Field:
    return Field(name, Kind.COUNTER, help_text, key, None, default, False, split, note=note)


def label(name: str, help_text: str, key: str, default: bool = False) -> Field:
    return Field(name, None, help_text, key, default=default)


def active(name: str, help_text: str, key: str, field_id: int, default: bool = False) -> Field:
    return Field(
        f"DCGM_FI_PROF_{name}",
        Kind.GAUGE,
        help_text,
        key,
        hundredth,
        default,
        instance=True,
        field_id=field_id,
        note=_GPM,
    )


def rate(name: str, help_text: str, key: str, field_id: int, default: bool = False) -> Field:
    return Field(
        f"DCGM_FI_PROF_{name}",
        Kind.GAUGE,
        help_text,
        key,
        from_mib,
        default,
        instance=True,
        field_id=field_id,
        note=_GPM,
    )


def total(name: str, help_text: str, key: str) -> Field:
    return Field(f"DCGM_FI_PROF_{name}_TOTAL", Kind.COUNTER, help_text, key, instance=True, note=_GPM_COUNTS)


def mib(value: Number) -> int:
    return int(value) // 1048576


def from_mib(value: Number) -> float:
    return float(value * 1048576)


def thousandth(value: Number) -> float:
    return value / 1000


def hundredth(value: Number) -> float:
    return value / 100
