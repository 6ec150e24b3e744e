"""The real process with GPUs of the stand-in library: all of them, one that is lost, calls that never return."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.program.process import Exporter
from tests.standins import nvml
from tests.standins.nvml import UUID, Scenario
from tests.support import PATIENCE, until

pytestmark = [
    pytest.mark.evidence(feature="NVML readings", on="stand-in"),
    pytest.mark.evidence(feature="NVML that hangs or crashes", on="stand-in"),
]

QUICK = tuple(
    f"--collector.nvml.{kind}-interval={seconds}" for kind, seconds in (("fast", 1), ("processes", 1), ("slow", 2))
)
NVML_ALONE = ("--collector.disable-defaults", "--collector.nvml", *QUICK)
STALLED = 'accel_exporter_source_stalled{source="nvml"}'


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    nvml.build()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[Scenario], Exporter]]:
    started: list[Exporter] = []

    def start(scenario: Scenario, *flags: str) -> Exporter:
        given = ("--profile=debug", *NVML_ALONE, *flags)
        started.append(Exporter(tmp_path, *given, **scenario.environment()).await_ready())
        return started[-1]

    yield start
    for exporter in started:
        if exporter.process.poll() is None:
            exporter.process.kill()
            exporter.process.wait(PATIENCE)


def status(exporter: Exporter) -> list[str]:
    """The state of each GPU, in order."""
    true = [labels for labels, value in exporter.family("hw_status").items() if value == 1]
    states = {int(re.findall(r'gpu="(\d+)"', it)[0]): re.findall(r'state="(\w+)"', it)[0] for it in true}
    return [states[index] for index in sorted(states)]


def pids(exporter: Exporter) -> list[int]:
    """The exporter's child processes that call NVML; threads, and children that read files, come and go."""
    found = []
    for path in Path(f"/proc/{exporter.process.pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += [int(pid) for pid in path.read_text().split() if b"exporter.nvml.child.worker" in command(pid)]
    return found


def command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to give up")
def test_privileges(tmp_path: Path, start: Callable[[Scenario], Exporter]) -> None:
    """The child that calls NVML keeps what reading profiling counters takes, and none of what the probes take."""
    exporter = start(Scenario(tmp_path))
    exporter.await_(lambda: status(exporter) == ["ok"])
    [child] = pids(exporter)
    found = re.findall(r"^Cap(?:Prm|Eff|Amb):\s*(\S+)$", Path(f"/proc/{child}/status").read_text(), re.MULTILINE)

    assert {f"{1 << 38:016x}", f"{0:016x}"} == set(found)


def test_eight_gpus(tmp_path: Path, start: Callable[[Scenario], Exporter]) -> None:
    """Eight GPUs with 18 links each and a process are all there; both processes stay within their memory."""
    exporter = start(Scenario(tmp_path, **{"gpus": 8, "gpu5.process.0": f"{os.getpid()} compute 1073741824 50 20"}))
    exporter.await_(lambda: len(exporter.family("gpu_sm_active_ratio")) == 8)
    exporter.await_(lambda: len(exporter.family("gpu_process_memory_usage_bytes")) == 1)
    exporter.await_(lambda: status(exporter) == ["ok"] * 8)

    assert 8 * 18 * 2 == len(exporter.family("gpu_nvlink_link_io_bytes_total"))
    [(labels, value)] = exporter.family("gpu_process_memory_usage_bytes").items()
    assert 2**30 == value
    assert f'gpu="5",gpu_uuid="{UUID.format(5)}"' in labels and f'pid="{os.getpid()}"' in labels
    child = exporter.value("accel_exporter_nvml_resident_memory_bytes")
    own = exporter.value("process_resident_memory_bytes")
    assert child is not None and own is not None
    assert child < 25e6
    assert child + own < 96e6


def test_eight_gpus_of_seven(tmp_path: Path, start: Callable[[Scenario], Exporter]) -> None:
    """Eight GPUs of seven MIG devices each: every device has its memory and activity."""
    exporter = start(Scenario(tmp_path, **{"gpus": 8, "gpu.mig": 7}))
    exporter.await_(lambda: len(exporter.family("gpu_mig_active_ratio")) == 8 * 7 * 9)

    assert 8 * 7 == len(exporter.family("gpu_mig_info")) == len(exporter.family("gpu_mig_memory_usage_bytes"))
    assert {10468982784.0} == set(exporter.family("gpu_mig_memory_limit_bytes").values())


def test_one_of_eight_is_lost(tmp_path: Path, start: Callable[[Scenario], Exporter]) -> None:
    """The series of a GPU that is lost vanish, its status is `lost`, the other seven are read on."""
    scenario = Scenario(tmp_path, gpus=8)
    exporter = start(scenario)
    exporter.await_(lambda: status(exporter) == ["ok"] * 8)
    scenario.set({"gpu3.lost": 1})
    exporter.await_(lambda: status(exporter)[3] == "lost")
    page = exporter.get("/metrics")[1]

    assert ["ok"] * 3 + ["lost"] + ["ok"] * 4 == status(exporter)
    assert {"hw_status"} == {line.partition("{")[0] for line in page.splitlines() if UUID.format(3) in line}
    assert 7 == len(exporter.family("hw_power_watts"))


def test_a_call_that_never_returns(tmp_path: Path, start: Callable[[Scenario], Exporter]) -> None:
    """A call that hangs is a metric, no scrape waits for the call, and the other GPUs are read again."""
    scenario = Scenario(tmp_path, gpus=8)
    exporter = start(scenario, "--collector.nvml.fast-interval=2")  # time to see it, also on a busy machine
    exporter.await_(lambda: status(exporter) == ["ok"] * 8)
    scenario.set({"hang": "nvmlDeviceGetFieldValues@2"})
    pages: list[str] = []

    def stalled() -> bool:
        pages.append(exporter.get("/metrics")[1])
        return f"\n{STALLED} 1\n" in pages[-1]

    exporter.await_(stalled)
    exporter.await_(lambda: status(exporter) == ["ok"] * 2 + ["stalled"] + ["ok"] * 5)

    assert len(pages) >= 5  # while the call hung; a scrape that waits for it is one
    assert 1 == exporter.value('accel_exporter_nvml_restarts_total{reason="stalled"}')
    assert 1 == exporter.value(STALLED)
    assert 1 == len(pids(exporter))


def test_the_driver_is_replaced(tmp_path: Path, start: Callable[[Scenario], Exporter]) -> None:
    """After a driver upgrade (18) a new child reads with the new one."""
    scenario = Scenario(tmp_path)
    exporter = start(scenario)
    exporter.await_(lambda: status(exporter) == ["ok"])
    scenario.set({"error.nvmlDeviceGetFieldValues": 18})
    exporter.await_(lambda: (exporter.value('accel_exporter_nvml_restarts_total{reason="driver_replaced"}') or 0) >= 1)
    scenario.set({"error.nvmlDeviceGetFieldValues": None, "driver": "590.48"})
    exporter.await_(lambda: 'driver_version="590.48"' in "".join(exporter.family("hw_gpu_info")))
    exporter.await_(lambda: status(exporter) == ["ok"])


def test_release(tmp_path: Path, start: Callable[[Scenario], Exporter]) -> None:
    """POST /-/release-gpus gives every handle back, which is a metric, and a time later they are taken again."""
    scenario = Scenario(tmp_path)
    exporter = start(scenario)
    exporter.await_(lambda: status(exporter) == ["ok"])

    assert (200, "no GPU is held for 8 s\n") == exporter.get("/-/release-gpus?seconds=8", b"x")
    assert 1 == scenario.calls()["nvmlShutdown"]
    assert 1 == exporter.value("accel_exporter_nvml_released")
    assert {} == exporter.family("hw_power_watts")
    exporter.await_(lambda: status(exporter) == ["ok"])
    assert 0 == exporter.value("accel_exporter_nvml_released")


@pytest.mark.parametrize("seconds", ["x", "0", "-1", "1e9", "nan"])
def test_release_for_nonsense(tmp_path: Path, start: Callable[[Scenario], Exporter], seconds: str) -> None:
    """A time that is none is refused, and nothing is given back."""
    scenario = Scenario(tmp_path)
    exporter = start(scenario)
    answer, text = exporter.get(f"/-/release-gpus?seconds={seconds}", b"x")

    assert (400, True) == (answer, text.startswith("seconds has to be a number above 0"))
    assert "nvmlShutdown" not in scenario.calls()


@pytest.mark.parametrize("hang", [None, "nvmlDeviceGetPowerUsage"])
def test_end(tmp_path: Path, start: Callable[[Scenario], Exporter], hang: str | None) -> None:
    """On SIGTERM the handles are given back within five seconds; a child that hangs does not outlive us."""
    scenario = Scenario(tmp_path)
    exporter = start(scenario)
    exporter.await_(lambda: status(exporter) == ["ok"])
    children = pids(exporter)
    if hang:
        scenario.set({"hang": hang})
        exporter.await_(lambda: exporter.value(STALLED) == 1)
    code = exporter.end()

    assert 0 == code
    assert (0 if hang else 1) == scenario.calls().get("nvmlShutdown", 0)
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def test_the_child_holds_nothing(tmp_path: Path, start: Callable[[Scenario], Exporter]) -> None:
    """The child has its pipes and nowhere to write else: no socket, map or program of the exporter's."""
    exporter = start(Scenario(tmp_path))
    exporter.await_(lambda: status(exporter) == ["ok"])
    [child] = pids(exporter)
    held = {int(fd.name): str(fd.readlink()) for fd in Path(f"/proc/{child}/fd").iterdir()}

    assert "/dev/null" == held[1] == held[2]
    assert {"pipe:", "/dev/null"} == {target.partition("[")[0] for target in held.values()}
    assert len(held) <= 5


def test_killed(tmp_path: Path, start: Callable[[Scenario], Exporter]) -> None:
    """The child does not survive the exporter's SIGKILL."""
    exporter = start(Scenario(tmp_path))
    exporter.await_(lambda: len(pids(exporter)) == 1)  # one that is being started has its parent's name
    [child] = pids(exporter)
    exporter.end(signal.SIGKILL)

    until(lambda: not Path(f"/proc/{child}").exists(), "the child ended")


def test_no_nvml(tmp_path: Path, start: Callable[[Scenario], Exporter]) -> None:
    """Without the library one line is logged, the collector is unavailable, and the rest works."""
    scenario = Scenario(tmp_path)
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()
    exporter = Exporter(tmp_path, *NVML_ALONE, LD_LIBRARY_PATH=str(nowhere)).await_ready()
    try:
        exporter.await_(lambda: exporter.value('accel_exporter_collector_available{collector="nvml"}') == 0)
        exporter.await_(lambda: "NVML" in exporter.log)

        lines = [line for line in exporter.log.splitlines() if "NVML" in line]
        assert 1 == len(lines) and "collector nvml is unavailable: NVML cannot be used" in lines[0], exporter.log
        assert 0 == exporter.value('accel_exporter_collector_success{collector="nvml"}')
        assert {} == scenario.calls()
    finally:
        exporter.end()
