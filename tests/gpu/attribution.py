"""7. Which processes NVML lists, on which GPU, and with how many bytes."""

from __future__ import annotations

from collections.abc import Iterator

from deploy.demo.summary import Scrape
from tests.gpu.machine import Machine
from tests.gpu.outcome import CANNOT, CannotRun, Row, equal, expect

NUMBER = 7
MEMORY = "gpu_process_memory_usage_bytes"
USAGE = "gpu_cuda_memory_usage_bytes"


def run(machine: Machine) -> Iterator[Row]:
    with machine.job("eager") as job, machine.exporter() as exporter:
        job.run("eager", 1)
        pid = str(job.pid)
        exporter.until(lambda: bool(list(exporter.scrape().rows(MEMORY, pid=pid))), f"NVML does not list pid {pid}")
        seen = exporter.scrape()
        uuids = sorted({labels["gpu_uuid"] for labels, _ in seen.rows(MEMORY, pid=pid)})
        yield equal(NUMBER, "GPU of the job's pid", [job.uuid], uuids)
        by_nvml = round(seen.total(MEMORY, pid=pid) or 0)
        yield expect(NUMBER, "NVML's bytes of the job", by_nvml > 0, f"{by_nvml:,}")
        try:
            exporter.watch(job)
            exporter.until(lambda: returns(exporter.scrape()), "the return probes of allocations are not attached")
        except CannotRun as error:
            yield Row(NUMBER, "bytes the hooks saw of them", CANNOT, str(error))
            return
        job.run("eager", 2)
        seen = exporter.scrape()
        hooked = round(
            sum(v for it, v in seen.rows(USAGE, pid=pid, api_layer="driver") if it["memory"] != "pinned_host")
        )
        yield expect(NUMBER, "bytes the hooks saw of them", 0 < hooked <= by_nvml * 1.05, f"{hooked:,} of {by_nvml:,}")


def returns(page: Scrape) -> bool:
    """Return whether returns of allocations are seen: entry probes are attached before, and show launches."""
    return bool(page.total("accel_exporter_probe_attached", symbol="cuMemAlloc_v2"))
