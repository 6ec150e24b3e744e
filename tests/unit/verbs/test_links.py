"""RDMA work is linked to the collectives that it may serve."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from exporter.collectors import verbs
from exporter.model import Span
from tests.nodes import make_node


@pytest.mark.parametrize(
    ("received", "expected"), [(False, ("early",)), (True, ("late", "early"))], ids=["sent", "received"]
)
def test_links(monkeypatch: pytest.MonkeyPatch, received: bool, expected: tuple[str, ...]) -> None:
    """Sent messages link to collectives called before the post; received ones, to those before the completion."""
    monkeypatch.setattr(verbs, "span_of", lambda *_: Span("rdma", "t", "s", 0, 0, {}, {}))
    spans: list[Span] = []
    who: Any = SimpleNamespace(labels=lambda pid: {})
    nowhere: Any = None
    node = make_node({"series-limit": 1}, who, nowhere, spans.append)
    node.collectives.add(7, 1000, ("early", "1"))
    node.collectives.add(7, 3000, ("late", "2"))
    node.collectives.add(8, 1500, ("another process", "3"))
    collector = verbs.Verbs(node)
    collector.peers = nowhere
    collector.receive(SimpleNamespace(tgid=7, begin_ns=2000, end_ns=4000, received=received))
    assert [expected] == [tuple(trace for trace, _ in it.links) for it in spans]
