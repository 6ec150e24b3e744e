"""The demo's summary of two scrapes."""

from __future__ import annotations

import math
import tempfile

import pytest

from deploy.demo.__main__ import Demo
from deploy.demo.summary import Scrape, Summary, one_line, parse, quantile

BEFORE = r"""# HELP gpu_cuda_kernel_launch_calls_total Kernel launches.
# TYPE gpu_cuda_kernel_launch_calls_total counter
gpu_cuda_kernel_launch_calls_total{api_layer="driver",pid="7",comm="a \"b\" {c}"} 1000
gpu_cuda_memory_copies_bytes_total{pid="7",direction="h2d",host_memory="pinned"} 1048576
gpu_cuda_sync_wait_seconds_bucket{pid="7",api="cuStreamSynchronize",le="0.001"} 10
gpu_cuda_sync_wait_seconds_bucket{pid="7",api="cuStreamSynchronize",le="0.002"} 10
gpu_cuda_sync_wait_seconds_bucket{pid="7",api="cuStreamSynchronize",le="+Inf"} 10
process_cpu_seconds_total 1.5
"""
AFTER = r"""gpu_cuda_kernel_launch_calls_total{api_layer="driver",pid="7",comm="a \"b\" {c}"} 5600
gpu_cuda_memory_usage_bytes{pid="7",api_layer="driver",memory="device"} 3221225472
gpu_cuda_memory_usage_bytes{pid="7",api_layer="runtime",memory="device"} 1
gpu_cuda_memory_usage_bytes{pid="8",api_layer="driver",memory="device"} 1
gpu_cuda_memory_copies_bytes_total{pid="7",direction="h2d",host_memory="pinned"} 5242880
gpu_cuda_sync_wait_seconds_bucket{pid="7",api="cuStreamSynchronize",le="0.001"} 10
gpu_cuda_sync_wait_seconds_bucket{pid="7",api="cuStreamSynchronize",le="0.002"} 30
gpu_cuda_sync_wait_seconds_bucket{pid="7",api="cuStreamSynchronize",le="+Inf"} 30
accel_exporter_probe_attached{probe="cuda",symbol="cuLaunchKernel",library="libcuda.so.1",placement="emulated"} 1
accel_exporter_probe_attached{probe="cuda",symbol="cuMemFree_v2",library="libcuda.so.1",placement="symbol"} 0
process_cpu_seconds_total 1.52
process_resident_memory_bytes 41943040
"""


def facts_after(seconds: float) -> dict[str, str]:
    summary = Summary("7")
    summary.update(Scrape(at=100.0, seconds=0.004, series=parse(BEFORE)))
    return summary.update(Scrape(at=100.0 + seconds, seconds=0.004, series=parse(AFTER)))


def test_rates_are_between_the_two_scrapes() -> None:
    """4,600 launches and 4 MiB of copies in two seconds are 2,300 launches and 2 MiB a second."""
    facts = facts_after(2.0)
    assert "2,300" == facts["launches/s"].split()[0]
    assert "h2d pinned 2.0 MiB" == facts["copies/s"]


def test_memory_is_the_driver_layers() -> None:
    """Bytes in use are the driver's, by kind of memory; neither the runtime's nor another process's are added."""
    assert "device 3.0 GiB" == facts_after(2.0)["in use"]


def test_waits_are_those_of_the_last_interval() -> None:
    """Quantiles come from what was observed since the scrape before, interpolated inside its bucket."""
    assert "cuStreamSynchronize p50 1.5 ms p99 2.0 ms" == facts_after(2.0)["waits"]


def test_the_late_rank() -> None:
    """Each rank's mean lag is of the calls between the scrapes; what all ranks call is added up."""
    lag = 'nccl_rank_arrival_lag_seconds_{part}{{pid="{pid}",comm_hash="ab",rank="{rank}"}} {value}'
    calls = 'nccl_collective_calls_total{{pid="{pid}",collective="AllReduce"}} {value}'
    bus = 'nccl_collective_bus_bytes_total{{pid="{pid}",collective="AllReduce"}} {value}'

    def scrape(at: float, rounds: int, late: float) -> Scrape:
        lines = []
        for rank, pid in enumerate(("7", "8")):
            lines.append(lag.format(part="sum", pid=pid, rank=rank, value=late * rank))
            lines.append(lag.format(part="count", pid=pid, rank=rank, value=rounds))
            lines += [calls.format(pid=pid, value=rounds), bus.format(pid=pid, value=rounds << 20)]
        return Scrape(at=at, seconds=0.004, series=parse("\n".join(lines)))

    summary = Summary("1", ("7", "8"))
    assert "-" == summary.update(scrape(100, 10, 9.0))["ranks late by"]
    facts = summary.update(scrape(102, 30, 9.7))
    assert "rank 0 0 µs · rank 1 35.0 ms" == facts["ranks late by"]
    assert "2 ranks · 20 collectives/s · bus 10.0 MiB/s a rank" == facts["NCCL"]


def test_only_attached_probes_count() -> None:
    """A probe that is known and not attached is not shown as attached."""
    assert "1 attached in 1 libraries (emulated 1)" == facts_after(2.0)["probes"]


def test_what_the_exporter_costs() -> None:
    """Resident memory and CPU share of the exporter are its own process metrics."""
    shown = facts_after(2.0)["exporter"]
    assert "scrape 4.0 ms · 12 series · 40.0 MiB resident · 1.0% of a core" == shown


def test_what_is_not_there_is_a_dash() -> None:
    """Without a series there is no number, in particular no zero."""
    summary = Summary("7")
    summary.update(Scrape(at=1.0, seconds=0.0, series={}))
    facts = summary.update(Scrape(at=2.0, seconds=0.0, series={}))
    assert ["-", "-", "-", "-"] == [facts[name].split()[0] for name in ("launches/s", "in use", "waits", "probes")]


def test_one_line_has_no_drawing() -> None:
    """The line for a log has every heading and no bars."""
    line = one_line(facts_after(2.0))
    assert line.startswith("launches/s 2,300 | ")
    assert "\n" not in line and "█" not in line


GPU = """hw_status{hw_type="gpu",gpu="1",gpu_uuid="GPU-1",state="ok"} 1
hw_status{hw_type="gpu",gpu="1",gpu_uuid="GPU-1",state="lost"} 0
hw_gpu_utilization_ratio{gpu="1",gpu_uuid="GPU-1",task="general"} 0.63
hw_gpu_memory_usage_bytes{gpu="1",gpu_uuid="GPU-1"} 1073741824
hw_gpu_memory_limit_bytes{gpu="1",gpu_uuid="GPU-1"} 2147483648
hw_power_watts{hw_type="gpu",gpu="1",gpu_uuid="GPU-1"} 311.6
hw_temperature_celsius{hw_type="gpu",gpu="1",gpu_uuid="GPU-1",sensor="memory"} 80
hw_temperature_celsius{hw_type="gpu",gpu="1",gpu_uuid="GPU-1",sensor="gpu"} 41
hw_status{hw_type="gpu",gpu="2",gpu_uuid="GPU-2",state="lost"} 1
gpu_process_memory_usage_bytes{pid="7",gpu="1",gpu_uuid="GPU-1",kind="compute"} 536870912
gpu_process_memory_usage_bytes{pid="8",gpu="1",gpu_uuid="GPU-1",kind="compute"} 1
gpu_process_utilization_ratio{pid="7",gpu="1",gpu_uuid="GPU-1",engine="sm"} 0.5
gpu_xid_errors_total{gpu="1",gpu_uuid="GPU-1",xid="13",action="RESTART_APP"} 2
gpu_xid_errors_total{gpu="1",gpu_uuid="GPU-1",xid="31",action="RESTART_APP"} 0
"""


def test_gpus_and_the_jobs_share() -> None:
    """A line for each GPU with what is known of it, the job's own memory and use, and Xids that happened."""
    facts = Summary("7").update(Scrape(at=1.0, seconds=0.0, series=parse(GPU)))
    expected = ("use 63% · memory 1.0 GiB of 2.0 GiB · 312 W · 41 °C", "lost", "memory 512.0 MiB · sm 50%")
    assert (*expected, "13 on GPU 1: RESTART_APP (2)") == (
        facts["GPU 1"],
        facts["GPU 2"],
        facts["its share"],
        facts["Xids"],
    )


@pytest.mark.parametrize(
    ("q", "buckets", "expected"),
    [
        (0.5, {}, None),
        (0.5, {1.0: 0.0, math.inf: 0.0}, None),
        (0.5, {1.0: 10.0, math.inf: 10.0}, 0.5),
        (0.99, {1.0: 10.0, math.inf: 20.0}, 1.0),
        (0.75, {1.0: 10.0, 2.0: 20.0, math.inf: 20.0}, 1.5),
    ],
)
def test_quantile(q: float, buckets: dict[float, float], expected: float | None) -> None:
    """Quantiles are Prometheus's histogram_quantile; above the last bound they are that bound."""
    assert expected == quantile(q, buckets)


def test_the_job_starts_once_allocations_are_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return probes come after the others: a job that begins between them has memory that nobody counts."""
    row = 'accel_exporter_probe_attached{symbol="%s",library="libcuda.so.1"} %d\n'
    pages = [(row % ("cuLaunchKernel", 1)) + (row % ("cuMemAlloc_v2", probed)) for probed in (0, 0, 1, 1)]
    given = iter(Scrape(at=0, seconds=0, series=parse(page)) for page in pages)
    with tempfile.TemporaryFile("a+b") as log, Demo("http://127.0.0.1:1/", log) as demo:
        monkeypatch.setattr(demo, "scrape", lambda: next(given))
        demo.await_allocations("libcuda.so.1")

    assert 1 == len([*given])
