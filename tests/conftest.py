"""Fixtures of all test folders: the marker for tests that need BPF, and compilers of small libraries and objects."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from exporter.bpf.libbpf import BpfError, run_time_statistics
from exporter.bpf.multi import supported as multi_uprobes_supported
from exporter.custom import tracefs as tracepoints
from tests import workers

REPOSITORY = Path(__file__).parents[1]
# A busy machine is no fault of what is tested.
hypothesis.settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")
ONE_WORKERS = (
    (
        "tests/bpf/test_verbs_",
        "tests/bpf/test_governor_verbs",
        "tests/bpf/test_governor_costs",
    ),  # the system's libibverbs
    ("tests/bpf/test_serving",),  # the system's libssl, and every socket
    ("tests/e2e/test_demo", "tests/e2e/test_gpu_dry_run"),  # the stand-ins that no worker has for itself
    ("tests/e2e/incidents/",),
    ("tests/e2e/test_new_probe",),
    ("tests/e2e/",),  # scenes, which are watched for seconds and need processor time meanwhile
)
"""Beginnings of files that one worker runs, one after the other; the first that match count.

Other files run beside each other although they probe processes: tests/workers.py has why.
"""
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 0x40000


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs_bpf: needs the right to load BPF programs; REQUIRE_BPF=1 forbids skipping"
    )
    config.addinivalue_line("markers", "evidence(feature, on): what a feature is shown to run on (tests/evidence.py)")
    if hasattr(config, "workerinput"):  # not where a worker's test runs pytest
        workers.begin(config.workerinput["workerid"], Path(config.option.basetemp))


def _scope(nodeid: str) -> str:
    """Return what a test shares a worker with: a set of files, or its file."""
    return next((files[0] for files in ONE_WORKERS if nodeid.startswith(files)), nodeid.split("::", 1)[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Spread files over workers, but keep those together that disturb each other."""
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class Files(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid)

    return Files(config, log)


@pytest.fixture(scope="session")
def bpf_refusal() -> str:
    """Why BPF cannot be used here, empty if it can: found by a request to the kernel."""
    return _bpf_refusal()


@functools.cache
def _bpf_refusal() -> str:
    try:
        run_time_statistics().close()
    except BpfError as error:
        return str(error)
    return ""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips before any fixture, also of a module, tries to load a program."""
    refusal = _bpf_refusal() if item.get_closest_marker("needs_bpf") else ""
    if refusal and os.environ.get("REQUIRE_BPF") == "1":
        pytest.fail(f"REQUIRE_BPF=1, but {refusal}")
    if refusal:
        pytest.skip(refusal)


@pytest.fixture(scope="session")
def tracefs() -> None:
    """Mounts tracefs where it is not, for this process and those it starts from now on, not for the machine."""
    if not tracepoints.missing():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.unshare(_CLONE_NEWNS)
        or libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None)
        or libc.mount(b"nodev", b"/sys/kernel/tracing", b"tracefs", 0, None)
    ):
        refusal = f"tracefs is not mounted and cannot be: {os.strerror(ctypes.get_errno())}"
        if os.environ.get("REQUIRE_BPF") == "1":
            pytest.fail(f"REQUIRE_BPF=1, but {refusal}")
        pytest.skip(refusal)


@pytest.fixture(params=[True, False], ids=["multi", "perf"])
def multi(request: pytest.FixtureRequest) -> bool:
    """Return whether uprobes are attached by multi-uprobe links or, as on older kernels, by a perf event each: both."""
    if request.param and not multi_uprobes_supported():
        pytest.skip("this kernel has no multi-uprobe links (Linux 6.6)")
    return bool(request.param)


@pytest.fixture(scope="session")
def compile_bpf(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Builds BPF source text into an object as bpf/Makefile does: compile_bpf(stem, source) -> path."""

    def build(stem: str, source: str) -> Path:
        folder = tmp_path_factory.mktemp(stem)
        sources = REPOSITORY / "bpf"
        for shared in (sources / "Makefile", *sources.rglob("*.h")):
            link = folder / shared.relative_to(sources)
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(shared)
        (folder / f"{stem}.bpf.c").write_text(source)
        made = subprocess.run(["make", "-s", "-C", folder, "OUT=."], capture_output=True, text=True)
        assert not made.returncode, made.stderr
        return folder / os.uname().machine / f"{stem}.bpf.o"

    return build


@pytest.fixture(scope="session")
def compile_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Builds C source text into a shared library: compile_library(file name, source) -> path."""

    def build(name: str, source: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        (folder / "source.c").write_text(source)
        library = folder / name
        command = ["gcc", "-shared", "-fPIC", "-O2", "-fcf-protection=none", "-o", library, folder / "source.c"]
        subprocess.run(command, check=True)
        return library

    return build
