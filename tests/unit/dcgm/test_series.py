"""Series of dcgm-exporter from snapshots made by hand."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from exporter.compat.dcgm import csv
from exporter.compat.dcgm.derived import Derived
from exporter.compat.dcgm.series import GPU_LABELS, OWNER_LABELS, DcgmSeries, EntityField
from exporter.model import Labels, Sample
from exporter.nvml.snapshot import DriverVersions, Gpu, GpuSnapshot
from tests.unit.dcgm.gpus import gpu, mig, snapshot

GPU_0 = {
    "gpu": "0",
    "UUID": "GPU-0",
    "pci_bus_id": "00000000:01:00.0",
    "device": "nvidia0",
    "modelName": "NVIDIA H100 80GB HBM3",
    "Hostname": "node-1",
    "DCGM_FI_DRIVER_VERSION": "580.95.05",
}


def rows(*names: str) -> tuple[csv.FieldRow, ...]:
    return tuple(row for row in csv.every() if row.name in names)


def samples(
    *gpus: Gpu,
    rows: tuple[csv.FieldRow, ...] | None = None,
    names: str = "old",
    hostname: str = "Hostname",
    profiling: Mapping[str, float] | None = None,
    owner: Labels | None = None,
    passed_through: Collection[EntityField] = (),
    derived: Derived | None = None,
    driver: DriverVersions | None = None,
) -> list[Sample]:
    made = GpuSnapshot("running", "", driver, gpus) if driver else snapshot(*gpus)
    series = DcgmSeries(csv.default() if rows is None else rows, names, hostname, "node-1")
    readings = (derived or Derived()).readings
    return list(series.samples(made, readings, lambda _: profiling or {}, lambda _: owner or {}, passed_through))


def values(found: list[Sample]) -> dict[str, object]:
    return {sample.metric.name.removeprefix("DCGM_FI_"): sample.value for sample in found}


def test_default_rows() -> None:
    """Every default row has a value in the row's unit: MHz, C, W, mJ, %, MiB, ratios and bytes per second."""
    derived = Derived()
    derived.look(snapshot(gpu(at=100.0)))
    derived.look(snapshot(gpu(at=110.0, fast={"nvlink_tx_kib": 2000, "nvlink_rx_kib": 10_000})))

    assert {
        "DEV_SM_CLOCK": 1755,
        "DEV_MEM_CLOCK": 2619,
        "DEV_MEMORY_TEMP": 52,
        "DEV_GPU_TEMP": 41,
        "DEV_POWER_USAGE": 312.456,
        "DEV_TOTAL_ENERGY_CONSUMPTION": 2**53 + 1,
        "DEV_PCIE_REPLAY_COUNTER": 3,
        "DEV_GPU_UTIL": 63,
        "DEV_MEM_COPY_UTIL": 38,
        "DEV_ENC_UTIL": 0,
        "DEV_DEC_UTIL": 0,
        "DEV_XID_ERRORS": 0,
        "DEV_FB_FREE": 37 * 1024,
        "DEV_FB_USED": 42 * 1024,
        "DEV_FB_RESERVED": 610,
        "DEV_NVLINK_BANDWIDTH_TOTAL": 1.0,
        "DEV_VGPU_LICENSE_STATUS": 0,
        "DEV_UNCORRECTABLE_REMAPPED_ROWS": 0,
        "DEV_CORRECTABLE_REMAPPED_ROWS": 2,
        "DEV_ROW_REMAP_FAILURE": 0,
        "PROF_GR_ENGINE_ACTIVE": 0.645,
        "PROF_PIPE_TENSOR_ACTIVE": 0.4875,
        "PROF_DRAM_ACTIVE": 0.375,
        "PROF_PCIE_TX_BYTES": 536870912.0,
        "PROF_PCIE_RX_BYTES": 268435456.0,
    } == values(samples(gpu(), derived=derived))


def test_labels() -> None:
    """Labels are those of dcgm-exporter and the owner; labels of the GPU have precedence."""
    owner = {"pod": "train-0", "namespace": "ml", "container": "main", "hpc_job": "42", "app": "llm"}

    taken = {"gpu": "9", "UUID": "x", "Hostname": "y"}
    found = samples(gpu(), rows=rows("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DRIVER_VERSION"), owner=owner | taken)

    [sample] = found
    assert GPU_0 | owner == sample.labels
    assert sample.metric.literal


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("Hostname", {"Hostname": "node-1"}),
        ("hostname", {"hostname": "node-1"}),
        ("both", {"Hostname": "node-1", "hostname": "node-1"}),
        ("none", {}),
    ],
)
def test_hostname_label(setting: str, expected: Labels) -> None:
    """The node's name is in the selected label."""
    [sample] = samples(gpu(), rows=rows("DCGM_FI_DEV_GPU_TEMP"), hostname=setting)

    assert expected == {name: value for name, value in sample.labels.items() if name.lower() == "hostname"}


def test_label_rows() -> None:
    """Rows of type label, also numbers, are labels of every series; unknown values are empty or absent."""
    chosen = rows("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_SERIAL", "DCGM_FI_DEV_OEM_INFOROM_VER", "DCGM_FI_NVML_VERSION")
    number = [csv.FieldRow(row.name, None, row.help, row.field) for row in rows("DCGM_FI_DEV_POWER_USAGE")]
    unknown = rows("DCGM_FI_DEV_ECC_INFOROM_VER")

    [sample] = samples(gpu(), rows=(*chosen, *number, *unknown))

    assert {
        "DCGM_FI_DEV_SERIAL": "165",
        "DCGM_FI_DEV_OEM_INFOROM_VER": "2.1",
        "DCGM_FI_NVML_VERSION": "13.580.95.05",
        "DCGM_FI_DEV_POWER_USAGE": "312.456",
    } == {name: value for name, value in sample.labels.items() if name.startswith("DCGM")}


def test_label_names_of_a_series() -> None:
    """A series has at most 20 label names: beyond that, the pod's last labels are omitted, but none of GPU or owner."""
    owner = dict.fromkeys(OWNER_LABELS, "x") | {f"label_{number}": "y" for number in range(8)}
    derived = Derived(lambda: 100.0)
    derived.look(snapshot(gpu(at=100.0)))
    chosen = tuple(row for row in csv.every() if row.kind is not None)

    found = samples(gpu(migs=(mig(1),)), rows=chosen, owner=owner, hostname="both", derived=derived)

    assert found
    assert max(len(sample.labels) for sample in found) <= 20
    kept = {*GPU_LABELS, *OWNER_LABELS, "Hostname", "hostname", "label_0", "label_4"}
    assert all(kept < sample.labels.keys() | {""} for sample in found)
    assert all("label_5" not in sample.labels for sample in found)


def test_names_of_dcgm_4_6() -> None:
    """Both names of a field have the same value, and label rows have both names too."""
    found = samples(gpu(), rows=rows("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DRIVER_VERSION"), names="both")

    assert {"DEV_GPU_UTIL": 63, "DEV_GPU_UTIL_RATIO": 63} == values(found)
    assert "580.95.05" == found[0].labels["DCGM_FI_SYSTEM_DRIVER_VERSION"] == found[0].labels["DCGM_FI_DRIVER_VERSION"]
    assert {"DEV_GPU_UTIL_RATIO"} == values(samples(gpu(), rows=rows("DCGM_FI_DEV_GPU_UTIL"), names="new")).keys()


def test_unknown_is_absent() -> None:
    """Missing readings have no series: before the first read, for unsupported fields, and on a lost GPU."""
    old = samples(gpu(fast={"tensor_active_percent": None, "memory_reserved_bytes": None}))
    assert not {"PROF_PIPE_TENSOR_ACTIVE", "DEV_FB_RESERVED"} & values(old).keys()

    assert {"DEV_XID_ERRORS": 0} == values(samples(gpu(state="lost")))
    assert [] == samples()


def test_gpu_without_a_name() -> None:
    """A GPU with an unreadable UUID has no series, which would be indistinguishable from another GPU's."""
    nameless = gpu()
    object.__setattr__(nameless.identity, "uuid", "")

    assert [] == samples(nameless)


def test_mig() -> None:
    """A GPU with MIG is shown as GPU instances with their own memory and activity, and the GPU's temperature."""
    devices = (mig(1), mig(2, 0, "1c.2g.20gb"), mig(2, 1, "1c.2g.20gb"))
    own = {
        "MIG-1-0": {"memory_used_bytes": 1 << 30, "tensor_active_percent": 10.0},
        "MIG-2-0": {"memory_used_bytes": 2 << 30},
        "MIG-2-1": {"memory_used_bytes": 2 << 30},
    }
    chosen = rows(
        "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_DEV_FB_FREE"
    )

    found = samples(gpu(migs=devices, own=own), gpu(1), rows=chosen)

    assert {
        ("GPU-0", "1", "1g.10gb"): {"DEV_FB_USED": 1024, "DEV_GPU_TEMP": 41, "PROF_PIPE_TENSOR_ACTIVE": 0.1},
        ("GPU-0", "2", "2g.20gb"): {"DEV_FB_USED": 2048, "DEV_GPU_TEMP": 41},
        ("GPU-1", "", ""): values(samples(gpu(1), rows=chosen)),
    } == {
        place: values([it for it in found if _place(it.labels) == place])
        for place in {_place(it.labels) for it in found}
    }


def _place(labels: Labels) -> tuple[str, str, str]:
    return labels["UUID"], labels.get("GPU_I_ID", ""), labels.get("GPU_I_PROFILE", "")


def test_dcgm_counts_first() -> None:
    """DCGM's own values of profiling fields are shown exactly, also where NVML has none."""
    profiling = {"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.57, "DCGM_FI_PROF_SM_ACTIVE": 0.07}
    chosen = rows(*profiling)

    found = samples(gpu(fast={"sm_active_percent": None}), rows=chosen, profiling=profiling)

    assert {"PROF_PIPE_TENSOR_ACTIVE": 0.57, "PROF_SM_ACTIVE": 0.07} == values(found)


def test_given_elsewhere() -> None:
    """Fields of a GPU on a dcgm-exporter's page are not shown twice; those of other GPUs are shown."""
    chosen = rows("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_UTIL")

    found = samples(gpu(0), gpu(1), rows=chosen, passed_through={("DCGM_FI_DEV_GPU_TEMP", "GPU-0", "")})

    assert {
        ("DCGM_FI_DEV_GPU_UTIL", "0"),
        ("DCGM_FI_DEV_GPU_TEMP", "1"),
        ("DCGM_FI_DEV_GPU_UTIL", "1"),
    } == {(it.metric.name, it.labels["gpu"]) for it in found}


def test_parts() -> None:
    """Each part of a count is one series, with the window; a count without parts is 0."""
    derived = Derived(lambda: 100.0)
    chosen = rows("DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_CLOCK_EVENTS_COUNT", "DCGM_EXP_XID_ERRORS_TOTAL")
    derived.look(snapshot(gpu(at=100.0)))

    found = samples(gpu(), rows=chosen, derived=derived)

    assert {
        ("DCGM_EXP_XID_ERRORS_COUNT", "300000", "", 0),
        ("DCGM_EXP_CLOCK_EVENTS_COUNT", "300000", "power_cap", 1),
    } == {(it.metric.name, it.labels["window_size_in_ms"], it.labels.get("clock_event", ""), it.value) for it in found}


def test_labels_are_declared() -> None:
    """No series has a label that its metric does not declare, except rows of type label."""
    derived = Derived(lambda: 100.0)
    derived.look(snapshot(gpu(at=100.0)))
    found = samples(gpu(migs=(mig(1),)), rows=csv.every(), derived=derived, owner={"pod": "a", "hpc_job": "b"})

    assert found
    for sample in found:
        extra = set(sample.labels) - set(sample.metric.labels)
        assert set() == {name for name in extra if not name.startswith("DCGM_FI_")}
