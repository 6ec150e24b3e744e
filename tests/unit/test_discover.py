"""Collectors are found by being there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest

from exporter import discover
from exporter.options import Flag

GOOD = '''"""Counts sheep.

More about it.
"""
from exporter.model import Kind, Metric
from exporter.options import Flag

SHEEP = Metric("sheep", "seen", Kind.COUNTER)
OTHERS = (Metric("goats", "seen", Kind.GAUGE), SHEEP)
FLAGS = (Flag("fence", 3, "height"),)

def create(node):
    return ("made", node)
'''

RENAMED = '''"""Known by another name."""
from exporter.options import Option

OPTIONS = (Option("old.name", False, "what it was called", "collectors"),)
create = print

def configure(values):
    return {"on": True} if values["old.name"] else None
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    folder = tmp_path / "flock"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "good.py").write_text(GOOD)
    (folder / "broken.py").write_text("raise RuntimeError('no')\n")
    (folder / "costly.py").write_text('"""Costs."""\nDEFAULT = False\ncreate = print\n')
    (folder / "renamed.py").write_text(RENAMED)
    (folder / "empty.py").write_text('"""Creates nothing."""')
    (folder / "_shared.py").write_text("raise RuntimeError('not a collector')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield import_module("flock")
    for name in [name for name in sys.modules if name.partition(".")[0] == "flock"]:
        del sys.modules[name]


def test_found(package: ModuleType) -> None:
    """Each module of the folder is a collector, with the help, flags and metrics it declares."""
    found = discover.collectors(package)

    assert ["broken", "costly", "empty", "good", "renamed"] == list(found)
    good = found["good"]
    assert ("Counts sheep.", True) == (good.help, good.default)
    assert (Flag("fence", 3, "height"),) == good.flags
    assert ["sheep", "goats"] == [metric.name for metric in good.metrics]
    assert ("made", None) == good.create(None)  # type: ignore[arg-type]
    assert "--collector.good" == good.switch
    assert ("Costs.", False, ()) == (found["costly"].help, found["costly"].default, found["costly"].flags)


def test_options_of_its_own(package: ModuleType) -> None:
    """A collector may be switched on and set by other names than --collector.NAME."""
    renamed = discover.collectors(package)["renamed"]

    assert ["old.name"] == [option.name for option in renamed.options]
    assert ("--old.name", {"on": True}) == (renamed.switch, renamed.configure({"old.name": True}))


@pytest.mark.parametrize(("name", "error"), [("broken", RuntimeError), ("empty", AttributeError)])
def test_broken_module(package: ModuleType, name: str, error: type[Exception]) -> None:
    """A module that cannot be imported, or creates nothing, costs only itself: its collector fails for that reason."""
    with pytest.raises(error):
        discover.collectors(package)[name].create(Mock())


def test_ours_declare() -> None:
    """The exporter's own collectors all import and describe themselves."""
    for name, found in discover.collectors().items():
        assert found.help.endswith("."), name
        assert found.metrics, name
