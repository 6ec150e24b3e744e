"""Custom probes where libraries cannot be searched for."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from exporter.bpf.native import BpfError
from exporter.bpf.targets import Targets
from exporter.collectors import custom
from exporter.custom import metrics
from exporter.custom.collector import Custom
from exporter.custom.folder import FolderError
from exporter.custom.probe import View
from exporter.model import Unavailable
from tests.nodes import make_node


def probe(name: str, *tracepoints: str) -> Any:
    definition = SimpleNamespace(name=name, tracepoints=tracepoints, readings=(), lost="")
    return SimpleNamespace(
        definition=definition,
        view=View(problem=""),
        attacher=SimpleNamespace(collect=tuple, states=tuple),
        ends=dict,
        process=lambda: (None, 0.0),
    )


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Custom:
    """A collector for which the search for libraries was refused."""
    monkeypatch.setattr(Targets, "begin", Mock(side_effect=BpfError(errno.ENOTSUP, "no such namespace")))
    targets = Targets()
    targets.want(Mock())
    with pytest.raises(BpfError):
        targets.start()
    return Custom(make_node({option.name: option.default for option in custom.OPTIONS}, Mock(), targets))


@pytest.mark.parametrize(("passing", "error"), [(True, FolderError), (False, Unavailable)])
def test_no_folder(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    collector: Custom,
    passing: bool,
    error: type[Exception],
) -> None:
    """A folder that cannot be read now is a failure. One that cannot be used makes the collector unavailable, with a
    warning, as somebody named the folder.
    """
    refused = FolderError("probes cannot be read")
    refused.passing = passing
    monkeypatch.setattr("exporter.custom.folder.load", Mock(side_effect=refused))
    with pytest.raises(error, match="probes cannot be read"):
        collector.start()
    warned = [] if passing else ["no custom probe is loaded: probes cannot be read"]
    assert warned == [it.getMessage() for it in caplog.records if it.levelname == "WARNING"]


def test_only_libraries(collector: Custom) -> None:
    """If all probes are of libraries, the collector is not available, and has the reason."""
    collector.probes = [probe("one"), probe("two")]
    with pytest.raises(Unavailable, match="no such namespace"):
        list(collector.collect())


def test_tracepoints_besides(collector: Custom) -> None:
    """A probe with tracepoints goes on; that of libraries is down, with the reason."""
    collector.probes = [probe("one"), probe("two", "sched:sched_switch")]
    collector._limits = {name: Mock(apply=tuple) for name in ("one", "two")}
    up = {it.labels["probe"]: it.value for it in collector.collect() if it.metric is metrics.UP}
    assert {"one": 0, "two": 1} == up
    assert ["one: no library can be probed: no such namespace"] == list(collector.problems())
