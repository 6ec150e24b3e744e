"""State of the GPUs in the parent: valid readings, and for how long they are valid."""

from __future__ import annotations

from exporter.nvml.quarantine import LONGEST, SHORTEST, Quarantine
from exporter.nvml.snapshot import DriverVersions, Event, GpuIdentity, NvmlStarted, Readings, SetRead
from exporter.nvml.state import MOST_EVENTS, NvmlState

DRIVER = DriverVersions("580", "13.580", 13000)
INTERVALS = {"fast": 10.0, "processes": 15.0, "slow": 60.0}


def identity(index: int) -> GpuIdentity:
    return GpuIdentity(f"GPU-{index}", index, "H100", f"00000000:{index:02X}:00.0")


def state_of(*gpus: GpuIdentity) -> NvmlState:
    made = NvmlState(INTERVALS)
    made.started(NvmlStarted(DRIVER, gpus), ())
    return made


def read(gpu: str, set_name: str, at: float, state: str = "ok") -> SetRead:
    return SetRead(gpu, set_name, state, Readings(at, {f"{set_name}_value": 1}) if state == "ok" else None)


def states(nvml: NvmlState) -> dict[str, str]:
    return {gpu.identity.key: gpu.state for gpu in nvml.snapshot(0.0).gpus}


def test_old_readings_are_dropped() -> None:
    """Readings of a set are valid for three intervals of the set."""
    state = state_of(identity(0))
    for name in INTERVALS:
        state.read(read("GPU-0", name, 100.0))

    def sets(now: float) -> list[str]:
        return sorted(state.snapshot(now).gpus[0].sets)

    assert ["fast", "processes", "slow"] == sets(130.0)
    assert ["processes", "slow"] == sets(130.1)
    assert ["slow"] == sets(145.1)
    assert [] == sets(280.1)


def test_ages() -> None:
    """The age of a set is that of the readable GPU read longest ago; a lost GPU does not count."""
    state = state_of(identity(0), identity(1), identity(2))
    for gpu, at in (("GPU-0", 95.0), ("GPU-1", 90.0), ("GPU-2", 10.0)):
        state.read(read(gpu, "fast", at))
    state.read(read("GPU-2", "fast", 0.0, "lost"))

    assert {"fast": 10.0} == state.ages(100.0)


def test_missing_gpu() -> None:
    """A GPU missing after a new start is lost; readings of the others stay until newer ones come."""
    state = state_of(identity(0), identity(1))
    state.read(read("GPU-0", "fast", 0.0))
    state.read(read("GPU-1", "fast", 0.0))
    state.started(NvmlStarted(DRIVER, (identity(0),)), ())

    assert {"GPU-0": "ok", "GPU-1": "lost"} == states(state)
    assert [1, 0] == [len(gpu.sets) for gpu in state.snapshot(0.0).gpus]

    state.started(NvmlStarted(DRIVER, (identity(0), identity(1))), ())

    assert {"GPU-0": "ok", "GPU-1": "ok"} == states(state)


def test_a_lost_gpu_has_no_readings() -> None:
    """Readings of a lost GPU are dropped."""
    state = state_of(identity(0))
    state.read(read("GPU-0", "fast", 0.0))
    state.read(read("GPU-0", "slow", 0.0, "lost"))

    assert ("lost", {}) == (state.snapshot(0.0).gpus[0].state, state.snapshot(0.0).gpus[0].sets)


def test_unreadable_uuid() -> None:
    """A GPU with an unreadable UUID is the lost GPU of the same index, or without one a GPU of its own."""
    unidentified = GpuIdentity("", 1, "", "")
    state = state_of(identity(0), identity(1))
    state.started(NvmlStarted(DRIVER, (identity(0), unidentified)), ())
    state.read(read("#1", "fast", 0.0, "lost"))
    fresh = state_of(identity(0), unidentified)
    fresh.read(read("#1", "fast", 0.0, "lost"))

    assert {"GPU-0": "ok", "GPU-1": "lost"} == states(state)
    assert {"GPU-0": "ok", "#1": "lost"} == states(fresh)


def test_quarantined_gpus() -> None:
    """A GPU in quarantine is stalled, with or without a known UUID."""
    state = state_of(identity(0), identity(1))
    state.started(NvmlStarted(DRIVER, (identity(0),)), (1, 2))

    assert {"GPU-0": "ok", "GPU-1": "stalled", "#2": "stalled"} == states(state)


def test_released() -> None:
    """While handles are closed there are no readings, and no GPU counts as lost."""
    state = state_of(identity(0))
    state.read(read("GPU-0", "fast", 0.0))
    state.released(300.0)

    snapshot = state.snapshot(0.0)
    assert ("released", "on request, for 300 s more") == (snapshot.state, snapshot.reason)
    assert ("ok", {}) == (snapshot.gpus[0].state, snapshot.gpus[0].sets)


def test_absent() -> None:
    """Without NVML there are no GPUs."""
    state = state_of(identity(0))
    state.ended("no driver", absent=True)

    assert ("absent", "no driver", ()) == (
        state.snapshot(0.0).state,
        state.snapshot(0.0).reason,
        state.snapshot(0.0).gpus,
    )


def test_events_are_bounded() -> None:
    """The newest events are kept, oldest first."""
    state = NvmlState(INTERVALS)
    for number in range(MOST_EVENTS + 10):
        state.event(Event("GPU-0", float(number), "xid", number))

    assert list(range(10, MOST_EVENTS + 10)) == [event.data for event in state.snapshot(0.0).events]


def test_unknown_gpu() -> None:
    """A reading of an unknown GPU is dropped."""
    state = state_of()
    state.read(read("GPU-9", "fast", 0.0))

    assert () == state.snapshot(0.0).gpus


def test_quarantine() -> None:
    """A quarantine lasts five minutes, twice as long after each further stall, up to an hour."""
    quarantine = Quarantine()
    times, now = [], 0.0
    for _ in range(6):
        quarantine.stalled(3, now)
        until = next(second for second in range(int(now), 10_000_000) if quarantine.due(float(second)))
        times.append(until - now)
        now = float(until)

    assert [SHORTEST, 600.0, 1200.0, 2400.0, LONGEST, LONGEST] == times
    assert () == quarantine.indices()
    quarantine.works(3)
    quarantine.stalled(3, 0.0)
    assert ((3,), (), (3,)) == (quarantine.indices(), quarantine.due(SHORTEST - 1), quarantine.due(SHORTEST))
