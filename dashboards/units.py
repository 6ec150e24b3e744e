"""Values as Grafana writes them."""

from __future__ import annotations

import math

_SUFFIXES = {
    "bytes": "B",
    "Bps": "B/s",
    "watt": "W",
    "hertz": "Hz",
    **dict.fromkeys(("cps", "eps", "ops", "reqps"), "/s"),
}
_SECONDS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def text(value: float, unit: str) -> str:
    """A value with its unit, one of Grafana's list; three digits or so."""
    if math.isnan(value):
        return "NaN"
    if unit == "bool_yes_no":
        return "Yes" if value else "No"
    if unit == "percentunit":
        return f"{value * 100:.3g}%" if abs(value) < 10 else f"{value * 100:.0f}%"
    if unit == "celsius":
        return f"{value:.3g} °C"
    if unit == "s":
        return _of_time(value)
    return _scaled(value, 1024 if unit == "bytes" else 1000, _SUFFIXES.get(unit, ""))


def _of_time(value: float) -> str:
    for name, size in _SECONDS:
        if abs(value) >= size:
            return f"{value / size:.3g} {name}"
    return "0 s" if not value else f"{value:.2g} s"


def _scaled(value: float, base: int, suffix: str) -> str:
    prefixes = ("", "Ki", "Mi", "Gi", "Ti", "Pi") if base == 1024 else ("", "K", "M", "G", "T", "P")
    if suffix == "B/s":
        prefixes = ("", "k", "M", "G", "T", "P")
    step = 0
    while abs(value) >= base and step < len(prefixes) - 1:
        value, step = value / base, step + 1
    number = f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    unit = prefixes[step] + suffix
    return f"{number} {unit}" if suffix and suffix != "/s" or prefixes[step] else f"{number}{suffix}"
