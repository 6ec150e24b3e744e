"""The exporter, the releases, and the page that a run writes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.gpu.machine import Exporter
from tests.real import job as jobs
from tests.real import releases, table
from tests.real.comparison import counted, in_words, seen
from tests.real.job import DRIVER, Job
from tests.real.releases import NotInstalled, Release
from tests.softgpu.process import inherited

EXACT = "--overhead.max-ratio=0"
"""Every call counts: none is estimated, however little else a job does."""


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    jobs.build()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "releases(*releases): what a test runs with; else its module's SOFTWARE")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "release" in metafunc.fixturenames:
        marked = metafunc.definition.get_closest_marker("releases")
        releases = marked.args if marked else metafunc.module.SOFTWARE
        metafunc.parametrize("release", releases, ids=lambda release: release.name, indirect=True, scope="session")


@pytest.fixture(scope="session")
def release(request: pytest.FixtureRequest) -> Release:
    try:
        releases.python(request.param)
    except NotInstalled as error:
        if os.environ.get("REQUIRE_WHEELS") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))
    return request.param


class Keeper:
    """A process with the driver, so that its functions stay probed between jobs, and a job's first call is seen."""

    _CODE = """
import ctypes, sys
cuda, held = ctypes.CDLL(sys.argv[1]), ctypes.c_uint64()
assert not cuda.cuInit(0) and not cuda.cuCtxCreate_v2(ctypes.byref(held), 0, 0)
for _ in sys.stdin:
    assert not cuda.cuMemAlloc_v2(ctypes.byref(held), ctypes.c_size_t(4096)) and not cuda.cuMemFree_v2(held)
"""

    def __init__(self) -> None:
        command = [sys.executable, "-c", self._CODE, str(DRIVER)]
        self._process = subprocess.Popen(command, env=inherited(), stdin=subprocess.PIPE)

    def observed(self, exporter: Exporter) -> bool:
        """Return whether the return of an allocation has been seen: return probes are attached after entry probes."""
        assert self._process.stdin
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return bool(exporter.scrape().total("gpu_cuda_memory_allocations_bytes_total", pid=str(self._process.pid)))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="session")
def keeper(built: None) -> Iterator[Keeper]:
    with closing(Keeper()) as keeper:
        yield keeper


@pytest.fixture(scope="session")
def exporter(keeper: Keeper) -> Iterator[Exporter]:
    with Exporter((EXACT,), dict(os.environ)) as exporter:
        exporter.until(lambda: keeper.observed(exporter), "the soft driver was not probed")
        yield exporter


def attached(exporter: Exporter, library: Path = DRIVER) -> bool:
    """Return whether the functions of a library, the soft driver or a soft runtime, are probed at their entries."""
    return bool(exporter.scrape().total("accel_exporter_probe_attached", library=str(library)))


def followed(exporter: Exporter, job: Job) -> None:
    """Wait until a job that has called the driver is known: before, copies are of an unknown kind of host memory."""
    seen = "gpu_cuda_seen_from_start"
    exporter.until(lambda: exporter.scrape().total(seen, pid=str(job.pid)) == 1, "the job is not known")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder in which the soft GPU counts."""
    return tmp_path


@pytest.fixture
def job(release: Release, exporter: Exporter, folder: Path) -> Iterator[Job]:
    """A job, seen from its first call on."""
    with Job(release, folder) as job:
        yield job


class Ran:
    """Compares and notes what a test ran, for the table."""

    def __init__(self, item: pytest.Item, exporter: Exporter) -> None:
        self._item, self._exporter = item, exporter

    def __call__(self, job: Job) -> None:
        """All that the exporter shows of a job equals what the soft driver has counted.

        Read again if threads of the job's libraries have made calls meanwhile.
        """
        found, shown = counted(job.counts), seen(self._exporter.scrape(), job.pid)
        while (now := counted(job.counts)) != found:
            found, shown = now, seen(self._exporter.scrape(), job.pid)
        assert found == shown
        self.note(in_words(found))

    def note(self, numbers: str) -> None:
        table.note(self._item, numbers)


@pytest.fixture
def ran(request: pytest.FixtureRequest, exporter: Exporter) -> Ran:
    return Ran(request.node, exporter)


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.excinfo and not call.excinfo.errisinstance(pytest.skip.Exception):
        table.fail(item)


def pytest_sessionfinish(session: pytest.Session) -> None:
    table.finish(session)
