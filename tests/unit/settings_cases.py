"""Collectors with settings of every kind, and the settings of a command line for them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from exporter import option_sources, settings
from exporter.discover import Found
from exporter.model import Collector
from exporter.node import Node
from exporter.options import Flag, Option, SettingsError


def create(_: Node) -> Collector:
    raise NotImplementedError


CUDA = Found(
    "cuda",
    "CUDA calls of every process.",
    True,
    (
        Flag("live-allocations", 1000, "allocations followed"),
        Flag("skip", ("a", "b"), "names left out"),
        Flag("wait", 0.5, "seconds"),
        Flag("deep", False, "look closer"),
        Flag("mode", "fast", "how"),
        Flag("rate", 10, "spans a second", 1, 1000),
        Flag("every", 5.0, "seconds", 0.2, 60),
        Flag("kind", "a", "which", choices=("a", "b")),
    ),
    (),
    create,
)
FOREIGN = Found(
    "foreign",
    "Names of others.",
    True,
    (),
    (),
    create,
    (Option("old.names", False, "use them", "collectors"), Option("old.names.file", "", "which", "collectors")),
    lambda values: {"file": values["old.names.file"]} if values["old.names"] else None,
)
RARE = Found("rare", "Something costly.", False, (), (), create)
FOUND = (CUDA, FOREIGN, RARE)


def load(*arguments: str, environ: Mapping[str, str] | None = None) -> settings.Settings:
    declared = settings.all_options(FOUND)
    return settings.load(
        option_sources.from_flags(settings.make_parser(FOUND), arguments, declared), environ or {}, FOUND
    )


def error(*arguments: str, environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as raised:
        load(*arguments, environ=environ)
    return str(raised.value)
