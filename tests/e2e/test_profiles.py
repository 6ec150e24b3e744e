"""A node with many processes that begin and end: pages of all profiles and limits have the same sums."""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.bpf.cuda_node import BUILD, Job, build_standins
from tests.e2e.test_short_processes import ONLY_OURS
from tests.program.process import Exporter
from tests.support import PATIENCE

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(280),
    pytest.mark.evidence(feature="Prometheus pages", on="real program on a stand-in"),
]

AT_ONCE, ROUNDS = 16, 3
LAUNCHES = "gpu_cuda_kernel_launch_calls_total"
PROFILES = ("debug", "node", "fleet")
LIMITS = {"without a limit": (), "of a collector": ("--collector.cuda.series-limit=400",), "of a page": ()}
MOST = 1200
"""Lines of a page with the last limit; with fewer, sums of own metrics leave no room for those of CUDA."""


def counted(page: str) -> Counter[str]:
    """Return the sum of each counter and histogram of CUDA, by its name."""
    found = Counter[str]()
    for name, value in re.findall(r"^(gpu_cuda_\w+(?:_total|_count))(?:\{.*\})? (\S+)$", page, re.MULTILINE):
        found[name] += float(value)
    return found


def jobs(libraries: Path, round_: int) -> Iterator[Job]:
    """Yield processes that wait to be let go; each makes other numbers of calls."""
    for number in range(AT_ONCE):
        calls = {"launches": 100 + 7 * number + round_, "allocations": 3 + number, "frees": 2, "copies": 5, "waits": 1}
        more = [text for name, count in calls.items() for text in (f"--{name}", str(count))]
        yield Job("--layer", "driver", "--gate", "--hold", *more, libraries=libraries)


@pytest.fixture(params=LIMITS)
def exporter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Exporter]:
    build_standins()
    copies = [shutil.copy(BUILD / name, tmp_path) for name in ("libcuda.so.1", "libcudart.so.12")]
    flags = ("--collector.disable-defaults", "--collector.cuda", "--profile=debug", *LIMITS[request.param])
    page = f"--web.series-limit={MOST if request.param == 'of a page' else 0}"
    files = " ".join(str(Path(it).stat().st_ino) for it in copies)
    started = Exporter(tmp_path, *flags, page, prefix=(sys.executable, "-c", ONLY_OURS), FILES=files)
    try:
        yield started.await_ready()
    finally:
        started.process.terminate()
        started.process.wait(PATIENCE)


def launched(exporter: Exporter, count: int) -> bool:
    return counted(exporter.get("/metrics")[1])[LAUNCHES] == count


def pages(exporter: Exporter) -> Sequence[str]:
    return [exporter.get(f"/metrics?profile={name}")[1] for name in PROFILES]


def agree(exporter: Exporter, launches: int, found: list[list[Counter[str]]]) -> bool:
    """Return whether pages of all profiles have the same sums, and add these to `found` then. Pages that are read one
    after the other differ as long as one has more of the last calls than another.
    """
    debug, *others = (counted(it) for it in pages(exporter))
    if debug[LAUNCHES] != launches or any({it: debug[it] for it in other} != other for other in others):
        return False
    found.append([debug, *others])
    return True


def test_sums_agree(exporter: Exporter, tmp_path: Path) -> None:
    """Each counter of CUDA has the same sum in debug, node and fleet while processes rest, also when some have ended;
    launches are those that the processes made.
    """
    launches, running = 0, list[Job]()
    before: list[Counter[str]] = [Counter(), Counter(), Counter()]
    try:
        for round_ in range(ROUNDS):
            started = list(jobs(tmp_path, round_))
            running += started
            exporter.await_(lambda: exporter.log.count("attached to a library") == 1)
            for job in started:
                job.go()
                launches += job.report()["launches"]
                exporter.get("/metrics?profile=fleet")  # others are read less often, by pages that have more
            exporter.await_(partial(launched, exporter, launches))
            agreeing: list[list[Counter[str]]] = []
            exporter.await_(partial(agree, exporter, launches, agreeing))
            debug, *others = agreeing[0]
            for found, past in zip((debug, *others), before, strict=True):
                assert [] == [it for it in past if found[it] < past[it]]
            before = [debug, *others]
            for job in running[::2]:
                job.end()
                running.remove(job)
        assert len(before[0]) > 4  # the first processes may have begun before return probes were attached
    finally:
        for job in running:
            job.end()
