"""The real exporter, a job with known calls, and what an OTLP collector gets of both."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bpf.cuda_node import Script, build_standins
from tests.program.process import Exporter
from tests.standins.otlp_sink import HttpSink
from tests.support import PATIENCE

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.evidence(feature="OTLP metrics", on="stand-in"),
    pytest.mark.evidence(feature="OTLP spans", on="stand-in"),
]

ROUNDS = 100
MILLISECOND = 1_000_000
CALLS = """
out = []
def timed(call):
    begin = time.time_ns(); call(); out.append((begin, time.time_ns()))
lib.standin_wait(c_uint64(30 * 1000000)); timed(lambda: lib.cuStreamSynchronize(None))
timed(lambda: globals().update(p=new(lib.cuMemAlloc_v2, size(3 << 20))))
h = new(lib.cuMemHostAlloc, size((1 << 20) - 1), 0)
timed(lambda: lib.cuMemcpyDtoH_v2(h, p, size(2 << 20)))
timed(lambda: new(lib.cuMemAlloc_v2, size(1 << 40), check=2))
"""
EXPECTED = [
    ("cuStreamSynchronize", {}),
    ("cuMemAlloc_v2", {"gpu.cuda.memory.bytes": 3 << 20, "gpu.cuda.memory.type": "device"}),
    ("cuMemcpyDtoH_v2", {"gpu.cuda.memory.copy.bytes": 2 << 20, "gpu.cuda.memory.copy.direction": "d2h"}),
    ("cuMemAlloc_v2", {"gpu.cuda.error.code": 2, "error.type": "CUDA_ERROR_OUT_OF_MEMORY"}),
]
FLAGS = (
    "--profile=debug",
    "--collector.cuda.wait-span-seconds=0.02",
    "--collector.cuda.allocation-span-bytes=1048576",
    "--collector.cuda.copy-span-bytes=1048576",
)


@pytest.fixture
def sink() -> Iterator[HttpSink]:
    sink = HttpSink()
    yield sink
    sink.close()


@pytest.fixture
def exporter(tmp_path: Path, sink: HttpSink) -> Iterator[Exporter]:
    build_standins()
    (tmp_path / "config.yaml").write_text("collector: {ras: false}")
    schedule = {"OTEL_BSP_SCHEDULE_DELAY": "200", "OTEL_METRIC_EXPORT_INTERVAL": "500"}
    flags = (*FLAGS, f"--config.file={tmp_path / 'config.yaml'}")
    running = Exporter(tmp_path, *flags, OTEL_EXPORTER_OTLP_ENDPOINT=sink.endpoint, **schedule)
    try:
        yield running.await_ready()
    finally:
        running.process.kill()
        running.process.wait(PATIENCE)


def attributes(point: Any) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in point.attributes}


def attached(exporter: Exporter, job: Script) -> bool:
    """Return whether all probes of the job's library are attached, return probes included."""
    prefix = f'accel_exporter_probe_attached{{library="{next(iter(job.libraries))}"'
    lines = [line for line in exporter.get("/metrics")[1].splitlines() if line.startswith(prefix)]
    return bool(lines) and all(float(line.rpartition(" ")[2]) for line in lines)


def test_every_span_of_a_known_job_arrives(exporter: Exporter, sink: HttpSink) -> None:
    """Each call above a threshold, and the failed one, is one span with its times, process and attributes."""
    with Script() as job:
        exporter.await_(lambda: attached(exporter, job))
        timed, least = list[tuple[int, int]](), [1 << 62] * 4

        def spans_of_the_job(sink: Any) -> list[Any]:
            return [it for it in sink.spans() if str(attributes(it).get("process.pid")) == str(job.pid)]

        def arrived(sink: Any) -> bool:
            return len(spans_of_the_job(sink)) >= len(timed)

        while max(least) > MILLISECOND:  # on a busy machine other threads run between the caller's clock and the call
            assert len(timed) < 4 * ROUNDS, f"nanoseconds between the caller's times and the spans', at least: {least}"
            timed += job.run(CALLS)
            sink.wait_for(arrived)
            spans = sorted(spans_of_the_job(sink), key=lambda span: span.start_time_unix_nano)

            assert [name for name, _ in EXPECTED] * (len(timed) // 4) == [span.name for span in spans]
            for call, (span, (begin, end)) in enumerate(zip(spans[-4:], timed[-4:], strict=True)):
                assert {**EXPECTED[call][1], "process.pid": str(job.pid)}.items() <= {
                    key: str(value) if key == "process.pid" else value for key, value in attributes(span).items()
                }.items()
                first, last = span.start_time_unix_nano, span.end_time_unix_nano
                assert begin - MILLISECOND <= first <= last <= end + MILLISECOND
                least[call] = min(least[call], max(abs(first - begin), abs(end - last)))


def test_metrics_of_a_known_job_are_the_pages(exporter: Exporter, sink: HttpSink) -> None:
    """The OTLP collector's metrics of a job at rest equal those of /metrics."""
    with Script() as job:
        exporter.await_(lambda: attached(exporter, job))
        job.run("for _ in range(23): lib.cuLaunchKernel()")
        comm = Path(sys.executable).name[:15]
        series = f'gpu_cuda_kernel_launch_calls_total{{api_layer="driver",comm="{comm}",pid="{job.pid}"}}'
        exporter.await_(lambda: exporter.value(series) == 23)
        sink.metrics.clear()
        sink.wait_for(lambda sink: len(sink.metrics) > 1)
        del sink.metrics[:-1]  # the first may have been on its way before

        [sent] = {
            point.as_int or point.as_double
            for metric, point in sink.points()
            if metric.name == "gpu.cuda.kernel.launch.calls" and str(attributes(point)["process.pid"]) == str(job.pid)
        }
        assert 23 == sent


def restarts(sink: HttpSink) -> tuple[set[str], list[str]]:
    """The names of the counters that fell, and what of their series contradicts OTLP's data model."""
    before: dict[Any, tuple[float, int, int]] = {}
    fallen, wrong = set(), []
    for metric, point in sink.points():
        kind = metric.WhichOneof("data")
        if kind == "gauge":
            continue
        value = point.count if kind == "histogram" else point.as_int or point.as_double
        series = metric.name, tuple(sorted(attributes(point).items()))
        start, time = point.start_time_unix_nano, point.time_unix_nano
        last_value, last_start, last_time = before.get(series, (0, 0, 0))
        if start > time or start < last_start or (value < last_value and start < last_time):
            wrong.append(f"{series}: {last_value} at {last_time} since {last_start}, {value} at {time} since {start}")
        if value < last_value:
            fallen.add(metric.name)
        before[series] = value, start, time
    return fallen, wrong


def test_counters_that_a_reload_restarts_have_a_new_start(exporter: Exporter, sink: HttpSink, tmp_path: Path) -> None:
    """After a reload that makes the collectors again, what fell starts after its last point."""
    with Script() as job:
        exporter.await_(lambda: attached(exporter, job))
        allocate = "for _ in range({}): new(lib.cuMemAllocManaged, size(64), 1)"
        job.run(allocate.format(2300))
        hits = 'accel_exporter_probe_hits_total{probe="cuda",symbol="cuMemAllocManaged"}'
        exporter.await_(lambda: (exporter.value(hits) or 0) >= 2300)
        requests = len(sink.metrics)
        sink.wait_for(lambda sink: len(sink.metrics) > requests + 2)

        (tmp_path / "config.yaml").write_text("collector: {ras: true}")
        exporter.process.send_signal(signal.SIGHUP)
        exporter.await_(lambda: (exporter.value(hits) or 0) < 2300)
        exporter.await_(lambda: attached(exporter, job))
        job.run(allocate.format(23))
        exporter.await_(lambda: 23 <= (exporter.value(hits) or 0) < 2300)
        requests = len(sink.metrics)
        sink.wait_for(lambda sink: len(sink.metrics) > requests + 2)

    fallen, wrong = restarts(sink)
    assert "accel_exporter.probe.hits" in fallen  # the overhead too, unless the machine has got slower
    assert [] == wrong
