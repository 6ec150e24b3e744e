"""Services of the driver, GPU processes that are stuck in the kernel, the clock, and what is expected of a node."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from exporter.collectors.faults import FLAGS, configure
from exporter.faults import clock, machine, metrics
from exporter.faults.processes import ProcessScan
from exporter.model import Metric, Sample
from exporter.options import SettingsError
from tests.unit.infiniband.trees import write

STATUS = "Name:\tnv-fabricmanage\nState:\t{}\nNSpid:\t{}\nCapEff:\t{:016x}\n"
RAN = "voluntary_ctxt_switches:\t{}\nnonvoluntary_ctxt_switches:\t2\n"


class Machine:
    """A /proc with NVIDIA's driver, and a clock of ours."""

    def __init__(self, proc: Path) -> None:
        self.proc, self.now, self.listed = proc, 0.0, [7]
        self.host = True
        write(proc / "driver/nvidia/version", "NVRM version")
        self.processes = ProcessScan(proc, lambda: self.listed, lambda: self.host, lambda: self.now)

    def thread(self, pid: int, tid: int, state: str, switches: int, name: str = "python3") -> None:
        write(self.proc / f"{pid}/comm", name)
        folder = self.proc / f"{pid}/task/{tid}"
        write(folder / "stat", f"{tid} ({name}) {state} 1 1 1 0 -1")
        write(folder / "status", RAN.format(switches))

    def blocked(self, seconds: float) -> object:
        """The number of blocked processes after so many seconds."""
        self.now += seconds
        return values(self.processes.samples(), metrics.BLOCKED)[""]


@pytest.fixture
def node(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def values(samples: Iterable[Sample], metric: Metric) -> dict[str, object]:
    return {" ".join(it.labels.values()): it.value for it in samples if it.metric is metric}


def test_services(node: Machine) -> None:
    """A service runs while there is a process of its name and of a system user."""
    assert os.getuid() < 1000, "the test writes as a system user"
    write(node.proc / "40/comm", "nv-fabricmanage")
    write(node.proc / "40/status", STATUS.format("S (sleeping)", "40", 0))
    write(node.proc / "self/comm", "nvidia-imex")
    expected = {"fabricmanager": 1, "imex": 0, "persistenced": 0}
    assert expected == values(node.processes.samples(), metrics.SERVICE)
    os.chown(node.proc / "40", 1000, 1000)
    assert expected == values(node.processes.samples(), metrics.SERVICE), "looked at once a minute"
    node.now += 60
    assert {"fabricmanager": 0, "imex": 0, "persistenced": 0} == values(node.processes.samples(), metrics.SERVICE)


@pytest.mark.parametrize(
    ("state", "pids", "capabilities", "runs"),
    [
        ("S (sleeping)", "40", 0, True),
        ("S (sleeping)", "40\t1", 0xA80425FB, False),
        ("S (sleeping)", "40\t1", 0x1FFFFFFFFFF, True),
        ("Z (zombie)", "40", 0x1FFFFFFFFFF, False),
    ],
    ids=["a user of the system", "root of a container", "a container with the driver", "not waited for"],
)
def test_what_can_be_a_service(node: Machine, state: str, pids: str, capabilities: int, runs: bool) -> None:
    """A process of a container has to have what the driver needs, and one that has ended is none."""
    write(node.proc / "40/comm", "nv-fabricmanage")
    write(node.proc / "40/status", STATUS.format(state, pids, capabilities))
    assert int(runs) == values(node.processes.samples(), metrics.SERVICE)["fabricmanager"]


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a PID namespace")
def test_a_real_container(node: Machine) -> None:
    """Root of a PID namespace that has a container's capabilities is not taken for a service, that of the host is."""
    rename = "import sys; open('/proc/self/comm', 'w').write('nv-fabricmanage'); print(flush=True); sys.stdin.read()"
    program = [sys.executable, "-c", rename]
    confined = ["unshare", "--fork", "--pid", "setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", *program]
    for command, runs in ((program, 1), (confined, 0)):
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout
            process.stdout.readline()
            pid = next(reversed([process.pid, *_descendants(process.pid)]))
            (node.proc / str(pid)).symlink_to(f"/proc/{pid}")
            assert runs == values(node.processes.samples(), metrics.SERVICE)["fabricmanager"]
            node.now += 60


def _descendants(pid: int) -> Iterator[int]:
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        yield child
        yield from _descendants(child)


def test_a_thread_that_does_not_run(node: Machine) -> None:
    """A process is blocked when one of its threads has not run for a minute; one that ran in between is not."""
    node.thread(7, 7, "S", 5)
    node.thread(7, 8, "D", 5, name="a) R (b")
    assert 0 == node.blocked(0)
    assert 1 == node.blocked(60)
    assert 1 == node.blocked(60)
    node.thread(7, 8, "D", 6)
    assert 0 == node.blocked(60)
    assert 1 == node.blocked(60)
    node.thread(7, 8, "S", 6)
    assert 0 == node.blocked(60)


def test_a_process_counts_once(node: Machine) -> None:
    """Two threads are one process, and a process that NVML does not list is none."""
    node.listed = [7, 9]
    for pid, tid in ((7, 7), (7, 8), (9, 9), (11, 11)):
        node.thread(pid, tid, "D", 1)
    node.blocked(0)
    assert 2 == node.blocked(60)


def test_nvml_that_hangs_too(node: Machine) -> None:
    """A process that NVML listed once is followed until it ends."""
    node.thread(7, 7, "D", 1)
    node.blocked(0)
    node.listed = []
    assert 1 == node.blocked(60)
    shutil.rmtree(node.proc / "7")
    assert 0 == node.blocked(60)


def test_without_driver_or_namespace(node: Machine) -> None:
    """Nothing is known without the driver, nor of the host's processes in another namespace."""
    node.host = False
    with pytest.raises(OSError, match="PID namespace"):
        node.processes.samples()
    shutil.rmtree(node.proc / "driver")
    with pytest.raises(FileNotFoundError):
        node.processes.samples()


def test_a_real_process(tmp_path: Path) -> None:
    """The kernel's own files of a process that sleeps are read without an error."""
    process = subprocess.Popen(["sleep", "60"])
    write(tmp_path / "driver/nvidia/version", "NVRM version")
    (tmp_path / str(process.pid)).symlink_to(f"/proc/{process.pid}")
    try:
        found = ProcessScan(tmp_path, lambda: [process.pid], lambda: True).samples()
        assert {"": 0} == values(found, metrics.BLOCKED)
    finally:
        process.kill()
        process.wait()


def test_the_clock() -> None:
    """The structure is the kernel's; its error is known only while the clock is synchronized."""
    assert clock.SIZE == ctypes.sizeof(clock.Timex)
    try:
        state = clock.read()
    except PermissionError:
        pytest.skip("adjtimex is not allowed here")
    samples = list(clock.samples())
    assert {"": int(state.synchronized)} == values(samples, metrics.CLOCK_SYNCHRONIZED)
    assert state.synchronized is bool(values(samples, metrics.CLOCK_ERROR))


def test_the_clock_by_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unsynchronized clock has no greatest error."""
    for state, expected in ((clock.ClockStatus(True, 0.25), {"": 0.25}), (clock.ClockStatus(False, 16.0), {})):
        monkeypatch.setattr(clock, "read", lambda state=state: state)
        samples = list(clock.samples())
        assert {"": int(state.synchronized)} == values(samples, metrics.CLOCK_SYNCHRONIZED)
        assert expected == values(samples, metrics.CLOCK_ERROR)


def test_expected_devices() -> None:
    """Each kind with its number; nothing where nothing is expected."""
    assert {"gpu": 8, "nvlink": 144} == values(machine.expected("gpu=8, nvlink=144"), metrics.EXPECTED)
    assert [] == machine.expected("")


@pytest.mark.parametrize("text", ["gpu", "gpu=", "gpus=8", "gpu=8,gpu=7", "gpu=-1", "gpu=1e3", "gpu=99999999"])
def test_wrong_expectations(text: str) -> None:
    """Text other than KIND=NUMBER is an error that names it."""
    with pytest.raises(ValueError, match="is not KIND=NUMBER, each kind once; kinds are gpu, rdma_port, nvlink"):
        machine.expected(text)


def test_the_flag_is_checked() -> None:
    """A wrong expectation is refused when settings are read, in one sentence that names the flag."""
    defaults = {flag.name: flag.default for flag in FLAGS}
    assert defaults == configure(defaults)
    with pytest.raises(SettingsError, match=r"^collector\.faults\.expected: 'gpus=8' is not KIND=NUMBER"):
        configure(defaults | {"expected": "gpus=8"})
