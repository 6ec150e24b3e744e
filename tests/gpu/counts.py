"""4. What the probes count of a training loop against what the loop itself knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deploy.demo.summary import Scrape
from tests.gpu.machine import Exporter, Job, Machine
from tests.gpu.outcome import CANNOT, CannotRun, Row, equal, expect

NUMBER = 4
STEPS = 10
LOOPS = ("eager", "compiled", "graphs")
LAUNCHES, GRAPHS = "gpu_cuda_kernel_launch_calls_total", "gpu_cuda_graph_launch_calls_total"
USAGE, COPIED = "gpu_cuda_memory_usage_bytes", "gpu_cuda_memory_copies_bytes_total"
OF_PROCESS = "gpu_process_memory_usage_bytes"
DEVICE = ("device", "vmm", "pool", "managed")


def run(machine: Machine) -> Iterator[Row]:
    with machine.exporter("--collector.cuda.layers=both") as exporter, machine.job("tiny") as other:
        exporter.watch(other)  # the libraries are probed before the job begins, so its first call is seen
        exporter.await_attached()
        for allocator in ("expandable_segments:False", "expandable_segments:True"):
            yield from _job(machine, exporter, allocator)


def _job(machine: Machine, exporter: Exporter, allocator: str) -> Iterator[Row]:
    with _with(machine, PYTORCH_CUDA_ALLOC_CONF=allocator).job("eager", also=(*LOOPS, "copies")) as job:
        exporter.watch(job)
        for loop in LOOPS:
            yield from _loop(exporter, job, loop, allocator)
        yield from _copies(exporter, job, allocator)
        yield from _memory(exporter, job, allocator)


def _with(machine: Machine, **variables: str) -> Machine:
    return Machine(machine.dry, {**machine.environment, **variables}, machine.scenario)


def _loop(exporter: Exporter, job: Job, loop: str, allocator: str) -> Iterator[Row]:
    question = f"launches, {loop}, {allocator}"
    if loop not in job.loops:
        yield Row(NUMBER, question, CANNOT, job.why)
        return
    job.run(loop, 2)
    before = exporter.scrape()
    did = job.run(loop, STEPS)
    seen = exporter.scrape()
    yield equal(NUMBER, question, _launches(did), _counted(before, seen, str(job.pid)))


def _launches(did: Mapping[str, Any]) -> str:
    own = did["runtime_launches"]
    return f"runtime {own}, driver {own + did['driver_launches']}, graphs {did['graph_launches']}"


def _counted(before: Scrape, seen: Scrape, pid: str) -> str:
    def more(metric: str, layer: str) -> int:
        then = before.total(metric, pid=pid, api_layer=layer) or 0
        return round((seen.total(metric, pid=pid, api_layer=layer) or 0) - then)

    runtime, driver = more(LAUNCHES, "runtime"), more(LAUNCHES, "driver")
    return f"runtime {runtime}, driver {driver}, graphs {more(GRAPHS, 'driver')}"


def _copies(exporter: Exporter, job: Job, allocator: str) -> Iterator[Row]:
    loop = "copies" if "copies" in job.loops else "eager"
    job.run(loop, 1)
    before = _routes(exporter.scrape(), str(job.pid))
    did = job.run(loop, STEPS)["copied"]
    after = _routes(exporter.scrape(), str(job.pid))
    yield equal(
        NUMBER,
        f"bytes copied, {allocator}",
        did,
        {route: round(after.get(route, 0) - before.get(route, 0)) for route in did},
    )


def _routes(scrape: Scrape, pid: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for labels, value in scrape.rows(COPIED, pid=pid):
        route = " ".join(labels[it] for it in ("direction", "host_memory") if it in labels)
        sums[route] = sums.get(route, 0.0) + value
    return sums


def _memory(exporter: Exporter, job: Job, allocator: str) -> Iterator[Row]:
    """Hooks see at least the framework's cache, and at most what NVML reports of the process, its context included."""
    reserved = job.run("eager", 1)["reserved"]
    seen = exporter.scrape()
    by_kind = seen.by("memory", USAGE, pid=str(job.pid), api_layer="driver")
    used = round(sum(by_kind.get(kind, 0) for kind in DEVICE))
    question = f"bytes in use, {allocator}"
    shown = f"hooks {used:,}, framework's cache {reserved:,}"
    yield expect(
        NUMBER, f"{question}: hooks against the framework", reserved <= used < reserved * 1.5 + (1 << 30), shown
    )
    try:
        exporter.until(
            lambda: bool(exporter.scrape().total(OF_PROCESS, pid=str(job.pid))), "NVML names no such process"
        )
    except CannotRun as error:
        yield Row(NUMBER, f"{question}: hooks against NVML", CANNOT, str(error))
        return
    whole = round(exporter.scrape().total(OF_PROCESS, pid=str(job.pid)) or 0)
    shown = f"hooks {used:,} of NVML's {whole:,}: {whole - used:,} are the context, modules and other libraries"
    yield expect(NUMBER, f"{question}: hooks against NVML", used <= whole, shown)
