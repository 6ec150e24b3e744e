"""Samples of snapshots: names, units, labels, and absent series."""

from __future__ import annotations

import pytest

from exporter.model import PROCESS_LABELS, Sample
from exporter.nvml.readings import GPU_BY_KEY, LINK_BY_KEY, MIG_BY_KEY
from exporter.nvml.samples import nvlink_domain, samples
from exporter.nvml.snapshot import DriverVersions, Gpu, GpuIdentity, GpuProcess, GpuSnapshot, Mig, Readings
from exporter.views import prometheus

IDENTITY = GpuIdentity("GPU-a", 3, "NVIDIA H100 80GB HBM3", "00000000:18:00.0", serial="1650", minor=3, links=2)
GPU = 'gpu="3",gpu_uuid="GPU-a"'


def of(gpu: Gpu) -> list[Sample]:
    snapshot = GpuSnapshot("running", driver=DriverVersions("580.95", "13.580.95", 13000), gpus=(gpu,))
    return list(samples(snapshot, lambda pid: {"pid": str(pid), "comm": "train", "pod": "job-0"}))


def page(gpu: Gpu) -> dict[str, str]:
    """Returns the values of a page by series."""
    lines = prometheus.render(of(gpu)).text.decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def read(**values: int | float) -> Gpu:
    return Gpu(IDENTITY, sets={"fast": Readings(0.0, values)})


@pytest.mark.parametrize(
    ("values", "series", "value"),
    [
        ({"utilization_percent": 63}, f'hw_gpu_utilization_ratio{{{GPU},task="general"}}', "0.63"),
        ({"encoder_percent": 7}, f'hw_gpu_utilization_ratio{{{GPU},task="encoder"}}', "0.07"),
        ({"memory_used_bytes": 2**40}, f"hw_gpu_memory_usage_bytes{{{GPU}}}", str(2**40)),
        ({"memory_bytes": 80}, f"hw_gpu_memory_limit_bytes{{{GPU}}}", "80"),
        ({"memory_used_bytes": 20, "memory_bytes": 80}, f"hw_gpu_memory_utilization_ratio{{{GPU}}}", "0.25"),
        ({"temperature_c": -4}, f'hw_temperature_celsius{{{GPU},hw_type="gpu",sensor="gpu"}}', "-4"),
        ({"memory_temperature_c": 70}, f'hw_temperature_celsius{{{GPU},hw_type="gpu",sensor="memory"}}', "70"),
        (
            {"temperature_limit_slowdown_c": 89},
            f'hw_temperature_limit_celsius{{{GPU},hw_type="gpu",limit="slowdown"}}',
            "89",
        ),
        ({"temperature_margin_c": 40}, f"gpu_temperature_margin_celsius{{{GPU}}}", "40"),
        ({"power_mw": 312456}, f'hw_power_watts{{{GPU},hw_type="gpu"}}', "312.456"),
        ({"power_limit_enforced_mw": 700000}, f'gpu_power_limit_watts{{{GPU},limit="enforced"}}', "700.0"),
        ({"energy_mj": 1500}, f'hw_energy_joules_total{{{GPU},hw_type="gpu"}}', "1.5"),
        ({"clock_sm_mhz": 1755}, f'gpu_clock_hertz{{clock="sm",{GPU}}}', "1755000000"),
        (
            {"slowed_hw_thermal_ns": 2_500_000_000},
            f'gpu_clock_slowed_seconds_total{{{GPU},reason="hw_thermal"}}',
            "2.5",
        ),
        ({"clocks_event_reasons": 0x44}, f'gpu_clock_event{{{GPU},reason="hw_thermal"}}', "1"),
        ({"clocks_event_reasons": 0x44}, f'gpu_clock_event{{{GPU},reason="hw_slowdown"}}', "0"),
        ({"pcie_replays": 3}, f"gpu_pcie_replays_total{{{GPU}}}", "3"),
        ({"pcie_bad_tlps": 3}, f'gpu_pcie_errors_total{{error="bad_tlps",{GPU}}}', "3"),
        ({"pcie_rx_bytes": 9}, f'hw_gpu_io_bytes_total{{direction="receive",{GPU}}}', "9"),
        (
            {"pcie_tx_mib_per_s": 2.0},
            f'gpu_pcie_throughput_bytes_per_second{{direction="transmit",{GPU}}}',
            "2097152.0",
        ),
        ({"pcie_tx_kb_per_s": 2}, f'gpu_pcie_throughput_bytes_per_second{{direction="transmit",{GPU}}}', "2000"),
        ({"nvlink_rx_kib": 2**54}, f'gpu_nvlink_io_bytes_total{{direction="receive",{GPU}}}', str(2**64)),
        (
            {"nvlink_rx_mib_per_s": 1.0},
            f'gpu_nvlink_throughput_bytes_per_second{{direction="receive",{GPU}}}',
            "1048576.0",
        ),
        (
            {"ecc_uncorrected_volatile_total": 2},
            f'hw_errors_total{{error_type="uncorrected",{GPU},hw_type="gpu",lifetime="volatile"}}',
            "2",
        ),
        (
            {"ecc_corrected_aggregate_dram": 4},
            f'gpu_ecc_errors_total{{error_type="corrected",{GPU},lifetime="aggregate",location="dram"}}',
            "4",
        ),
        (
            {"sram_parity_volatile": 1},
            f'gpu_ecc_errors_total{{error_type="uncorrected_parity",{GPU},lifetime="volatile",location="sram"}}',
            "1",
        ),
        ({"remapped_rows_uncorrectable": 1}, f'gpu_memory_remapped_rows_total{{error_type="uncorrected",{GPU}}}', "1"),
        ({"remapped_rows_pending": 1}, f"gpu_memory_row_remap_pending{{{GPU}}}", "1"),
        ({"retired_pages_double_bit": 5}, f'gpu_memory_retired_pages_total{{cause="double_bit",{GPU}}}', "5"),
        ({"recovery_action": 4}, f"gpu_recovery_action{{{GPU}}}", "4"),
        ({"fabric_health": 0b1001}, f'gpu_fabric_condition{{condition="degraded_bandwidth",{GPU}}}', "1"),
        ({"fabric_health": 0b1001}, f'gpu_fabric_condition{{condition="route_recovery",{GPU}}}', "0"),
        ({"sm_active_percent": 61.25}, f"gpu_sm_active_ratio{{{GPU}}}", "0.6125"),
        ({"dram_active_percent": 50.0}, f"gpu_dram_active_ratio{{{GPU}}}", "0.5"),
        ({"tensor_active_percent": 50.0}, f"gpu_tensor_active_ratio{{{GPU}}}", "0.5"),
        ({"sm_active_cycles": 2**63}, f'gpu_pipe_active_cycles_total{{{GPU},pipe="sm"}}', str(2**63)),
    ],
    ids=lambda value: value.partition("{")[0] if isinstance(value, str) and "{" in value else "",
)
def test_series(values: dict[str, int | float], series: str, value: str) -> None:
    """A reading becomes a series with the unit in the name, exactly."""
    assert value == page(read(**values))[series]


def test_unknown_is_absent() -> None:
    """Missing readings and unknown conditions of the fabric have no series."""
    series = page(read(temperature_c=40, fabric_health=0))

    assert {"hw_gpu_info", "hw_status", "hw_temperature_celsius"} == {series.partition("{")[0] for series in series}


def test_the_fabric_once_registered() -> None:
    """Clique and cluster are shown of a GPU that is registered, and of no other."""
    known = {"fabric_status": 0, "fabric_clique": 3, "fabric_cluster": 0}
    series = page(read(fabric_state=3, **known))
    assert ("3", "0") == (series[f"gpu_fabric_clique{{{GPU}}}"], series[f"gpu_fabric_cluster_assigned{{{GPU}}}"])
    assert not [name for name in page(read(fabric_state=2, **known)) if "cl" in name.partition("gpu_fabric_")[2][:2]]


CLUSTER = 0x5E0A1C2B_0000_4000_8000_0000000000FF
JOINED: dict[str, int | float] = {"fabric_state": 3, "fabric_status": 0, "fabric_clique": 7, "fabric_cluster": CLUSTER}


def test_the_domain_of_several_nodes() -> None:
    """Cluster and clique are labels of a GPU that joined them, and of none that failed to or is of one node."""
    uuid = "5e0a1c2b-0000-4000-8000-0000000000ff"
    assert "1" == page(read(**JOINED))[f'gpu_fabric_info{{clique_id="7",cluster_uuid="{uuid}",{GPU}}}']
    assert "1" == page(read(**JOINED))[f"gpu_fabric_cluster_assigned{{{GPU}}}"]
    snapshot = GpuSnapshot("running", gpus=(read(**JOINED), read(**JOINED)))
    assert f"{uuid}.7" == nvlink_domain(snapshot)
    assert (
        ""
        == nvlink_domain(GpuSnapshot())
        == nvlink_domain(GpuSnapshot(gpus=(read(**JOINED), read(**JOINED, energy_mj=1), read())))
    )
    for other in ({"fabric_status": 3}, {"fabric_cluster": 0}, {"fabric_state": 2}):
        assert not any(series.startswith("gpu_fabric_info") for series in page(read(**{**JOINED, **other})))
        assert "" == nvlink_domain(GpuSnapshot(gpus=(read(**{**JOINED, **other}),)))


def test_links() -> None:
    """Each link has series of bytes and errors; bytes that NVML has twice are shown once."""
    readings = Readings(0.0, {}, {0: {"tx_kib": 2, "tx_bytes": 9999, "active": 1}, 1: {"rx_bytes": 7, "replays": 3}})
    series = page(Gpu(IDENTITY, sets={"fast": readings}))

    assert "2048" == series[f'gpu_nvlink_link_io_bytes_total{{direction="transmit",{GPU},link="0"}}']
    assert "7" == series[f'gpu_nvlink_link_io_bytes_total{{direction="receive",{GPU},link="1"}}']
    assert "3" == series[f'gpu_nvlink_link_errors_total{{error="replays",{GPU},link="1"}}']
    assert "1" == series[f'gpu_nvlink_link_up{{{GPU},link="0"}}']


def test_info() -> None:
    """One series identifies the GPU; unknown properties are no labels."""
    [info] = [series for series in page(read(temperature_c=1)) if series.startswith("hw_gpu_info")]

    assert (
        'hw_gpu_info{cuda_version="13.0",device="3",driver_version="580.95",gpu="3",gpu_uuid="GPU-a",mig="disabled",'
        'name="NVIDIA H100 80GB HBM3",nvml_version="13.580.95",pci_bus_id="00000000:18:00.0",serial="1650"}'
    ) == info


@pytest.mark.parametrize(
    ("gpu", "state"),
    [
        (read(temperature_c=1), "ok"),
        (read(temperature_c=1, recovery_action=0), "ok"),
        (read(temperature_c=1, recovery_action=1), "degraded"),
        (Gpu(IDENTITY, "reset_required"), "failed"),
        (Gpu(IDENTITY, "failed"), "failed"),
        (Gpu(IDENTITY, "lost"), "lost"),
        (Gpu(IDENTITY, "stalled"), "stalled"),
    ],
)
def test_status(gpu: Gpu, state: str) -> None:
    """Exactly one state is 1; a GPU that is not ok has no other series."""
    series = page(gpu)
    statuses = {series: value for series, value in series.items() if series.startswith("hw_status")}

    assert [f'hw_status{{{GPU},hw_type="gpu",state="{state}"}}'] == [
        it for it, value in statuses.items() if value == "1"
    ]
    assert 5 == len(statuses)
    assert (gpu.state == "ok") == (len(series) > 5)


def test_status_is_not_known() -> None:
    """A GPU that was not read yet has no state."""
    assert not [series for series in page(Gpu(IDENTITY)) if series.startswith("hw_status")]


def test_mig() -> None:
    """A MIG device has series of its own."""
    identity = GpuIdentity("GPU-a", 3, "H100", "", mig_enabled=True, migs=(Mig("MIG-b", 2, "1g.10gb", 9, 0),))
    values = {
        "MIG-b": {"memory_used_bytes": 5, "memory_bytes": 10, "sm_active_percent": 50.0, "sm_occupancy_percent": 25.0}
    }
    series = page(Gpu(identity, sets={"fast": Readings(0.0, {"memory_bytes": 100}, {}, values)}))

    mig = 'compute_instance="0",gpu="3",gpu_instance="9",gpu_uuid="GPU-a",mig_uuid="MIG-b"'
    assert "1" == series[f'gpu_mig_info{{{mig},profile="1g.10gb"}}']
    assert "5" == series[f'gpu_mig_memory_usage_bytes{{{mig},profile="1g.10gb"}}']
    assert "0.5" == series[f'gpu_mig_active_ratio{{{mig},part="sm",profile="1g.10gb"}}']
    assert "0.25" == series[f'gpu_mig_active_ratio{{{mig},part="sm_occupancy",profile="1g.10gb"}}']
    assert "100" == series[f"hw_gpu_memory_limit_bytes{{{GPU}}}"]


def test_processes() -> None:
    """A process has the labels of process and GPU; unknown bytes have no series."""
    processes = (
        GpuProcess(7, "compute", 4096, 9, 0, {"sm": 55}),
        GpuProcess(8, "graphics", None),
    )
    series = page(Gpu(IDENTITY, sets={"processes": Readings(0.0, processes=processes)}))

    memory = 'comm="train",compute_instance="0",gpu="3",gpu_instance="9",gpu_uuid="GPU-a",kind="compute",pid="7"'
    assert "4096" == series[f'gpu_process_memory_usage_bytes{{{memory},pod="job-0"}}']
    assert "0.55" == series[f'gpu_process_utilization_ratio{{comm="train",engine="sm",{GPU},pid="7",pod="job-0"}}']
    assert 2 == len([series for series in series if series.startswith("gpu_process")])


def test_labels_are_declared() -> None:
    """No sample carries a label that its metric does not declare."""
    values = dict.fromkeys(GPU_BY_KEY, 1)
    identity = GpuIdentity("GPU-a", 0, "H100", "", links=1, mig_enabled=True, migs=(Mig("MIG-b", 0, "1g", 7, 0),))
    readings = Readings(0.0, values, {0: dict.fromkeys(LINK_BY_KEY, 1)}, {"MIG-b": dict.fromkeys(MIG_BY_KEY, 1)})
    processes = Readings(0.0, processes=(GpuProcess(7, "compute", 4096, 9, 0, {"sm": 55}),))
    series = of(Gpu(identity, sets={"fast": readings, "processes": processes}))

    for sample in series:
        allowed = {*sample.metric.labels, *(PROCESS_LABELS if sample.metric.process else ())}
        assert set(sample.labels) <= allowed, sample
    assert len(series) > 150
    assert 0 == prometheus.render(series).malformed
