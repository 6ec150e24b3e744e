"""Collectors of probes that cannot start."""

from __future__ import annotations

import errno
from typing import Any
from unittest.mock import Mock

import pytest

from exporter import discover, settings
from exporter.bpf import native
from exporter.bpf.libbpf import Object
from exporter.bpf.native import BpfError
from exporter.bpf.targets import Targets
from exporter.model import Collector, Unavailable
from tests.nodes import make_node

PROBING = ("cuda", "nccl", "cufile", "hip", "verbs", "exits")


def make(name: str) -> Collector:
    found = discover.collectors()
    loaded = settings.load({f"collector.{name}": True}, {}, [*found.values()])
    return found[name].create(make_node(loaded.collectors[name]))


@pytest.mark.parametrize("name", PROBING)
@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.ENOMEM, BpfError), (errno.EMFILE, BpfError), (errno.EPERM, Unavailable), (errno.EINVAL, Unavailable)],
)
def test_programs_that_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch, name: str, code: int, kind: type[Exception]
) -> None:
    """Only what the node lacks makes a collector unavailable; a shortage is a failure that an alert names."""

    def refuse(self: Object, *_: Any, **__: Any) -> None:
        raise native.failure(code, "load x")

    monkeypatch.setattr(Object, "__init__", refuse)
    with pytest.raises(kind, match="load x"):
        make(name).start()


@pytest.mark.parametrize("name", PROBING)
def test_no_search_for_libraries(name: str) -> None:
    """Without a search for libraries there are no samples: what is not known is no 0."""

    class Refused(Targets):
        def begin(self) -> None:
            raise BpfError(errno.ENOTSUP, "no such namespace")

    targets, found = Refused(), discover.collectors()
    targets.want(Mock())
    with pytest.raises(BpfError):
        targets.start()
    loaded = settings.load({f"collector.{name}": True}, {}, [*found.values()])
    made = found[name].create(make_node(loaded.collectors[name], targets=targets))
    with pytest.raises(Unavailable, match="no library can be probed: no such namespace"):
        next(iter(made.collect()))
