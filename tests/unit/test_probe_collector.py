"""Collectors of probes that cannot start."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from exporter import discover, settings
from exporter.bpf import native
from exporter.bpf.libbpf import Object
from exporter.bpf.native import BpfError
from exporter.model import Collector, Unavailable
from tests.nodes import make_node

PROBING = ("cuda", "nccl", "cufile", "verbs", "exits")


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
