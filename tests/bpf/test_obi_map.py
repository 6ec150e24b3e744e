"""Trace contexts of threads in the map that OpenTelemetry eBPF Instrumentation (OBI) pins."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporter.linking.obi import AGAIN_SECONDS, ObiContexts
from tests.bpf.obi_map import HASH, ObiMap

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.evidence(feature="links between LLM requests and GPU work", on="stand-in"),
]
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def contexts(tmp_path: Path, clock: Clock) -> Iterator[ObiContexts]:
    made = ObiContexts(tmp_path / "bpf" / "otel" / "traces_ctx_v1", clock)
    yield made
    made.close()


def test_contexts_of_threads(tmp_path: Path, contexts: ObiContexts) -> None:
    """A thread has a context while it is in the map, and ids that are no ids are none."""
    with ObiMap(tmp_path) as pinned:
        pinned.set(7, 8, TRACE, SPAN)
        assert (TRACE, SPAN) == contexts.of(7, 8)
        assert contexts.of(8, 7) is None
        pinned.delete(7, 8)
        assert contexts.of(7, 8) is None
        for trace, span in (("0" * 32, SPAN), (TRACE, "0" * 16)):
            pinned.set(7, 8, trace, span)
            assert contexts.of(7, 8) is None


def test_a_map_that_comes_later(
    tmp_path: Path, contexts: ObiContexts, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is looked for again after a while, without a word while there is none."""
    assert contexts.of(7, 8) is None
    with ObiMap(tmp_path) as pinned:
        pinned.set(7, 8, TRACE, SPAN)
        assert contexts.of(7, 8) is None
        clock.now += AGAIN_SECONDS
        assert (TRACE, SPAN) == contexts.of(7, 8)
        contexts.close()
    clock.now += AGAIN_SECONDS
    assert contexts.of(7, 8) is None
    assert [] == caplog.records


def regular_file(folder: Path) -> Callable[[], None]:
    path = folder / "bpf" / "otel" / "traces_ctx_v1"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * 4096)
    return lambda: None


def other_map(kind: int, key: int, value: int) -> Callable[[Path], Callable[[], None]]:
    def make(folder: Path) -> Callable[[], None]:
        pinned = ObiMap(folder, kind, key, value)
        return lambda: pinned.__exit__()

    return make


@pytest.mark.parametrize(
    "make",
    [regular_file, other_map(HASH, 8, 24), other_map(9, 4, 24), other_map(9, 8, 32)],
    ids=["file", "type", "key", "value"],
)
def test_another_shape(
    tmp_path: Path,
    contexts: ObiContexts,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    make: Callable[[Path], Callable[[], None]],
) -> None:
    """Another map or file is not read, with one line in the log, and no descriptor is left open."""
    caplog.set_level(logging.WARNING)
    end = make(tmp_path)
    try:
        before = len([*Path("/proc/self/fd").iterdir()])
        for _ in range(3):
            assert contexts.of(7, 8) is None
            clock.now += AGAIN_SECONDS
        assert before == len([*Path("/proc/self/fd").iterdir()])
        assert 1 == len(caplog.records)
    finally:
        end()
