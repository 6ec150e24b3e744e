"""The limit of locked memory, which the rings of perf events count against."""

from __future__ import annotations

import contextlib
import resource
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporter.bpf import privileges, watch
from tests.program.process import Exporter, run

__all__ = ["run"]

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="privileges", on="real software")]

NO_LOCKED_MEMORY = ("prlimit", "--memlock=0:0")
WATCH = f"""
import select
from exporter.bpf import privileges, watch
privileges.drop({sorted(privileges.OBSERVING)})
try:
    held = [watch.Watch(select.epoll()) for _ in range(64)]  # the first may get what other programs leave at their end
except OSError as error:
    print(error)
"""


@pytest.fixture
def others() -> Iterator[None]:
    """Other programs of the user, with perf events that use the memory that the kernel permits beyond the limit."""
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            poll = stack.enter_context(contextlib.closing(select.epoll()))
            stack.enter_context(contextlib.closing(watch.Watch(poll)))
        yield


@pytest.mark.usefixtures("others")
@pytest.mark.skipif(
    -1 < resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] < watch.all_bytes(), reason="the hard limit is too low here"
)
def test_low_limit_is_raised(run: Callable[..., Exporter]) -> None:
    """The exporter observes processes although the soft limit is 0 and other programs use perf events."""
    exporter = run(prefix=("prlimit", "--memlock=0:")).await_ready()

    assert 1 == exporter.value('accel_exporter_collector_available{collector="cuda"}'), exporter.log
    limits = Path(f"/proc/{exporter.process.pid}/limits").read_text().splitlines()
    assert [str(watch.all_bytes())] == [limit.split()[3] for limit in limits if "locked" in limit]


@pytest.mark.usefixtures("others")
def test_limit_is_named() -> None:
    """The error names the limit and what to do, if the limit cannot be raised."""
    command = [*NO_LOCKED_MEMORY, sys.executable, "-c", WATCH]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    assert "LimitMEMLOCK, ulimit -l" in printed


def test_memory_of_the_rings_fits_a_user_alone() -> None:
    """One exporter of a user locks no more than kernel.perf_event_mlock_kb, so that no limit must be raised."""
    allowed = int(Path("/proc/sys/kernel/perf_event_mlock_kb").read_text()) << 10
    assert watch.all_bytes() <= allowed * len(watch.cpus_of(watch.ONLINE.read_text()))
    assert resource.getpagesize() < watch.all_bytes()
