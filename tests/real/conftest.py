"""The exporter, the releases, and the page that a run writes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.machine import Exporter
from tests.real import job as jobs
from tests.real import releases, table
from tests.real.comparison import counted, in_words, seen
from tests.real.job import DRIVER, Job
from tests.real.releases import NotInstalled, Release

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


@pytest.fixture(scope="session")
def keeper(built: None) -> Iterator[None]:
    """A process with the driver, so that its functions stay probed between jobs, and a job's first call is seen."""
    code = f"import ctypes; ctypes.CDLL({str(DRIVER)!r}); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        yield
        process.kill()


@pytest.fixture(scope="session")
def exporter(keeper: None) -> Iterator[Exporter]:
    with Exporter((EXACT,), dict(os.environ)) as exporter:
        exporter.until(lambda: attached(exporter), "the soft driver was not probed")
        yield exporter


def attached(exporter: Exporter, library: Path = DRIVER) -> bool:
    """Whether the functions of a library, the soft driver or a soft runtime, are probed."""
    return bool(exporter.scrape().total("accel_exporter_probe_attached", library=str(library)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the soft GPU counts."""
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
        """All that the exporter shows of a job equals what the soft driver has counted."""
        found = counted(job.counts)
        assert found == seen(self._exporter.scrape(), job.pid)
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
