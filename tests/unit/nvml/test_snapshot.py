"""Messages survive the pipe unchanged; anything else is refused."""

from __future__ import annotations

import pytest

from exporter.nvml.snapshot import (
    DriverVersions,
    Event,
    Gpu,
    GpuIdentity,
    GpuProcess,
    Heartbeat,
    Message,
    Mig,
    NvmlFailed,
    NvmlStarted,
    Readings,
    Released,
    SetRead,
    decode,
    encode,
)

IDENTITY = GpuIdentity(
    "GPU-1", 0, 'odd "name"\n\u2028', "00000000:18:00.0", inforom={"ecc": "7"}, migs=(Mig("MIG-1", 0, "1g.10gb", 7, 0),)
)
READINGS = Readings(
    12.5,
    {"energy_mj": 2**64 - 2, "temperature_c": -40, "sm_active_percent": 0.1},
    {17: {"tx_kib": 1}},
    {"MIG-1": {"memory_bytes": 2}},
    (GpuProcess(1, "compute", None, 7, 0, {"sm": 3}), GpuProcess(2, "mps", 2**63)),
)


@pytest.mark.parametrize(
    "message",
    [
        NvmlStarted(DriverVersions("580", "13.580", 13000), (IDENTITY, GpuIdentity("", 1, "", ""))),
        SetRead("GPU-1", "fast", "ok", READINGS),
        SetRead("#3", "fast", "lost", None),
        Heartbeat(1.0, None, 3),
        Heartbeat(1.0, 7, 3),
        NvmlFailed(18, "nvmlInit: another version"),
        Released(99.0),
        Event("GPU-1", 1700000000.5, "xid", 79, None, 0),
    ],
    ids=lambda message: type(message).__name__,
)
def test_round_trip(message: Message) -> None:
    """Each message is one line, and equal after decoding."""
    line = encode(message)

    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert message == decode(line[:-1])


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[1]",
        b"null",
        b'{"Beat": 1}',
        b'{"Beat": {"at": 1}}',
        b'{"Unknown": {}}',
        b'{"Beat": {}, "Failed": {}}',
        b'{"Read": {"gpu": "x"}}',
        b'{"Read": {"gpu": "x", "set": "fast", "state": "ok", "readings": {"links": {"x": {}}, "processes": []}}}',
        b'{"Started": {"driver": [], "gpus": []}}',
        b"\xff\xfe",
        encode(SetRead("GPU-1", "fast", "ok", READINGS))[:-20],
    ],
)
def test_nonsense(line: bytes) -> None:
    """A line that is no complete message raises ValueError."""
    with pytest.raises(ValueError):
        decode(line)


def test_gpu() -> None:
    """A reading is found in any set; readings of links and MIG devices come from all sets together."""
    slow = Readings(1.0, {"ecc_enabled": 1}, {0: {"replays": 5}}, {})
    fast = Readings(2.0, {"temperature_c": 40}, {0: {"tx_kib": 1}}, {"MIG-1": {"memory_bytes": 2}})
    gpu = Gpu(IDENTITY, sets={"fast": fast, "slow": slow, "processes": READINGS})

    assert (40, 1, None) == (gpu.value("temperature_c"), gpu.value("ecc_enabled"), gpu.value("nothing"))
    assert {"tx_kib": 1, "replays": 5} == gpu.link_values(0)
    assert {"memory_bytes": 2} == gpu.mig_values("MIG-1")
    assert [1, 2] == [process.pid for process in gpu.processes]
    assert () == Gpu(IDENTITY).processes
