"""What the parent makes of the messages: what counts, and for how long."""

from __future__ import annotations

from exporter.nvml.known import MOST_EVENTS, Known
from exporter.nvml.shunned import LONGEST, SHORTEST, Shunned
from exporter.nvml.snapshot import Driver, Event, Identity, Read, Readings, Started

DRIVER = Driver("580", "13.580", 13000)
INTERVALS = {"fast": 10.0, "processes": 15.0, "slow": 60.0}


def identity(index: int) -> Identity:
    return Identity(f"GPU-{index}", index, "H100", f"00000000:{index:02X}:00.0")


def known(*gpus: Identity) -> Known:
    made = Known(INTERVALS)
    made.started(Started(DRIVER, gpus), ())
    return made


def read(gpu: str, set: str, at: float, state: str = "ok") -> Read:
    return Read(gpu, set, state, Readings(at, {f"{set}_value": 1}) if state == "ok" else None)


def states(known: Known) -> dict[str, str]:
    return {gpu.identity.key: gpu.state for gpu in known.snapshot(0.0).gpus}


def test_old_readings_are_dropped() -> None:
    """A set counts for three of its own intervals."""
    it = known(identity(0))
    for set in INTERVALS:
        it.read(read("GPU-0", set, 100.0))

    def sets(now: float) -> list[str]:
        return sorted(it.snapshot(now).gpus[0].sets)

    assert ["fast", "processes", "slow"] == sets(130.0)
    assert ["processes", "slow"] == sets(130.1)
    assert ["slow"] == sets(145.1)
    assert [] == sets(280.1)


def test_ages() -> None:
    """A set is as old as that of the readable GPU that was read longest ago; a lost GPU makes none older."""
    it = known(identity(0), identity(1), identity(2))
    for gpu, at in (("GPU-0", 95.0), ("GPU-1", 90.0), ("GPU-2", 10.0)):
        it.read(read(gpu, "fast", at))
    it.read(read("GPU-2", "fast", 0.0, "lost"))

    assert {"fast": 10.0} == it.ages(100.0)


def test_a_gpu_that_is_gone() -> None:
    """A GPU that is not there after a new start is lost; readings of the others are kept until newer ones come."""
    it = known(identity(0), identity(1))
    it.read(read("GPU-0", "fast", 0.0))
    it.read(read("GPU-1", "fast", 0.0))
    it.started(Started(DRIVER, (identity(0),)), ())

    assert {"GPU-0": "ok", "GPU-1": "lost"} == states(it)
    assert [1, 0] == [len(gpu.sets) for gpu in it.snapshot(0.0).gpus]

    it.started(Started(DRIVER, (identity(0), identity(1))), ())

    assert {"GPU-0": "ok", "GPU-1": "ok"} == states(it)


def test_a_lost_gpu_has_no_readings() -> None:
    """When a GPU is told as lost, what was read of it counts no more."""
    it = known(identity(0))
    it.read(read("GPU-0", "fast", 0.0))
    it.read(read("GPU-0", "slow", 0.0, "lost"))

    assert ("lost", {}) == (it.snapshot(0.0).gpus[0].state, it.snapshot(0.0).gpus[0].sets)


def test_nameless() -> None:
    """A GPU that does not tell its UUID is the lost one of that index where that is known, else one of its own."""
    nameless = Identity("", 1, "", "")
    it = known(identity(0), identity(1))
    it.started(Started(DRIVER, (identity(0), nameless)), ())
    it.read(read("#1", "fast", 0.0, "lost"))
    fresh = known(identity(0), nameless)
    fresh.read(read("#1", "fast", 0.0, "lost"))

    assert {"GPU-0": "ok", "GPU-1": "lost"} == states(it)
    assert {"GPU-0": "ok", "#1": "lost"} == states(fresh)


def test_shunned_gpus() -> None:
    """A GPU that is left alone is stalled, whether its UUID is known or not."""
    it = known(identity(0), identity(1))
    it.started(Started(DRIVER, (identity(0),)), (1, 2))

    assert {"GPU-0": "ok", "GPU-1": "stalled", "#2": "stalled"} == states(it)


def test_released() -> None:
    """While the GPUs are given back nothing is read, and no GPU is lost for it."""
    it = known(identity(0))
    it.read(read("GPU-0", "fast", 0.0))
    it.released(300.0)

    snapshot = it.snapshot(0.0)
    assert ("released", "on request, for 300 s more") == (snapshot.state, snapshot.reason)
    assert ("ok", {}) == (snapshot.gpus[0].state, snapshot.gpus[0].sets)


def test_absent() -> None:
    """Without NVML there are no GPUs."""
    it = known(identity(0))
    it.ended("no driver", absent=True)

    assert ("absent", "no driver", ()) == (it.snapshot(0.0).state, it.snapshot(0.0).reason, it.snapshot(0.0).gpus)


def test_events_are_bounded() -> None:
    """The newest events are kept, oldest first."""
    it = Known(INTERVALS)
    for number in range(MOST_EVENTS + 10):
        it.event(Event("GPU-0", float(number), "xid", number))

    assert list(range(10, MOST_EVENTS + 10)) == [event.data for event in it.snapshot(0.0).events]


def test_unknown_gpu() -> None:
    """A reading of a GPU that nobody told of is not taken."""
    it = known()
    it.read(read("GPU-9", "fast", 0.0))

    assert () == it.snapshot(0.0).gpus


def test_shunning() -> None:
    """A GPU is left alone for five minutes, for twice as long each time it stalls again, up to an hour."""
    shunned = Shunned()
    times, now = [], 0.0
    for _ in range(6):
        shunned.stalled(3, now)
        until = next(second for second in range(int(now), 10_000_000) if shunned.due(float(second)))
        times.append(until - now)
        now = float(until)

    assert [SHORTEST, 600.0, 1200.0, 2400.0, LONGEST, LONGEST] == times
    assert () == shunned.indices()
    shunned.works(3)
    shunned.stalled(3, 0.0)
    assert ((3,), (), (3,)) == (shunned.indices(), shunned.due(SHORTEST - 1), shunned.due(SHORTEST))
