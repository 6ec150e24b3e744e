"""The child on the stand-in library: what it reads, what it leaves alone, and how it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pynvml
import pytest

from exporter.nvml.fields import FIELDS, GPM, GPM_COUNTERS, TOTALS
from exporter.nvml.questions import CALLS
from exporter.nvml.snapshot import (
    FAST,
    PROCESSES,
    SLOW,
    Beat,
    Event,
    Failed,
    Identity,
    Mig,
    Process,
    Read,
    Released,
    Started,
)
from tests.standins.nvml import INTERVALS, LIBRARY, OLD_LIBRARY, UUID, Scenario, Worker

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
    """A GPU is told with all that identifies it."""
    with Worker(Scenario(tmp_path, **{"gpus": 2, "gpu1.inforom_image": "none"})) as worker:
        started = worker.started()

    expected = Identity(
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
    """The fast set has field values, calls, GPM's means and counts, and each link's bytes, in NVML's own units."""
    scenario = Scenario(tmp_path, **{"gpu0.field.82": 71, "gpu0.gpm.248": 12345, "gpu0.field.138.5": 4096})
    with Worker(scenario) as worker:
        values = worker.second_read().readings
        assert values is not None

    told = values.values
    assert (71, 312456, 63, 48.75, 12345) == tuple(
        told[key]
        for key in ("memory_temperature_c", "power_mw", "utilization_percent", "tensor_active_percent", "sm_cycles")
    )
    assert (85520809984, 45097156608, 640155648) == (
        told["memory_bytes"],
        told["memory_used_bytes"],
        told["memory_reserved_bytes"],
    )
    assert list(range(18)) == list(values.links)
    assert 4096 == values.links[5]["tx_kib"]


def test_slow_readings(tmp_path: Path) -> None:
    """The slow set has errors, limits and modes, also those that NVML writes into structures given by reference."""
    scenario = Scenario(tmp_path, **{"gpu0.field.12": 3, "gpu0.sram_secded": 7, "gpu0.link_state.4": 0})
    with Worker(scenario) as worker:
        readings = worker.read(SLOW).readings
        assert readings is not None

    told = readings.values
    assert (3, 7, 7, 3, 0x2A) == tuple(
        told[key]
        for key in (
            "ecc_uncorrected_volatile_dram",
            "sram_secded_volatile",
            "sram_uncorrected_sm",
            "fabric_state",
            "fabric_health",
        )
    )
    assert -2 == told["margin_limit_slowdown_c"]
    assert (0, 1) == (readings.links[4]["active"], readings.links[5]["active"])


def test_everything_is_read_that_is_there(tmp_path: Path) -> None:
    """Where a GPU has everything, every field and call gives its readings."""
    fields = [name for set in FIELDS.values() for name in set.values()]
    numbers = {name: getattr(pynvml, f"NVML_FI_{name}") for name in fields}
    values: dict[str, object] = {f"gpu0.field.{number}": number for number in numbers.values()}
    values |= {f"gpu0.gpm.{number}": number for number in (GPM | GPM_COUNTERS).values()}
    values |= {f"gpu0.threshold.{number}": 80 + number for number in range(4)}
    values |= {"gpu0.fan": 30, "gpu0.vgpus": 2, "gpu0.vgpu_licensed": 1}
    scenario = Scenario(tmp_path, **values)
    with Worker(scenario) as worker:
        fast, slow = worker.second_read().readings, worker.read(SLOW).readings
        assert fast is not None and slow is not None

    assert {*FIELDS[FAST], *TOTALS, *GPM, *GPM_COUNTERS} <= fast.values.keys()
    assert set(FIELDS[SLOW]) <= slow.values.keys()
    assert (30, 2, 1, 83) == tuple(
        slow.values[key] for key in ("fan_percent", "vgpus", "vgpu_licensed", "temperature_limit_gpu_max_c")
    )
    assert {call.function for calls in CALLS.values() for call in calls if not call.unless} <= _asked(scenario)


def _asked(scenario: Scenario) -> set[str]:
    """The functions of nvidia-ml-py that were called, which leaves the version of C's out."""
    return {name.removesuffix("_v2").removesuffix("_v4") for name in scenario.calls()}


def test_type_limits(tmp_path: Path) -> None:
    """Values at the limits of their types stay exact; all bits set means not available, so nothing is told."""
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

    told = fast.values
    assert 2**64 - 2 == told["energy_mj"]
    assert 2**32 - 2 == told["power_average_mw"]
    assert -40 == told["temperature_c"]
    assert 2**32 - 1 == slow.values["bar1_used_bytes"]
    assert (-5, 1.5) == (told["slowed_sw_thermal_ns"], told["slowed_hw_thermal_ns"])
    absent = {"pcie_replays", "memory_temperature_c", "power_mw", "memory_used_bytes", "slowed_hw_power_brake_ns"}
    assert not absent & told.keys()


def test_unsupported_is_remembered(tmp_path: Path) -> None:
    """What one GPU does not support is asked of it once, and of the others again and again."""
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
    """What fails for another reason is absent, and back as soon as it works."""
    scenario = Scenario(tmp_path, **{"error.nvmlDeviceGetPowerUsage": 999})
    with Worker(scenario) as worker:
        first = worker.read().readings
        scenario.set({"error.nvmlDeviceGetPowerUsage": None})
        back = worker.until(Read, lambda it: it.readings is not None and "power_mw" in it.readings.values)

    assert first is not None and "power_mw" not in first.values
    assert "ok" == back.state


def test_lost(tmp_path: Path) -> None:
    """A GPU that falls off the bus is told as lost, without readings, while the others go on; it may come back."""
    scenario = Scenario(tmp_path, gpus=8)
    with Worker(scenario) as worker:
        worker.read(gpu=7)
        scenario.set({"gpu3.lost": 1})
        lost = worker.until(Read, lambda it: it.state != "ok")
        others = {worker.until(Read, lambda it: it.set == FAST).gpu for _ in range(14)}
        scenario.set({"gpu3.lost": None})
        again = worker.until(Read, lambda it: it.gpu == UUID.format(3) and it.set == FAST)

    assert (UUID.format(3), "lost", None) == (lost.gpu, lost.state, lost.readings)
    assert {UUID.format(gpu) for gpu in range(8) if gpu != 3} == others
    assert "ok" == again.state


def test_reset_required(tmp_path: Path) -> None:
    """A GPU that wants a reset says so."""
    scenario = Scenario(tmp_path, **{"gpu0.error.nvmlDeviceGetFieldValues": 16})
    with Worker(scenario) as worker:
        assert "reset_required" == worker.read().state


def test_lost_from_the_start(tmp_path: Path) -> None:
    """A GPU that does not even tell its UUID is there by its index."""
    with Worker(Scenario(tmp_path, **{"gpus": 2, "gpu1.lost": 1})) as worker:
        started, told = worker.started(), worker.until(Read)

    assert ["", "NVIDIA H100 80GB HBM3"] == [started.gpus[1].uuid, started.gpus[0].name]
    assert ("#1", "lost") == (told.gpu, told.state)


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
def test_driver_gone(tmp_path: Path, code: int) -> None:
    """When NVML says that the driver went, is another or forgot us, the child says which and ends."""
    scenario = Scenario(tmp_path)
    with Worker(scenario) as worker:
        worker.read()
        scenario.set({"error.nvmlDeviceGetFieldValues": code})
        failed = worker.until(Failed)

        assert (code, 0) == (failed.code, worker.process.wait(10))


@pytest.mark.parametrize("code", [9, 18, 999])
def test_no_start(tmp_path: Path, code: int) -> None:
    """Where NVML cannot be initialised, the child says why and ends."""
    with Worker(Scenario(tmp_path, init=code)) as worker:
        assert code == worker.until(Failed).code
        assert 0 == worker.process.wait(10)


def test_no_library(tmp_path: Path) -> None:
    """Without the library the child says so and ends."""
    with Worker(Scenario(tmp_path), library=tmp_path / "libnvidia-ml.so.1") as worker:
        assert 12 == worker.until(Failed).code


def test_old_driver(tmp_path: Path) -> None:
    """A driver that lacks functions is asked for what it has: older calls serve, GPM is absent, PCIe is measured."""
    scenario = Scenario(tmp_path, **{"gpu.pcie_throughput.0": 300, "gpu.pcie_throughput.1": 400})
    with Worker(scenario, library=OLD_LIBRARY) as worker:
        readings = worker.second_read().readings
        assert readings is not None

    told = readings.values
    assert (41, 4, 300, 400) == tuple(
        told[key] for key in ("temperature_c", "clocks_event_reasons", "pcie_tx_kb_per_s", "pcie_rx_kb_per_s")
    )
    assert 45097156608 + 640155648 == told["memory_used_bytes"]
    assert not {"temperature_margin_c", "memory_reserved_bytes", *GPM} & told.keys()


def test_gpm_errors(tmp_path: Path) -> None:
    """A metric of GPM that is no number, or fails by itself, is absent; the others are there."""
    scenario = Scenario(tmp_path, **{"gpu0.gpm.5": "nan", "gpu0.gpm.10": "error:3", "gpu0.gpm.2": "inf"})
    with Worker(scenario) as worker:
        readings = worker.second_read().readings
        assert readings is not None

    absent = {"tensor_active_percent", "dram_active_percent", "sm_active_percent"}
    assert not absent & readings.values.keys()
    assert 33.5 == readings.values["sm_occupancy_percent"]


def test_mig(tmp_path: Path) -> None:
    """Eight GPUs of seven MIG devices: each has its memory and its instance's GPM; remapped rows are not told."""
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
    """MIG devices that are made while it runs are noticed."""
    scenario = Scenario(tmp_path)
    with Worker(scenario) as worker:
        before = worker.started().gpus[0]
        scenario.set({"gpu0.mig": 2})
        after = worker.started().gpus[0]

    assert (False, 0) == (before.mig_enabled, len(before.migs))
    assert (True, 2) == (after.mig_enabled, len(after.migs))


def test_processes(tmp_path: Path) -> None:
    """Processes are told with kind, bytes and use; unknown bytes are None, one in two lists is there once."""
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
        Process(100, "compute", 1 << 30, None, None, {"sm": 55, "memory": 20, **idle}).pid: ("compute", 1 << 30),
        101: ("graphics", None),
        102: ("compute", 4096),
        103: ("mps", 8192),
    }
    told = {it.pid: it for it in readings.processes}
    assert expected == {pid: (it.kind, it.memory) for pid, it in told.items()}
    assert {"sm": 55, "memory": 20, **idle} == told[100].utilization
    assert {"memory": 3, **idle} == told[102].utilization
    assert {} == told[103].utilization


def test_mig_processes(tmp_path: Path) -> None:
    """Processes on MIG devices are told with their instances."""
    scenario = Scenario(tmp_path, **{"gpu0.mig": 2, "gpu0.mig1.process.0": "77 compute 4096"})
    with Worker(scenario) as worker:
        readings = worker.read(PROCESSES).readings

    assert readings is not None and (Process(77, "compute", 4096, 8, 0),) == readings.processes


def test_events(tmp_path: Path) -> None:
    """An Xid is told as it happens; what was before the start is not told again."""
    scenario = Scenario(tmp_path, **{"gpus": 2, "event.1": "0 8 13"})
    with Worker(scenario) as worker:
        worker.read(gpu=1)
        before = time.time()
        scenario.set({"event.2": "1 8 79"})
        event = worker.until(Event)

    assert (UUID.format(1), "xid", 79, None) == (event.uuid, event.kind, event.data, event.gpu_instance)
    assert before - 1 <= event.time <= time.time()


def test_no_events(tmp_path: Path) -> None:
    """Where no GPU tells events, the readings come as often."""
    with Worker(Scenario(tmp_path, **{"gpu.events": 0})) as worker:
        began = worker.read().readings
        later = worker.read().readings

    assert began is not None and later is not None
    assert 0.2 <= later.at - began.at <= 1.0


def test_release(tmp_path: Path) -> None:
    """On request every handle is given back, also GPM's and the events', and taken again when the time is over."""
    scenario = Scenario(tmp_path)
    with Worker(scenario) as worker:
        worker.second_read()
        worker.command("release 1.0")
        worker.until(Released)
        released = scenario.calls()
        worker.until(Started)
        worker.second_read()

    assert 1 == released["nvmlShutdown"]
    assert released["nvmlGpmSampleAlloc"] == released["nvmlGpmSampleFree"]
    assert released["nvmlEventSetCreate"] == released["nvmlEventSetFree"]
    assert 2 == scenario.calls()["nvmlInitWithFlags"]


@pytest.mark.parametrize("how", ["closed", "SIGTERM", "SIGINT"])
def test_end(tmp_path: Path, how: str) -> None:
    """It gives its handles back and ends when told to by a signal or its input's end."""
    scenario = Scenario(tmp_path)
    with Worker(scenario) as worker:
        worker.read()
        began = time.monotonic()
        if how != "closed":
            worker.process.send_signal(signal.Signals[how])
        status = worker.hang_up() if how == "closed" else worker.process.wait(10)

    assert 0 == status
    assert time.monotonic() - began < 3
    assert 1 == scenario.calls()["nvmlShutdown"]


def test_dies_with_its_parent(tmp_path: Path) -> None:
    """A child that hangs in the library dies with the process that started it."""
    scenario = Scenario(tmp_path, hang="nvmlInitWithFlags")
    program = (
        "import os, sys, time\n"
        "from exporter.nvml.child import Child\n"
        "from exporter.nvml.snapshot import Options\n"
        f"child = Child(Options({INTERVALS!r}, (), os.getpid()))\n"
        "while not child.lines(1): pass\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | scenario.environment(),
        capture_output=True,
        text=True,
        timeout=20,
        cwd=Path(__file__).parents[3],
    )
    pid = int(ended.stdout)
    deadline = time.monotonic() + 5
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)

    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def test_only_messages_on_its_output(tmp_path: Path) -> None:
    """What the library itself prints is not taken for a message."""
    with Worker(Scenario(tmp_path, noise=1)) as worker:
        assert "ok" == worker.read().state


def test_skipped(tmp_path: Path) -> None:
    """A GPU that is to be left alone is not touched, until the parent says so."""
    scenario = Scenario(tmp_path, **{"gpus": 3, "hang": "nvmlDeviceGetUUID@1"})
    with Worker(scenario, skip=(1,)) as worker:
        left = [gpu.index for gpu in worker.started().gpus]
        worker.read(gpu=2)
        scenario.set({"hang": None})
        worker.command("take 1")
        taken = [gpu.index for gpu in worker.started().gpus]

    assert [0, 2] == left
    assert [0, 1, 2] == taken


def test_says_what_it_does(tmp_path: Path) -> None:
    """Before a GPU is touched its index is told, so that the parent knows on which one a call hangs."""
    scenario = Scenario(tmp_path, **{"gpus": 3})
    with Worker(scenario) as worker:
        worker.read(gpu=2)
        scenario.set({"hang": "nvmlDeviceGetPowerUsage@1"})
        time.sleep(1.5)
        worker.until(Beat, lambda beat: beat.doing == 1)
        doing = [beat.doing for beat in _rest(worker)]

    assert 1 == doing[-1]


def _rest(worker: Worker) -> list[Beat]:
    beats = [Beat(0, 1, 0)]
    while worker._listen(0.5):
        beats += [message for message in worker.heard if isinstance(message, Beat)]
        worker.heard.clear()
    return beats


def test_crash(tmp_path: Path) -> None:
    """When the library crashes, the child ends with that signal."""
    scenario = Scenario(tmp_path)
    with Worker(scenario) as worker:
        worker.read()
        scenario.set({"crash": "nvmlDeviceGetFieldValues"})

        assert -signal.SIGSEGV == worker.process.wait(10)
