"""Discovery of collectors: every module of exporter.collectors, described by its declarations. No list is kept."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import exporter.collectors
from exporter.model import Collector, Metric
from exporter.node import Node
from exporter.options import Flag, Option, Value


@dataclass(frozen=True)
class Found:
    """A collector module: `name` is the stem of its file, `help` the first line of its docstring.

    A collector with established option names declares `options` in place of flags. `configure` returns its settings
    from the values of either, which are within their ranges, or None when options do not switch the collector on;
    `configure` raises SettingsError. A collector that is `first` starts before the others, which size their maps by its
    findings.
    """

    name: str
    help: str
    default: bool
    flags: tuple[Flag, ...]
    metrics: tuple[Metric, ...]
    create: Callable[[Node], Collector]
    options: tuple[Option, ...] = ()
    configure: Callable[[Mapping[str, Value]], Mapping[str, Any] | None] = dict
    first: bool = False

    @property
    def switch(self) -> str:
        """The flag that switches the collector on."""
        return f"--{self.options[0].name}" if self.options else f"--collector.{self.name}"


def collectors(package: ModuleType = exporter.collectors) -> dict[str, Found]:
    """Return the collectors of a package by name, in alphabetical order.

    A module that cannot be imported is a collector that raises the same error when it is created.
    """
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_"))
    return {name: _load(f"{package.__name__}.{name}") for name in names}


def metrics(module: ModuleType) -> tuple[Metric, ...]:
    """Return the metrics in the module's METRICS, or else all metrics among its constants and tuples, in order."""
    declared: dict[Metric, None] = {}
    for value in getattr(module, "METRICS", None) or vars(module).values():
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Metric):
                declared[item] = None
    return tuple(declared)


def _load(path: str) -> Found:
    name = path.rpartition(".")[2]
    try:
        module = importlib.import_module(path)
        return Found(
            name,
            (module.__doc__ or "").strip().partition("\n")[0],
            getattr(module, "DEFAULT", True),
            getattr(module, "FLAGS", ()),
            metrics(module),
            module.create,
            getattr(module, "OPTIONS", ()),
            getattr(module, "configure", dict),
            getattr(module, "FIRST", False),
        )
    except Exception as error:
        return Found(name, "Cannot be imported.", True, (), (), _raise(error))


def _raise(error: Exception) -> Callable[[Node], Collector]:
    def create(_: Node) -> Collector:
        raise error

    return create
