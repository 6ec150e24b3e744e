"""Collectors of one exporter share their state."""

from __future__ import annotations

import dataclasses
import errno
import functools
from types import SimpleNamespace
from typing import Any

import pytest

from exporter import settings
from exporter.bpf.native import BpfError
from exporter.bpf.targets import Targets
from exporter.collector_state import AVAILABLE, SUCCESS, Health
from exporter.discover import Found
from exporter.faults.ledger import Fault
from exporter.faults.metrics import FAULTS
from exporter.kmsg.kernel_log import KmsgSettings
from exporter.model import Unavailable
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


class Short:
    """Two collectors of which `error` keeps the first from starting; `starts` and `closed` are their names in order."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.starts: list[str] = []
        self.closed: list[str] = []
        self.found = {
            name: Found(name, "", True, (), (), functools.partial(self._create, name)) for name in ("one", "two")
        }

    def _create(self, name: str, node: Node) -> Any:
        return SimpleNamespace(
            name=name,
            start=functools.partial(self._start, name),
            close=functools.partial(self.closed.append, name),
            collect=tuple,
        )

    def _start(self, name: str) -> None:
        self.starts.append(name)
        if self.error and name == "one":
            raise self.error

    def observer(self) -> Observer:
        observer = Observer(self.load(), self.found, None)
        observer.start()
        return observer

    def load(self) -> settings.Settings:
        return settings.load({}, {}, list(self.found.values()))


def values(observer: Observer, name: str) -> tuple[Any, Any]:
    """Return success and available of a collector."""
    found = {it.metric: it.value for it in observer.scraper.gather() if it.labels.get("collector") == name}
    return found[SUCCESS], found[AVAILABLE]


def test_a_reload_starts_what_had_failed_to_start(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collector that had no memory to start is a failure until there is some and the same settings are reloaded."""
    caplog.set_level("INFO")
    monkeypatch.setattr("exporter.log.configure", lambda *_: None)  # which takes the place of caplog's handler
    short = Short(BpfError(errno.ENOMEM, "load x: Cannot allocate memory"))
    observer = short.observer()
    assert [(0, 1), (1, 1)] == [values(observer, name) for name in ("one", "two")]
    assert ("ERROR", "collector one failed: BpfError: load x: Cannot allocate memory") in [
        (it.levelname, it.getMessage()) for it in caplog.records
    ]

    observer.apply(short.load())
    assert [(0, 1), (1, 1)] == [values(observer, name) for name in ("one", "two")]
    assert ("ERROR", "these collectors failed to start: one") in [
        (it.levelname, it.getMessage()) for it in caplog.records
    ]

    short.error = None
    observer.apply(short.load())
    assert [(1, 1), (1, 1)] == [values(observer, name) for name in ("one", "two")]
    assert ["one", "two"] * 3 == short.starts
    assert ["two"] * 2 == short.closed
    observer.close()


@pytest.mark.parametrize("error", [None, Unavailable("no such device")])
def test_a_reload_of_the_same_settings(error: Exception | None) -> None:
    """Without a failure, collectors run on after a reload; hardware that the node lacks is missing until a restart."""
    short = Short(error)
    observer = short.observer()
    observer.apply(short.load())
    assert ["one", "two"] == short.starts
    assert [] == short.closed
    observer.close()


def test_a_reload_searches_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for libraries that could not begin begins at a reload; one that has begun goes on."""
    short = Short(None)
    refusals = [BpfError(errno.ENOMEM, "no memory"), None, None]

    def start(_: Targets) -> None:
        if refusal := refusals.pop(0):
            raise refusal

    monkeypatch.setattr(Targets, "start", start)
    observer = short.observer()
    assert "no memory" == observer.refusal
    for _ in range(2):
        observer.apply(short.load())
        assert not observer.refusal
    assert [None] == refusals
    observer.close()


class Probing:
    """Two collectors of which the first wants libraries."""

    def __init__(self) -> None:
        self.seen = 0
        self.found = {name: Found(name, "", True, (), (), functools.partial(self._create, name)) for name in ("a", "b")}

    def _create(self, name: str, node: Node) -> Any:
        wanting = name == "a"

        def collect() -> tuple[()]:
            if wanting:
                node.targets.require()
            return ()

        interest: Any = SimpleNamespace(symbols=("x",))
        start = functools.partial(node.targets.want, interest) if wanting else lambda: None
        return SimpleNamespace(name=name, start=start, close=lambda: None, collect=collect)

    def load(self) -> settings.Settings:
        return settings.load({}, {}, list(self.found.values()))


@pytest.mark.parametrize(
    ("code", "health", "shown"),
    [(errno.ENOTSUP, Health.UNAVAILABLE, (0, 0)), (errno.ENOMEM, Health.FAILED, (0, 1))],
)
def test_what_needs_the_search_is_not_available_without_it(
    monkeypatch: pytest.MonkeyPatch, code: int, health: Health, shown: tuple[int, int]
) -> None:
    """Collectors of libraries have the reason why none is searched for, until a reload has begun the search."""

    def refuse(_: Targets) -> None:
        raise BpfError(code, "no such namespace")

    probing = Probing()
    with monkeypatch.context() as patched:
        patched.setattr(Targets, "begin", refuse)
        observer = Observer(probing.load(), probing.found, None)
        observer.start()
        assert [shown, (1, 1)] == [values(observer, name) for name in ("a", "b")]
        [blind, other] = observer.scraper.states()
        assert (health, Health.OK) == (blind.health, other.health)
        assert "no library can be probed: no such namespace" in blind.reason
    monkeypatch.setattr(Targets, "begin", lambda _: None)
    observer.apply(probing.load())
    assert [(1, 1), (1, 1)] == [values(observer, name) for name in ("a", "b")]
    observer.close()


def test_no_scrape_before_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """No scrape is answered before it is known whether libraries can be searched for, also at a reload."""
    probing, ready = Probing(), []
    observer = Observer(probing.load(), probing.found, None)
    monkeypatch.setattr(Targets, "begin", lambda _: ready.append(observer.scraper.ready))
    observer.start()
    monkeypatch.setattr("exporter.log.configure", lambda *_: None)
    observer.apply(dataclasses.replace(probing.load(), kmsg=KmsgSettings("/dev/null")))
    assert [False, False, True] == [*ready, observer.scraper.ready]
    observer.close()
