"""Ends of processes that use a GPU: real processes with the stand-in of the driver's library."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporter.bpf.library import Library
from exporter.bpf.targets import Targets
from exporter.collectors.exits import MOST_SERIES, Exits, status_text
from exporter.faults.ledger import FaultLedger
from exporter.node import Node
from exporter.resolve.process import ProcessTable
from exporter.views import prometheus
from tests.bpf.cuda_node import BUILD, Script, build_standins
from tests.nodes import make_node
from tests.support import PATIENCE, until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="ends of GPU processes", on="stand-in")]


@pytest.fixture(scope="module", autouse=True)
def standins() -> None:
    build_standins()


@pytest.fixture
def faults() -> FaultLedger:
    return FaultLedger()


@pytest.fixture
def name() -> str:
    """The file name of the library that a process with a GPU maps."""
    return "libcuda.so.1"


@pytest.fixture
def library(tmp_path: Path, name: str) -> Path:
    """A copy of the library for this test alone."""
    return Path(shutil.copy(BUILD / name, tmp_path))


class OfOne(Exits):
    """Takes note of the processes of one library: others on this machine end, too."""

    def __init__(self, node: Node, library: Path) -> None:
        super().__init__(node)
        self._only = str(library)

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None:
        if library.path == self._only:
            super().process_started(pid, library, from_first_call)


@pytest.fixture
def exits(faults: FaultLedger, library: Path) -> Iterator[Exits]:
    targets = Targets()
    made = OfOne(make_node({}, ProcessTable(), targets, lambda span: None, faults=faults), library)
    made.start()
    try:
        targets.start()
        try:
            assert targets.scanned.wait(PATIENCE)
            yield made
        finally:
            targets.close()
    finally:
        made.close()


def counts(exits: Exits) -> dict[str, int]:
    """Processes by how they ended."""
    found: dict[str, int] = {}
    for it in exits.collect():
        if prometheus.name(it.metric) == "gpu_process_exits_total":
            found[it.labels["status"]] = found.get(it.labels["status"], 0) + int(str(it.value))
    return found


@pytest.fixture
def watched(exits: Exits, library: Path) -> Callable[[], Script]:
    """Starts a process that is known to use a GPU."""

    def start() -> Script:
        job = Script(library.name, libraries=library.parent)
        until(lambda: job.pid in exits.users, "the process is known to use a GPU")
        return job

    return start


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("os._exit(0)", "0"),
        ("os._exit(3)", "3"),
        ("os.kill(os.getpid(), 6)", "SIGABRT"),
        ("ctypes.string_at(8)", "SIGSEGV"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        ("os.kill(os.getpid(), 40)", "SIG40"),
        ("threading.Thread(target=lambda: os.kill(os.getpid(), 6)).start(); time.sleep(60)", "SIGABRT"),
    ],
)
def test_ends(exits: Exits, watched: Callable[[], Script], lines: str, status: str) -> None:
    """Each end is counted once, with the status that its parent sees."""
    with watched() as job:
        job.begin(lines)
        job.process.wait(PATIENCE)
        until(lambda: counts(exits), "the end is counted")

        assert {status: 1} == counts(exits)
        returned = job.process.returncode
        assert status_text(-returned if returned < 0 else returned << 8) == status


@pytest.mark.parametrize("name", ["libamdhip64.so.5"])
def test_hip(exits: Exits, watched: Callable[[], Script]) -> None:
    """The end of a process that uses AMD's HIP."""
    with watched() as job:
        job.begin("os.kill(os.getpid(), 6)")
        job.process.wait(PATIENCE)
    until(lambda: counts(exits), "the end is counted")

    assert {"SIGABRT": 1} == counts(exits)


def test_many(exits: Exits, watched: Callable[[], Script]) -> None:
    """23 processes that abort are 23; a thread or a child without the library that ends is none."""
    for number in range(23):
        with watched() as job:
            if number == 0:
                job.run("thread = threading.Thread(target=len, args=('',)); thread.start(); thread.join()")
                job.run("os.waitpid(os.posix_spawn('/bin/false', ['false'], {}), 0)")
            job.begin("os.kill(os.getpid(), 6)")
            job.process.wait(PATIENCE)
    until(lambda: counts(exits).get("SIGABRT") == 23, "23 ends")

    assert {"SIGABRT": 23} == counts(exits)


def test_crashes_are_faults(exits: Exits, watched: Callable[[], Script], faults: FaultLedger) -> None:
    """A crash is a fault of software with its time; being killed by whoever stops a job is none."""
    before = time.time()
    for lines in ("os.kill(os.getpid(), 6)", "os.kill(os.getpid(), 15)"):
        with watched() as job:
            job.begin(lines)
            job.process.wait(PATIENCE)
    until(lambda: counts(exits) == {"SIGABRT": 1, "SIGTERM": 1}, "both ends")
    found = {(prometheus.name(it.metric), it.labels.get("signal")): it for it in faults.samples()}

    assert {"process_sigabrt", None} == {signal for _, signal in found}
    assert 1 == found["accel_node_fault_total", "process_sigabrt"].value
    assert "software_bug" == found["accel_node_fault_total", "process_sigabrt"].labels["category"]
    newest = float(str(found["accel_node_fault_last_timestamp_seconds", "process_sigabrt"].value))
    assert before - 1 <= newest <= time.time() + 1


def test_another_program(exits: Exits, watched: Callable[[], Script]) -> None:
    """A process that runs another program, without a GPU, is no GPU process when it ends."""
    with watched() as job, watched() as later:
        job.begin("os.execv('/bin/sleep', ['sleep', '600'])")
        until(lambda: job.pid not in exits.users, "the exec is noticed")
        os.kill(job.pid, signal.SIGABRT)
        job.process.wait(PATIENCE)
        later.begin("os._exit(3)")
        until(lambda: counts(exits), "the end of the other is counted")  # ends are reported in their order

        assert {"3": 1} == counts(exits)


def test_series_are_bounded(exits: Exits) -> None:
    """However many jobs come and go, the oldest series make room."""
    for number in range(MOST_SERIES + 50):
        exits.users[number] = (("comm", f"job{number}"),)
        exits.ended(type("End", (), {"tgid": number, "status": 0, "ended": 0}))

    found = [it.labels["comm"] for it in exits.collect() if prometheus.name(it.metric) == "gpu_process_exits_total"]
    assert MOST_SERIES == len(found)
    assert f"job{MOST_SERIES + 49}" == found[-1]


def test_nothing_is_left_open() -> None:
    """Starting and closing again leaves no descriptor."""

    def left() -> int:
        exits = Exits(make_node({}, ProcessTable(), Targets(), lambda span: None))
        exits.start()
        exits.close()
        return len(list(Path("/proc/self/fd").iterdir()))

    assert left() == left()
