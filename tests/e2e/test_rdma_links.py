"""Two ranks that call NCCL and then post RDMA work: what an OTLP collector gets links the one to the other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.bpf.verbs_node import BUILD, PROVIDER, Job, build_standins
from tests.e2e.test_otlp import attributes
from tests.program.process import Exporter
from tests.standins.otlp_sink import HttpSink
from tests.support import PATIENCE

pytestmark = pytest.mark.needs_bpf

NCCL = BUILD / "libnccl.so.2"
SEND = 2
SECOND = 1_000_000_000
FLAGS = (
    "--profile=debug",
    "--collector.verbs.poll-window-seconds=1",
    "--collector.verbs.poll-interval-seconds=1",
    "--collector.verbs.span-seconds=0",
    "--collector.nccl.slow-call-seconds=0",
)


@pytest.fixture
def sink() -> Iterator[HttpSink]:
    sink = HttpSink()
    yield sink
    sink.close()


@pytest.fixture
def exporter(tmp_path: Path, sink: HttpSink) -> Iterator[Exporter]:
    build_standins()
    running = Exporter(tmp_path, *FLAGS, OTEL_EXPORTER_OTLP_ENDPOINT=sink.endpoint, OTEL_BSP_SCHEDULE_DELAY="100")
    try:
        yield running.await_ready()
    finally:
        running.process.kill()
        running.process.wait(PATIENCE)


def attached(exporter: Exporter, library: Path) -> bool:
    probes = rf'^accel_exporter_probe_attached{{library="{re.escape(str(library))}".* (\d)$'
    return {"1"} == set(re.findall(probes, exporter.get("/metrics")[1], re.MULTILINE))


def spans(sink: HttpSink, name: str, pid: int) -> list[Any]:
    return [it for it in sink.spans() if it.name == name and attributes(it).get("process.pid") == pid]


def reduce_and_send(sink: HttpSink, rank: Job, number: int) -> bool:
    """Have a rank call and then post. Return whether that was within a second: later, work has no link."""
    rank.step("sleep", 1_100_000)  # what was called before is no candidate any more
    called, sent = (len(spans(sink, name, rank.pid)) for name in ("AllReduce", "rdma SEND"))
    assert 0 == rank.step("reduce", number, 2)
    assert 0 == rank.post(8, 1, opcode=SEND)
    sink.wait_for(lambda sink: len(spans(sink, "AllReduce", rank.pid)) > called)
    rank.step("complete", 1, 0)
    assert 1 == rank.step("poll", 1)
    sink.wait_for(lambda sink: len(spans(sink, "rdma SEND", rank.pid)) > sent)
    call, *work = spans(sink, "AllReduce", rank.pid)[-1], *spans(sink, "rdma SEND", rank.pid)[sent:]
    assert 1 == len(work)
    return bool(work[0].start_time_unix_nano - call.start_time_unix_nano < 0.9 * SECOND)


def test_work_links_to_the_collective_it_serves(exporter: Exporter, sink: HttpSink) -> None:
    """The SEND that each rank posted after its all-reduce links to the span of that very call, and of no other rank."""
    with ExitStack() as stack:
        ranks = [stack.enter_context(Job(nccl=NCCL)) for _ in range(2)]
        for number, rank in enumerate(ranks):
            assert 0 == rank.step("reduce", number, 2)  # loads the library
        for library in (NCCL, PROVIDER):
            exporter.await_(lambda library=library: attached(exporter, library))
        for number, rank in enumerate(ranks):
            assert rank.create() > 0
            while not reduce_and_send(sink, rank, number):
                pass  # the rank or this process had no processor for a second
        collectives = [spans(sink, "AllReduce", rank.pid)[-1] for rank in ranks]
        work = [spans(sink, "rdma SEND", rank.pid)[-1:] for rank in ranks]
    assert [[[(it.trace_id, it.span_id)]] for it in collectives] == [
        [[(link.trace_id, link.span_id) for link in span.links] for span in of_rank] for of_rank in work
    ]
