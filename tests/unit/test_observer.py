"""Collectors of one exporter share their state."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from exporter import settings
from exporter.discover import Found
from exporter.faults.ledger import Fault
from exporter.faults.metrics import FAULTS
from exporter.node import Node
from exporter.observer import Observer
from exporter.options import Flag

SHARED = [it.name for it in dataclasses.fields(Node) if it.name != "settings"]


class Collectors:
    """Two collectors that keep the node that they were created with."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.found = {name: Found(name, "", True, (Flag("size", 1, ""),), (), self._create) for name in ("one", "two")}

    def _create(self, node: Node) -> Any:
        self.nodes.append(node)
        return SimpleNamespace(name=f"{len(self.nodes)}", start=lambda: None, close=lambda: None, collect=tuple)

    def load(self, **flags: Any) -> settings.Settings:
        return settings.load({name.replace("_", "."): it for name, it in flags.items()}, {}, list(self.found.values()))


def test_all_collectors_share_the_node() -> None:
    """But for its settings, what one collector has of the node is the very object that the other has."""
    collectors = Collectors()
    Observer(collectors.load(), collectors.found, lambda span: None)
    one, two = collectors.nodes
    assert not [name for name in SHARED if getattr(one, name) is not getattr(two, name)]
    assert one.settings is not two.settings


def test_what_others_need_starts_first() -> None:
    """A collector that declares it is before those with names before its own."""
    collectors = Collectors()
    collectors.found["two"] = dataclasses.replace(collectors.found["two"], first=True)
    Observer(collectors.load(**{"collector.one.size": 5}), collectors.found, lambda span: None)
    assert [1, 5] == [node.settings["size"] for node in collectors.nodes]


def test_a_reload_keeps_what_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collectors that begin again with other settings find what was known before; only the search and the reading of
    the kernel log begin again.
    """
    collectors = Collectors()
    observer = Observer(collectors.load(), collectors.found, lambda span: None)
    monkeypatch.setattr("exporter.bpf.targets.Targets.start", lambda self: None)
    observer.apply(collectors.load(**{"collector.one.size": 2}))
    before, after = collectors.nodes[0], collectors.nodes[2]
    assert ["targets", "kernel_log"] == [name for name in SHARED if getattr(before, name) is not getattr(after, name)]
    assert (1, 2) == (before.settings["size"], after.settings["size"])
    observer.close()


def test_a_reload_of_the_kernel_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another path of the kernel log counts at a reload, though no collector's own setting has changed."""
    collectors = Collectors()
    observer = Observer(collectors.load(), collectors.found, lambda span: None)
    monkeypatch.setattr("exporter.bpf.targets.Targets.start", lambda self: None)
    observer.apply(collectors.load(**{"kmsg.path": "/dev/null"}))
    observer.apply(collectors.load(**{"kmsg.path": "/dev/null"}))
    assert 4 == len(collectors.nodes)
    assert collectors.nodes[0].kernel_log is not collectors.nodes[2].kernel_log
    observer.close()


@pytest.mark.parametrize("shown", [False, True])
def test_faults_without_their_collector(shown: bool) -> None:
    """Faults that a collector has found are on the page once, also where the collector that shows them is off."""
    collectors = Collectors()
    observer = Observer(collectors.load(), collectors.found, None)
    assert not any(it.metric is FAULTS for it in observer.scraper.gather())
    collectors.nodes[0].faults.add(Fault("faulty_gpu", "00000000:3B:00.0", "xid_79", 5.0))
    if shown:
        collectors.found["two"] = dataclasses.replace(collectors.found["two"], metrics=(FAULTS,))
    found = [it.labels["signal"] for it in observer.scraper.gather() if it.metric is FAULTS]
    assert ([] if shown else ["xid_79"]) == found


def test_nothing_shared_has_a_default() -> None:
    """A field that whoever makes a node forgets is an error, not an object of its own."""
    defaults = [it for it in dataclasses.fields(Node) if it.default is not dataclasses.MISSING]
    factories = [it for it in dataclasses.fields(Node) if it.default_factory is not dataclasses.MISSING]
    assert [] == [*defaults, *factories]
