"""Supervision of the child on the stand-in: GPUs that hang, drivers that refuse, releases of the GPUs."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from exporter.nvml import supervisor as supervision
from exporter.nvml.snapshot import (
    Event,
    GpuSnapshot,
)
from exporter.nvml.supervisor import NvmlSupervisor
from exporter.views import prometheus
from tests.standins.nvml import INTERVALS, UUID, Scenario
from tests.support import PATIENCE, until

pytestmark = pytest.mark.evidence(feature="NVML that hangs or crashes", on="stand-in")


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scenario:
    made = Scenario(tmp_path, gpus=3)
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that is slow, as on a busy machine, is not taken for one that hangs."""
    for limit in ("STALLED", "FRESH"):
        monkeypatch.setattr(supervision, limit, PATIENCE / INTERVALS["fast"])
    monkeypatch.setattr(supervision, "RELEASE_SECONDS", PATIENCE)


@contextmanager
def running(publish: Callable[[Event], None] = lambda _: None) -> Iterator[NvmlSupervisor]:
    supervisor = NvmlSupervisor(INTERVALS, publish)
    supervisor.start()
    try:
        yield supervisor
    finally:
        supervisor.close()


def values(supervisor: NvmlSupervisor) -> dict[str, float]:
    """Returns the supervisor's own metrics by series."""
    page = prometheus.render(supervisor.samples()).text.decode()
    lines = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
    return {series: float(value) for series, _, value in lines}


def states(snapshot: GpuSnapshot) -> list[str]:
    return [gpu.state if gpu.sets or gpu.state != "ok" else "unread" for gpu in snapshot.gpus]


def all_ok(supervisor: NvmlSupervisor) -> bool:
    snapshot = supervisor.snapshot()
    return snapshot.state == "running" and states(snapshot) == ["ok", "ok", "ok"]


def stalled(supervisor: NvmlSupervisor) -> bool:
    return values(supervisor)['accel_exporter_source_stalled{source="nvml"}'] == 1


@pytest.mark.usefixtures("patient")
def test_reads(scenario: Scenario) -> None:
    """The child's readings are in the snapshot, with the age of each set."""
    with running() as supervisor:
        until(lambda: all_ok(supervisor) and len(supervisor.snapshot().gpus[2].sets) == 3)
        own = until(lambda: own if _young(own := values(supervisor)) else None)

    assert (0, 1, 0) == (
        own['accel_exporter_source_stalled{source="nvml"}'],
        own['accel_exporter_nvml_children{state="in_use"}'],
        own["accel_exporter_nvml_released"],
    )
    assert own["accel_exporter_nvml_calls_total"] > 100
    assert 5e6 < own["accel_exporter_nvml_resident_memory_bytes"] < 25e6


def _young(own: dict[str, float]) -> bool:
    """Return whether each set was read within its last three intervals."""
    ages = [own[f'accel_exporter_source_age_seconds{{source="nvml_{name}"}}'] for name in INTERVALS]
    return all(0 < age < 3 * interval for age, interval in zip(ages, INTERVALS.values(), strict=True))


def test_many_descriptors(scenario: Scenario) -> None:
    """A process with thousands of descriptors, as for probes, can read from the child."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip(f"only {hard} descriptors are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    many = [os.dup(0) for _ in range(1100)]
    try:
        with running() as supervisor:
            until(lambda: all_ok(supervisor))
    finally:
        for descriptor in many:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _hung(scenario: Scenario) -> bool:
    return "hang" in scenario.calls()


def test_hang(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that hangs is a stall within three intervals; the child is replaced, and the GPU is in quarantine."""
    monkeypatch.setattr(supervision, "FRESH", PATIENCE / INTERVALS["fast"])  # of a child that does not hang
    with running() as supervisor:
        until(lambda: all_ok(supervisor))
        scenario.set({"hang": "nvmlDeviceGetPowerUsage@1"})
        until(lambda: _hung(scenario))
        unnoticed = _longest_silence(supervisor)
        sentence = supervisor.stalled

        def once(silent: float) -> str:
            monkeypatch.setattr(supervisor, "_patience", PATIENCE)
            return sentence(silent)

        monkeypatch.setattr(supervisor, "stalled", once)
        monkeypatch.setattr(supervisor, "_patience", 3 * INTERVALS["fast"])
        until(lambda: states(supervisor.snapshot()) == ["ok", "stalled", "ok"])
        restarts = values(supervisor)['accel_exporter_nvml_restarts_total{reason="stalled"}']

        assert stalled(supervisor)

    assert unnoticed < 3 * INTERVALS["fast"]
    assert 1 == restarts


def _longest_silence(supervisor: NvmlSupervisor) -> float:
    """Waits for a stall. Returns the longest time since the child's last message at which there was no stall yet."""
    silences = [0.0]

    def noticed() -> bool:
        at, silent = supervisor.last_message, time.monotonic() - supervisor.last_message
        if stalled(supervisor):
            return True
        if at == supervisor.last_message:
            silences.append(silent)
        return False

    until(noticed)
    return max(silences)


def test_hang_at_the_start(scenario: Scenario) -> None:
    """A library that hangs in the initialisation is stalled, without a GPU."""
    scenario.set({"hang": "nvmlInitWithFlags"})
    with running() as supervisor:
        until(lambda: stalled(supervisor))

        assert ("stalled", ()) == (supervisor.snapshot().state, supervisor.snapshot().gpus)


@pytest.mark.usefixtures("patient")
def test_crash(scenario: Scenario) -> None:
    """The child is started again after a crash of the library."""
    with running() as supervisor:
        until(lambda: all_ok(supervisor))
        scenario.set({"crash": "nvmlDeviceGetFieldValues"})
        reason = until(lambda: it.reason if (it := supervisor.snapshot()).state == "restarting" else "")
        scenario.set({"crash": None})
        until(lambda: all_ok(supervisor))
        restarts = values(supervisor)['accel_exporter_nvml_restarts_total{reason="crashed"}']

    assert "the child crashed: Segmentation fault" == reason
    assert restarts >= 1


@pytest.mark.usefixtures("patient")
def test_driver_replaced(scenario: Scenario) -> None:
    """A new child is started after the driver was replaced (18): only a new process can use the new driver."""
    with running() as supervisor:
        until(lambda: all_ok(supervisor))
        scenario.set({"error.nvmlDeviceGetFieldValues": 18})
        until(lambda: supervisor.snapshot().state == "restarting")
        scenario.set({"error.nvmlDeviceGetFieldValues": None, "driver": "590.10"})
        until(lambda: all_ok(supervisor))
        driver = supervisor.snapshot().driver
        own = values(supervisor)

    assert driver is not None and "590.10" == driver.version
    assert 1 <= own['accel_exporter_nvml_restarts_total{reason="driver_replaced"}']


@pytest.mark.usefixtures("patient")
def test_driver_comes_later(scenario: Scenario) -> None:
    """Without a driver there is no NVML, which is no fault; a driver that comes later is found."""
    scenario.set({"init": 9})
    with running() as supervisor:
        until(lambda: supervisor.snapshot().state == "absent")
        scenario.set({"init": None})
        until(lambda: all_ok(supervisor))

        assert not any(value for series, value in values(supervisor).items() if "restarts" in series)


@pytest.mark.usefixtures("patient")
def test_gpu_lost(scenario: Scenario) -> None:
    """A lost GPU has its UUID and no readings, also after the child was replaced."""
    with running() as supervisor:
        until(lambda: all_ok(supervisor))
        scenario.set({"gpu2.lost": 1})
        until(lambda: states(supervisor.snapshot()) == ["ok", "ok", "lost"])
        scenario.set({"crash": "nvmlDeviceGetName"})
        scenario.set({"gpu0.mig": 1})  # GPU 0 is opened again, so the crash happens
        until(lambda: supervisor.snapshot().state == "restarting")
        scenario.set({"crash": None})
        until(lambda: supervisor.snapshot().state == "running")

        assert ["ok", "ok", "lost"] == [gpu.state for gpu in supervisor.snapshot().gpus]
        assert UUID.format(2) == supervisor.snapshot().gpus[2].uuid


@pytest.mark.usefixtures("patient")
def test_release(scenario: Scenario) -> None:
    """Handles are closed on request, which a metric shows, and opened again afterwards."""
    with running() as supervisor:
        until(lambda: all_ok(supervisor))

        assert supervisor.release(PATIENCE)
        assert 1 == scenario.calls()["nvmlShutdown"]
        assert 1 == values(supervisor)["accel_exporter_nvml_released"]
        assert not any(gpu.sets for gpu in supervisor.snapshot().gpus)
        supervisor.release(0.1)
        until(lambda: all_ok(supervisor))


def test_release_of_a_child_that_hangs(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release fails while the child hangs; no new child opens handles in that time."""
    monkeypatch.setattr(supervision, "FRESH", PATIENCE / INTERVALS["fast"])  # it is not replaced before the release
    with running() as supervisor:
        until(lambda: all_ok(supervisor))
        scenario.set({"hang": "nvmlDeviceGetPowerUsage"})
        until(lambda: _hung(scenario))
        until(lambda: stalled(supervisor))

        assert not supervisor.release(PATIENCE)
        scenario.set({"hang": None})
        monkeypatch.setattr(supervisor, "_patience", INTERVALS["fast"])
        until(lambda: supervisor.child is None)
        time.sleep(1.5)
        assert 1 == scenario.calls()["nvmlInitWithFlags"]


@pytest.mark.usefixtures("patient")
def test_events(scenario: Scenario) -> None:
    """Events are published as they come, and kept in the snapshot."""
    received: list[Event] = []
    with running(publish=received.append) as supervisor:
        until(lambda: all_ok(supervisor))
        scenario.set({"event.1": "1 8 79"})
        until(lambda: bool(received))

        assert tuple(received) == supervisor.snapshot().events
    assert (UUID.format(1), "xid", 79) == (received[0].uuid, received[0].kind, received[0].data)


def _child(supervisor: NvmlSupervisor) -> int:
    child = supervisor.child
    assert child is not None
    return child.pid


@pytest.mark.usefixtures("patient")
def test_release_while_there_is_no_child(scenario: Scenario) -> None:
    """No child starts during a release."""
    scenario.set({"init": 999})
    with running() as supervisor:
        until(lambda: supervisor.snapshot().state == "restarting")
        scenario.set({"init": None})

        assert supervisor.release(PATIENCE)
        assert 1 == values(supervisor)["accel_exporter_nvml_released"]
        before = scenario.calls()["nvmlInitWithFlags"]
        time.sleep(1.5)
        assert before == scenario.calls()["nvmlInitWithFlags"]
        supervisor.release(0.1)
        until(lambda: all_ok(supervisor))


@pytest.mark.usefixtures("patient")
def test_terminated_child(scenario: Scenario) -> None:
    """A child that is terminated from outside is started again, and counted as ended."""
    with running() as supervisor:
        until(lambda: all_ok(supervisor))
        os.kill(_child(supervisor), signal.SIGTERM)
        until(lambda: values(supervisor)['accel_exporter_nvml_restarts_total{reason="ended"}'] == 1)
        until(lambda: all_ok(supervisor))
