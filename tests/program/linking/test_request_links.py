"""Links of requests' spans to the work of GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.linking import request_links
from exporter.linking.request_links import MOST_LINKS, RequestLinks
from exporter.linking.served import RecentRequests
from exporter.linking.work import PROCESSES, SPANS, Reading, Work, work_of
from exporter.model import Link, Served, Span
from tests.support import until

MS = 1_000_000
AHEAD = 1_700_000_000_000_000_000
"""Wall time at monotonic time 0."""
SERVER, THREAD = 1 << 23, 11
"""A pid that no process has."""
ONLY = {"link.kind": "thread"}
ALSO = {"link.kind": "concurrent", "link.same_thread": True}
OTHER = {"link.kind": "concurrent"}


def span(name: str, start: int, end: int, pid: int = SERVER, **attributes: Any) -> Span:
    process = {"pid": str(pid)}
    return Span(name, name.rjust(32, "0"), name.rjust(16, "0"), AHEAD + start, AHEAD + end, attributes, process)


def work(name: str, start: int, end: int, tid: int = THREAD, pid: int = SERVER, **more: Any) -> Work:
    made = work_of(span(name, start, end, pid, **{"gpu.cuda.api": "cuStreamSynchronize", "thread.id": tid}))
    assert made
    return replace(made, **more)


@pytest.fixture
def requests() -> RecentRequests:
    return RecentRequests()


@pytest.fixture
def sent() -> list[Span]:
    return []


@pytest.fixture
def links(requests: RecentRequests, sent: list[Span], tmp_path: Path) -> Iterator[RequestLinks]:
    made = RequestLinks(tmp_path, requests, lambda monotonic: AHEAD + monotonic, sent.append)
    yield made
    made.close()


@pytest.fixture
def served(requests: RecentRequests) -> Callable[..., Served]:
    """Make a request that was read 20 ms after the span's begin."""

    def make(start: int, end: int, tid: int = THREAD, others: int = 0) -> Served:
        made = Served(SERVER, tid, start + 20 * MS, end, others, end)
        requests.add(made)
        return made

    return make


def linked(links: RequestLinks, request: Served) -> dict[str, Any]:
    made = links.linked(span("request", request.read_ns - 20 * MS, request.end_ns), request)
    assert not made.links_dropped
    return {Link(*it).span_id.lstrip("0"): dict(Link(*it).attributes) for it in made.links}


def test_work_while_the_request_ran(links: RequestLinks, served: Callable[..., Served]) -> None:
    """Of the thread, of others, and none before the request was read or after its end."""
    request = served(0, 100 * MS)
    links.add_work(work("a", 30 * MS, 40 * MS))
    links.add_work(work("b", 50 * MS, 60 * MS, tid=12))
    links.add_work(work("c", 5 * MS, 20 * MS))
    links.add_work(work("d", 100 * MS, 110 * MS))
    links.add_work(work("e", 10 * MS, 110 * MS))  # it began before: of another request
    links.add_work(work("f", 30 * MS, 40 * MS, pid=SERVER + 1))
    assert {"a": ONLY, "b": OTHER, "e": ALSO} == linked(links, request)


def test_several_requests_of_a_thread(links: RequestLinks, served: Callable[..., Served]) -> None:
    """Each has a link to the work that may be of any of them."""
    one, two = served(0, 100 * MS), served(40 * MS, 200 * MS)
    links.add_work(work("a", 30 * MS, 40 * MS))
    links.add_work(work("b", 70 * MS, 80 * MS))
    links.add_work(work("c", 130 * MS, 140 * MS))
    assert {"a": ONLY, "b": ALSO} == linked(links, one)
    assert {"b": ALSO, "c": ONLY} == linked(links, two)


@pytest.mark.parametrize("request_", [{"others": 1}, {"tid": 0}])
def test_what_is_not_known(links: RequestLinks, served: Callable[..., Served], request_: Any) -> None:
    """The other request in flight may have the same thread, and a request that several threads had has none."""
    request = served(0, 100 * MS, **request_)
    links.add_work(work("a", 30 * MS, 40 * MS))
    assert {"a": OTHER if "tid" in request_ else ALSO} == linked(links, request)


def test_the_number_of_links_is_bounded(links: RequestLinks, served: Callable[..., Served]) -> None:
    """Links of the thread are kept first, then the longest; the others are counted."""
    request = served(0, 1000 * MS)
    for at in range(SPANS):
        links.add_work(work(f"{at:x}", 30 * MS, (100 + at) * MS, tid=12))
    links.add_work(work("ff0", 31 * MS, 32 * MS))
    made = links.linked(span("request", 0, 1000 * MS), request)
    names = [Link(*it).span_id.lstrip("0") for it in made.links]
    assert ["ff0", *(f"{at:x}" for at in range(SPANS - 1, SPANS - MOST_LINKS, -1))] == names
    assert SPANS - MOST_LINKS == made.links_dropped


def test_processes_are_bounded(links: RequestLinks, served: Callable[..., Served]) -> None:
    """Work of those that had some last is kept."""
    request = served(0, 100 * MS)
    links.add_work(work("a", 30 * MS, 40 * MS))
    for pid in range(PROCESSES):
        links.add_work(work("b", 30 * MS, 40 * MS, pid=SERVER + 1 + pid))
    assert {} == linked(links, request)


def test_a_span_waits_for_late_work(
    links: RequestLinks, served: Callable[..., Served], sent: list[Span], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that arrives shortly after the span is linked too."""
    monkeypatch.setattr(request_links, "WAIT_SECONDS", 0.2)
    links.hold(span("request", 0, 100 * MS), served(0, 100 * MS))
    links.add_work(work("a", 30 * MS, 40 * MS))
    until(lambda: sent, "sent")
    assert ["a"] == [Link(*it).span_id.lstrip("0") for it in sent[0].links]


def test_nothing_is_lost(links: RequestLinks, served: Callable[..., Served], sent: list[Span]) -> None:
    """Spans that wait at the end are sent, and later ones."""
    for at in range(23):
        links.hold(span(f"{at:x}", 0, 100 * MS), served(0, 100 * MS))
    links.close()
    links.hold(span("ff", 0, 100 * MS), served(0, 100 * MS))
    assert [*(f"{at:x}" for at in range(23)), "ff"] == [it.name for it in sent]


def test_too_many_wait(
    links: RequestLinks, served: Callable[..., Served], sent: list[Span], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further ones are sent at once, with the links that are known."""
    monkeypatch.setattr(request_links, "MOST_WAITING", 1)
    links.add_work(work("a", 30 * MS, 40 * MS))
    for name in ("1", "2"):
        links.hold(span(name, 0, 100 * MS), served(0, 100 * MS))
    assert [("2", 1)] == [(it.name, len(it.links)) for it in sent]


def test_an_engine_is_looked_for_again(
    links: RequestLinks, requests: RecentRequests, served: Callable[..., Served], tmp_path: Path
) -> None:
    """The server of an engine is known once it has served; before that the work has no link."""
    engine = tmp_path / str(SERVER + 1)
    engine.mkdir()
    (engine / "stat").write_text(f"1 (engine) S {SERVER} {'0 ' * 17}5 0\n")
    links.add_work(work("a", 30 * MS, 40 * MS, pid=SERVER + 1))
    (engine / "stat").unlink()
    other = Served(SERVER + 2, 1, 0, 100 * MS)
    requests.add(other)
    assert {} == linked(links, other)
    assert {"a": OTHER} == linked(links, served(0, 100 * MS))


@pytest.mark.parametrize(
    ("reading", "linked"),
    [
        ({"a": 50}, True),
        ({"a": 50, "b": 90}, True),
        ({"a": 120}, False),  # of the next request
        ({"a": 50, "c": 90}, False),  # the thread had two
        ({"a": 75}, False),  # another request had begun
        ({"e": 50}, False),  # it was there before the request
        ({}, False),
    ],
)
def test_the_span_of_obi(
    links: RequestLinks, served: Callable[..., Served], requests: RecentRequests, reading: dict[str, int], linked: bool
) -> None:
    """The span that OBI has for the request is known if the context was read while the request had the thread."""
    request = served(0, 100 * MS)
    if reading == {"a": 75}:
        requests.add(replace(request, read_ns=70 * MS, end_ns=80 * MS))
    for name, at in reading.items():
        context, since = ("f" * 32, ("c" if name == "c" else "d") * 16), 10 if name == "e" else at
        made = Reading(context, AHEAD + at * MS, AHEAD + since * MS)
        links.add_work(work(name, 30 * MS, 40 * MS, reading=made))
    found = [Link(*it) for it in links.linked(span("request", 0, 100 * MS), request).links]
    expected = [Link("f" * 32, "d" * 16, {"link.kind": "thread", "link.source": "obi"})] if linked else []
    assert expected == [it for it in found if "link.source" in it.attributes]
