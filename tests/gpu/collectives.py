"""8. What is read of NCCL: the communicator in memory, calls and bytes, against one rank that knows."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from deploy.demo.summary import Scrape
from tests.gpu.machine import Machine
from tests.gpu.outcome import CannotRun, Row, equal

NUMBER = 8
STEPS = 23
INFO = "nccl_communicator_info"


def run(machine: Machine) -> Iterator[Row]:
    if importlib.util.find_spec("exporter.collectors.nccl") is None:
        raise CannotRun("this version of the exporter has no collector for NCCL")
    with machine.job("collectives") as job, machine.exporter() as exporter:
        pid = str(job.pid)

        def counted() -> bool:
            job.run("collectives", 1)
            return bool(exporter.scrape().total(INFO, pid=pid))

        exporter.until(counted, "no communicator of the job was seen")
        before = exporter.scrape()
        did = job.run("collectives", STEPS)
        seen = exporter.scrape()
        for what in ("calls", "bytes"):
            metric = f"nccl_collective_{what}_total"
            yield equal(NUMBER, f"{what} of AllReduce", did["AllReduce"][what], _more(before, seen, metric, pid))
        found = [(labels["rank"], labels["nranks"]) for labels, _ in seen.rows(INFO, pid=pid)]
        yield equal(NUMBER, "rank and size in memory", [(str(did["rank"]), str(did["nranks"]))], found)


def _more(before: Scrape, seen: Scrape, metric: str, pid: str) -> int:
    which = {"pid": pid, "collective": "AllReduce"}
    return round((seen.total(metric, **which) or 0) - (before.total(metric, **which) or 0))
