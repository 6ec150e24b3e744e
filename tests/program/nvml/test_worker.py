"""The child on the stand-in library: readings, skipped GPUs, and ends."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pynvml
import pytest

from exporter.nvml import readings as declared
from exporter.nvml.reading import Call, FieldValue, GpmCount, GpmMean, Reading
from exporter.nvml.snapshot import (
    FAST,
    PROCESSES,
    SLOW,
    Event,
    GpuIdentity,
    GpuProcess,
    Heartbeat,
    Mig,
    NvmlFailed,
    NvmlStarted,
    Released,
    SetRead,
)
from tests.standins.nvml import INTERVALS, LIBRARY, OLD_LIBRARY, UUID, Scenario, Worker
from tests.support import PATIENCE, until

pytestmark = pytest.mark.evidence(feature="NVML readings", on="stand-in")

STRUCTURES = (
    "nvmlPciInfo_t",
    "c_nvmlUtilization_t",
    "c_nvmlMemory_t",
    "c_nvmlMemory_v2_t",
    "c_nvmlBAR1Memory_t",
    "c_nvmlFieldValue_t",
    "c_nvmlEccSramErrorStatus_v1_t",
    "c_nvmlGpuFabricInfo_v2_t",
    "c_nvmlRowRemapperHistogramValues",
    "c_nvmlGridLicensableFeatures_v4_t",
    "c_nvmlProcessInfo_v3_t",
    "c_nvmlProcessUtilizationInfo_v1_t",
    "c_nvmlProcessesUtilizationInfo_v1_t",
    "c_nvmlProcessUtilizationSample_t",
    "c_nvmlViolationTime_t",
    "c_nvmlEventData_t",
    "c_nvmlTemperature_v1_t",
    "c_nvmlMarginTemperature_v1_t",
    "c_nvmlGpmSupport_t",
    "c_nvmlGpmMetricsGet_t",
)


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures(name: str) -> None:
    """The stand-in's structures have the sizes of nvidia-ml-py's."""
    library = ctypes.CDLL(str(LIBRARY))
    library.standin_size.restype = ctypes.c_size_t

    assert ctypes.sizeof(getattr(pynvml, name)) == library.standin_size(name.encode())


def test_identity(tmp_path: Path) -> None:
    """NvmlStarted has all that identifies a GPU."""
    with Worker(Scenario(tmp_path, **{"gpus": 2, "gpu1.inforom_image": "none"})) as worker:
        started = worker.started()

    expected = GpuIdentity(
        uuid=UUID.format(1),
        index=1,
        name="NVIDIA H100 80GB HBM3",
        pci_bus_id="00000000:19:00.0",
        serial="165000000000",
        minor=1,
        brand="Nvidia",
        vbios="96.00.99.00.01",
        board_part_number="692-2G520-0200-000",
        inforom={"image": "G520.0200.00.05", "oem": "2.1", "ecc": "7.16"},
        compute_capability="9.0",
        links=18,
        vgpu="none",
    )
    assert ("580.95.05", "13.580.95.05", 13000) == (
        started.driver.version,
        started.driver.nvml,
        started.driver.cuda,
    )
    assert expected == started.gpus[1]


def test_fast_readings(tmp_path: Path) -> None:
    """The fast set has field values, calls, means and counts of GPM, and bytes of each link, in NVML's units."""
    scenario = Scenario(tmp_path, **{"gpu0.field.82": 71, "gpu0.gpm.248": 12345, "gpu0.field.138.5": 4096})
    with Worker(scenario) as worker:
        values = worker.second_read().readings
        assert values is not None

    values_read = values.values
    assert (71, 312456, 63, 48.75, 12345) == tuple(
        values_read[key]
        for key in ("memory_temperature_c", "power_mw", "utilization_percent", "tensor_active_percent", "sm_cycles")
    )
    assert (85520809984, 45097156608, 640155648) == (
        values_read["memory_bytes"],
        values_read["memory_used_bytes"],
        values_read["memory_reserved_bytes"],
    )
    assert list(range(18)) == list(values.links)
    assert 4096 == values.links[5]["tx_kib"]


FABRIC = {"gpu0.fabric_clique": 3, "gpu0.fabric_cluster": 9}
"""A UUID that begins with a byte of 0."""


def test_slow_readings(tmp_path: Path) -> None:
    """The slow set has errors, limits and modes, also those in structures passed by reference."""
    scenario = Scenario(tmp_path, **{"gpu0.field.12": 3, "gpu0.sram_secded": 7, "gpu0.link_state.4": 0, **FABRIC})
    with Worker(scenario) as worker:
        readings = worker.read(SLOW).readings
        assert readings is not None

    values_read = readings.values
    assert (3, 7, 7, 3, 0x2A, 3, 9) == tuple(
        values_read[key]
        for key in (
            "ecc_uncorrected_volatile_dram",
            "sram_secded_volatile",
            "sram_uncorrected_sm",
            "fabric_state",
            "fabric_health",
            "fabric_clique",
            "fabric_cluster",
        )
    )
    assert -2 == values_read["margin_limit_slowdown_c"]
    assert (0, 1) == (readings.links[4]["active"], readings.links[5]["active"])


def test_everything_is_read_that_is_there(tmp_path: Path) -> None:
    """On a GPU that supports everything, every field and call gives its readings."""
    values: dict[str, object] = {}
    for reading in _declared():
        match reading.source:
            case FieldValue(name, 0):
                number = getattr(pynvml, f"NVML_FI_{name}")
                values[f"gpu0.field.{number}"] = number
            case GpmMean(number) | GpmCount(number):
                values[f"gpu0.gpm.{number}"] = number
    values |= {f"gpu0.threshold.{number}": 80 + number for number in range(4)}
    values |= {"gpu0.fan": 30, "gpu0.vgpus": 2, "gpu0.vgpu_licensed": 1}
    scenario = Scenario(tmp_path, **values)
    with Worker(scenario) as worker:
        fast, slow = worker.second_read().readings, worker.read(SLOW).readings
        assert fast is not None and slow is not None

    assert {reading.key for reading in declared.GPU[FAST]} == fast.values.keys()
    assert {reading.key for reading in declared.GPU[SLOW]} == slow.values.keys()
    assert (30, 2, 1, 83) == tuple(
        slow.values[key] for key in ("fan_percent", "vgpus", "vgpu_licensed", "temperature_limit_gpu_max_c")
    )
    called = _called(scenario)
    assert {reading.source.function for reading in _declared() if isinstance(reading.source, Call)} <= called
    fallbacks = {reading.fallback.function for reading in _declared() if reading.fallback is not None}
    assert {"nvmlDeviceGetMemoryInfo"} == fallbacks & called


def _declared() -> Sequence[Reading]:
    return (*declared.GPU[FAST], *declared.GPU[SLOW])


def _called(scenario: Scenario) -> set[str]:
    """Returns the functions of nvidia-ml-py that were called, without the version in the names of C."""
    return {name.removesuffix("_v2").removesuffix("_v4") for name in scenario.calls()}


def test_type_limits(tmp_path: Path) -> None:
    """Values at the limits of their types stay exact; a value with all bits set is not available and absent."""
    scenario = Scenario(
        tmp_path,
        **{
            "gpu0.field.83": 2**64 - 2,
            "gpu0.field.94": "na",
            "gpu0.field.82": 2**32 - 1,
            "gpu0.field.185": 2**32 - 2,
            "gpu0.power_mw": 2**32 - 1,
            "gpu0.temperature": -40,
            "gpu0.memory_used": "na",
            "gpu0.bar1_used": 2**32 - 1,
            "gpu0.field.269": -5,
            "gpu0.type.269": "ll",
            "gpu0.field.270": 1.5,
            "gpu0.type.270": "d",
            "gpu0.field.271": "nan",
            "gpu0.type.271": "d",
        },
    )
    with Worker(scenario) as worker:
        fast, slow = worker.read().readings, worker.read(SLOW).readings
        assert fast is not None and slow is not None

    values_read = fast.values
    assert 2**64 - 2 == values_read["energy_mj"]
    assert 2**32 - 2 == values_read["power_average_mw"]
    assert -40 == values_read["temperature_c"]
    assert 2**32 - 1 == slow.values["bar1_used_bytes"]
    assert (-5, 1.5) == (values_read["slowed_sw_thermal_ns"], values_read["slowed_hw_thermal_ns"])
    absent = {"pcie_replays", "memory_temperature_c", "power_mw", "memory_used_bytes", "slowed_hw_power_brake_ns"}
    assert not absent & values_read.keys()


def test_unsupported_is_remembered(tmp_path: Path) -> None:
    """An unsupported call is made once on that GPU, and again and again on the others."""
    scenario = Scenario(tmp_path, **{"gpus": 2, "gpu0.margin": "error:3", "gpu0.gpm": 0})
    with Worker(scenario) as worker:
        for _ in range(4):
            worker.read(gpu=1)
        calls = scenario.calls()
        count = calls["nvmlDeviceGetPowerUsage"] // 2

    assert count >= 4
    assert calls["nvmlDeviceGetMarginTemperature"] - 1 in (count - 1, count, count + 1)
    assert 2 == calls["nvmlGpmQueryDeviceSupport"]


def test_a_failure_is_not_remembered(tmp_path: Path) -> None:
    """A reading that fails for another reason is absent, and returns as soon as the call works."""
    scenario = Scenario(tmp_path, **{"error.nvmlDeviceGetPowerUsage": 999})
    with Worker(scenario) as worker:
        first = worker.read().readings
        scenario.set({"error.nvmlDeviceGetPowerUsage": None})
        back = worker.until(
            SetRead, lambda message: message.readings is not None and "power_mw" in message.readings.values
        )

    assert first is not None and "power_mw" not in first.values
    assert "ok" == back.state


def test_lost(tmp_path: Path) -> None:
    """A GPU that falls off the bus is lost, without readings, while the others go on; the GPU may come back."""
    scenario = Scenario(tmp_path, gpus=8)
    with Worker(scenario) as worker:
        worker.read(gpu=7)
        scenario.set({"gpu3.lost": 1})
        lost = worker.until(SetRead, lambda message: message.state != "ok")
        others = {worker.until(SetRead, lambda message: message.set_name == FAST).gpu for _ in range(14)}
        scenario.set({"gpu3.lost": None})
        again = worker.until(SetRead, lambda message: message.gpu == UUID.format(3) and message.set_name == FAST)

    assert (UUID.format(3), "lost", None) == (lost.gpu, lost.state, lost.readings)
    assert {UUID.format(gpu) for gpu in range(8) if gpu != 3} == others
    assert "ok" == again.state


def test_reset_required(tmp_path: Path) -> None:
    """A GPU that needs a reset has the state reset_required."""
    scenario = Scenario(tmp_path, **{"gpu0.error.nvmlDeviceGetFieldValues": 16})
    with Worker(scenario) as worker:
        assert "reset_required" == worker.read().state


def test_lost_from_the_start(tmp_path: Path) -> None:
    """A GPU with an unreadable UUID has its index as key."""
    with Worker(Scenario(tmp_path, **{"gpus": 2, "gpu1.lost": 1})) as worker:
        started, values_read = worker.started(), worker.until(SetRead)

    assert ["", "NVIDIA H100 80GB HBM3"] == [started.gpus[1].uuid, started.gpus[0].name]
    assert ("#1", "lost") == (values_read.gpu, values_read.state)


def test_gpus_come_and_go(tmp_path: Path) -> None:
    """A GPU that appears or disappears is noticed at the next slow reading."""
    scenario = Scenario(tmp_path, gpus=1)
    with Worker(scenario) as worker:
        counts = [len(worker.started().gpus)]
        scenario.set({"gpus": 3})
        counts.append(len(worker.started().gpus))
        scenario.set({"gpus": 2})
        counts.append(len(worker.started().gpus))

    assert [1, 3, 2] == counts


@pytest.mark.parametrize("code", [1, 9, 18])
def test_driver_lost(tmp_path: Path, code: int) -> None:
    """The child reports an unloaded or replaced driver, or a lost initialisation, and ends."""
    scenario = Scenario(tmp_path)
    with Worker(scenario) as worker:
        worker.read()
        scenario.set({"error.nvmlDeviceGetFieldValues": code})
        failed = worker.until(NvmlFailed)

        assert (code, 0) == (failed.code, worker.process.wait(PATIENCE))


@pytest.mark.parametrize("code", [9, 18, 999])
def test_no_start(tmp_path: Path, code: int) -> None:
    """The child reports a failed initialisation and ends."""
    with Worker(Scenario(tmp_path, init=code)) as worker:
        assert code == worker.until(NvmlFailed).code
        assert 0 == worker.process.wait(PATIENCE)


def test_no_library(tmp_path: Path) -> None:
    """The child reports a missing library and ends."""
    with Worker(Scenario(tmp_path), library=tmp_path / "libnvidia-ml.so.1") as worker:
        assert 12 == worker.until(NvmlFailed).code


def test_old_driver(tmp_path: Path) -> None:
    """On a driver without newer functions older calls serve, GPM is absent, and PCIe is measured."""
    scenario = Scenario(tmp_path, **{"gpu.pcie_throughput.0": 300, "gpu.pcie_throughput.1": 400})
    with Worker(scenario, library=OLD_LIBRARY) as worker:
        readings = worker.second_read().readings
        assert readings is not None

    values_read = readings.values
    assert (41, 4, 300, 400) == tuple(
        values_read[key] for key in ("temperature_c", "clocks_event_reasons", "pcie_tx_kb_per_s", "pcie_rx_kb_per_s")
    )
    assert 45097156608 + 640155648 == values_read["memory_used_bytes"]
    assert not {"temperature_margin_c", "memory_reserved_bytes", *_gpm_keys()} & values_read.keys()


def _gpm_keys() -> set[str]:
    return {reading.key for reading in declared.GPM}


def test_gpm_errors(tmp_path: Path) -> None:
    """A metric of GPM that is NaN, or fails by itself, is absent; the others are there."""
    scenario = Scenario(tmp_path, **{"gpu0.gpm.5": "nan", "gpu0.gpm.10": "error:3", "gpu0.gpm.2": "inf"})
    with Worker(scenario) as worker:
        readings = worker.second_read().readings
        assert readings is not None

    absent = {"tensor_active_percent", "dram_active_percent", "sm_active_percent"}
    assert not absent & readings.values.keys()
    assert 33.5 == readings.values["sm_occupancy_percent"]


def test_mig(tmp_path: Path) -> None:
    """On eight GPUs of seven MIG devices each device has memory and GPM of its instance; remapped rows are absent."""
    scenario = Scenario(
        tmp_path,
        **{"gpus": 8, "gpu.mig": 7, "gpu5.mig2.memory_used": 123, "gpu5.mig2.gpm.2": 99.5, "gpu.utilization": "none"}
        | {"gpu.field.142": "none"},
    )
    with Worker(scenario) as worker:
        started = worker.started()
        readings, slow = worker.second_read(gpu=5).readings, worker.read(SLOW, gpu=5).readings
        assert readings is not None and slow is not None

    uuid = "MIG-00000000-0000-0000-0005-000000000002"
    assert 56 == sum(len(gpu.migs) for gpu in started.gpus)
    assert Mig(uuid, 2, "1g.10gb", 9, 0) == started.gpus[5].migs[2]
    assert (123, 99.5) == (readings.migs[uuid]["memory_used_bytes"], readings.migs[uuid]["sm_active_percent"])
    assert "utilization_percent" not in readings.values
    assert not {"row_banks_max", "remapped_rows_correctable"} & slow.values.keys()


def test_mig_changes(tmp_path: Path) -> None:
    """MIG devices that are created while the child runs are noticed."""
    scenario = Scenario(tmp_path)
    with Worker(scenario) as worker:
        before = worker.started().gpus[0]
        scenario.set({"gpu0.mig": 2})
        after = worker.started().gpus[0]

    assert (False, 0) == (before.mig_enabled, len(before.migs))
    assert (True, 2) == (after.mig_enabled, len(after.migs))


def test_processes(tmp_path: Path) -> None:
    """Processes have kind, bytes and use; unknown bytes are None, a process in two lists is there once."""
    scenario = Scenario(
        tmp_path,
        **{
            "gpu0.process.0": "100 compute 1073741824 55 20",
            "gpu0.process.1": "101 graphics na",
            "gpu0.process.2": "102 compute+graphics 4096 101 3",
            "gpu0.process.3": "103 mps 8192",
        },
    )
    with Worker(scenario) as worker:
        readings = worker.read(PROCESSES).readings
        assert readings is not None

    idle = {"encoder": 0, "decoder": 0, "jpeg": 0, "ofa": 0}
    expected = {
        GpuProcess(100, "compute", 1 << 30, None, None, {"sm": 55, "memory": 20, **idle}).pid: ("compute", 1 << 30),
        101: ("graphics", None),
        102: ("compute", 4096),
        103: ("mps", 8192),
    }
    values_read = {it.pid: it for it in readings.processes}
    assert expected == {pid: (it.kind, it.memory) for pid, it in values_read.items()}
    assert {"sm": 55, "memory": 20, **idle} == values_read[100].utilization
    assert {"memory": 3, **idle} == values_read[102].utilization
    assert {} == values_read[103].utilization


def test_mig_processes(tmp_path: Path) -> None:
    """Processes on MIG devices have their instances."""
    scenario = Scenario(tmp_path, **{"gpu0.mig": 2, "gpu0.mig1.process.0": "77 compute 4096"})
    with Worker(scenario) as worker:
        readings = worker.read(PROCESSES).readings

    assert readings is not None and (GpuProcess(77, "compute", 4096, 8, 0),) == readings.processes


def test_events(tmp_path: Path) -> None:
    """An Xid is reported when it happens; Xids from before the start are not reported."""
    scenario = Scenario(tmp_path, **{"gpus": 2, "event.1": "0 8 13"})
    with Worker(scenario) as worker:
        worker.read(gpu=1)
        before = time.time()
        scenario.set({"event.2": "1 8 79"})
        event = worker.until(Event)

    assert (UUID.format(1), "xid", 79, None) == (event.uuid, event.kind, event.data, event.gpu_instance)
    assert before - 1 <= event.time <= time.time()


def test_no_events(tmp_path: Path) -> None:
    """On GPUs without events the readings come as often."""
    with Worker(Scenario(tmp_path, **{"gpu.events": 0})) as worker:
        times = [readings.at for _ in range(9) if (readings := worker.read().readings) is not None]

    assert 9 == len(times)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert 0.2 <= sum(pauses) / 8 and min(pauses) <= 1.0  # a busy machine may be late once


def test_release(tmp_path: Path) -> None:
    """On request every handle is closed, also those of GPM and events, and opened again after the time."""
    scenario = Scenario(tmp_path)
    with Worker(scenario) as worker:
        worker.second_read()
        worker.command("release 60")
        worker.until(Released)
        released = scenario.calls()
        worker.command("release 0.1")
        worker.until(NvmlStarted)
        worker.second_read()

    assert 1 == released["nvmlShutdown"]
    assert released["nvmlGpmSampleAlloc"] == released["nvmlGpmSampleFree"]
    assert released["nvmlEventSetCreate"] == released["nvmlEventSetFree"]
    assert 2 == scenario.calls()["nvmlInitWithFlags"]


@pytest.mark.parametrize("how", ["closed", "SIGTERM", "SIGINT"])
def test_end(tmp_path: Path, how: str) -> None:
    """The child closes its handles and ends after a signal, and when its input closes."""
    scenario = Scenario(tmp_path)
    with Worker(scenario) as worker:
        worker.read()
        if how != "closed":
            worker.process.send_signal(signal.Signals[how])
        status = worker.hang_up() if how == "closed" else worker.process.wait(PATIENCE)

    assert 0 == status
    assert 1 == scenario.calls()["nvmlShutdown"]


def test_dies_with_its_parent(tmp_path: Path) -> None:
    """A child that hangs in the library dies with the process that started it."""
    scenario = Scenario(tmp_path, hang="nvmlInitWithFlags")
    program = (
        "import os, sys, time\n"
        "from exporter.nvml.process import NvmlChild\n"
        "from exporter.nvml.snapshot import ChildOptions\n"
        f"child = NvmlChild(ChildOptions({INTERVALS!r}, (), os.getpid()))\n"
        "while not child.lines(1): pass\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | scenario.environment(),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        cwd=Path(__file__).parents[3],
    )
    pid = int(ended.stdout)
    until(lambda: not _alive(pid), "the child ended")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def test_only_messages_on_its_output(tmp_path: Path) -> None:
    """Output of the library itself is not taken for a message."""
    with Worker(Scenario(tmp_path, noise=1)) as worker:
        assert "ok" == worker.read().state


def test_skipped(tmp_path: Path) -> None:
    """A GPU in `skip` is not called until the parent includes it."""
    scenario = Scenario(tmp_path, **{"gpus": 3, "hang": "nvmlDeviceGetUUID@1"})
    with Worker(scenario, skip=(1,)) as worker:
        left = [gpu.index for gpu in worker.started().gpus]
        worker.read(gpu=2)
        scenario.set({"hang": None})
        worker.command("include 1")
        included = [gpu.index for gpu in worker.started().gpus]

    assert [0, 2] == left
    assert [0, 1, 2] == included


def test_heartbeat_before_calls(tmp_path: Path) -> None:
    """A heartbeat has the index of the GPU before calls about it, so that the parent knows where a call hangs."""
    scenario = Scenario(tmp_path, **{"gpus": 3})
    with Worker(scenario) as worker:
        worker.read(gpu=2)
        scenario.set({"hang": "nvmlDeviceGetPowerUsage@1"})
        until(lambda: "hang" in scenario.calls(), "it hangs")
        worker.until(Heartbeat, lambda beat: beat.doing == 1)
        doing = [beat.doing for beat in _rest(worker)]

    assert 1 == doing[-1]


def _rest(worker: Worker) -> list[Heartbeat]:
    beats = [Heartbeat(0, 1, 0)]
    while worker._listen(0.5):
        beats += [message for message in worker.received if isinstance(message, Heartbeat)]
        worker.received.clear()
    return beats


def test_crash(tmp_path: Path) -> None:
    """The child ends with the signal of a crash of the library."""
    scenario = Scenario(tmp_path)
    with Worker(scenario) as worker:
        worker.read()
        scenario.set({"crash": "nvmlDeviceGetFieldValues"})

        assert -signal.SIGSEGV == worker.process.wait(PATIENCE)
