"""Spans on their way from the collectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from exporter.linking.linker import Linker
from exporter.linking.served import RecentRequests
from exporter.model import Link, Served, Span

SERVER, OTHER = 1 << 23, 1 + (1 << 23)
"""Pids that no processes have."""
CONTEXT = ("a" * 32, "b" * 16)


class Node:
    """A linker with what it sends; spans named in `unsampled` may not be sent, those in `refused` are not."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[Span] = []
        self.unsampled, self.refused = set[str](), set[str]()
        self.reads: list[tuple[int, int]] = []
        self.now = 0
        self.requests = RecentRequests()
        monkeypatch.setattr("exporter.linking.obi.ObiContexts.of", self._read)
        self.linker = Linker(
            folder, self.requests, lambda: self.now, lambda at: at, self._send, self._sampled, folder / "none"
        )

    def take(self, name: str, start: int, end: int, pid: int = SERVER, **more: Any) -> None:
        attributes = {} if more else {"nccl.api": "ncclAllReduce", "thread.id": 7}
        self.linker.take(Span(name, "c" * 32, name * 16, start, end, attributes, {"pid": str(pid)}, **more))

    def links(self, name: str) -> list[Link]:
        [span] = [it for it in self.sent if it.name == name]
        return [Link(*it) for it in span.links]

    def _read(self, pid: int, tid: int) -> tuple[str, str]:
        self.reads.append((pid, tid))
        return CONTEXT

    def _send(self, span: Span) -> bool:
        self.sent.append(span)
        return span.name not in self.refused

    def _sampled(self, span: Span) -> bool:
        return span.name not in self.unsampled


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_only_spans_that_are_sent_have_links(node: Node) -> None:
    """A request links to no span that is not sent, and of such spans no context is read."""
    node.unsampled, node.refused = {"1", "9"}, {"2"}
    for name in ("1", "2", "3"):
        node.take(name, 10, 20)
    request = Served(SERVER, 7, 5, 30)
    node.requests.add(request)
    node.take("8", 5, 30, served=request)
    node.take("9", 5, 30, served=request)
    assert ["1", "2", "3", "9"] == [it.name for it in node.sent]
    node.linker.close()
    assert ["3"] == [it.span_id[0] for it in node.links("8")]
    assert [] == node.links("9")
    assert [(SERVER, 7)] * 2 == node.reads


def test_a_context_before_and_after(node: Node) -> None:
    """Work has a link to the span that its thread had before and after; other spans pass as they are."""
    node.now = 30
    node.take("1", 10, 20)
    node.now = 60
    node.take("2", 40, 50)
    node.take("3", 40, 50, OTHER)
    node.take("4", 40, 50, slow=True)
    assert [[], [Link(*CONTEXT, {"link.kind": "thread", "link.source": "obi"})], [], []] == [
        node.links(name) for name in ("1", "2", "3", "4")
    ]
