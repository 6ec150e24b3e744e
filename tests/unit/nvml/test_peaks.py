"""Peaks by model: from the table, from a site's own table, and none for unknown models."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.nvml.peaks import Peaks, PeaksError
from exporter.nvml.snapshot import Gpu, GpuIdentity, Readings


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", {"bf16": 989}),
        ("NVIDIA H100 PCIe", {"bf16": 756}),
        ("NVIDIA H100 NVL", {"bf16": 835}),
        ("NVIDIA H200", {"bf16": 989}),
        ("NVIDIA H200 NVL", {"bf16": 836}),
        ("NVIDIA GH200 480GB", {"bf16": 989}),
        ("NVIDIA A100-SXM4-80GB", {"bf16": 312}),
        ("A100-PCIE-40GB", {"bf16": 312}),
        ("NVIDIA L4", {"bf16": 121}),
        ("NVIDIA L40S", {"bf16": 362}),
        ("Tesla V100-SXM2-32GB", {"fp16": 125}),
        ("Tesla T4", {"fp16": 65}),
        ("NVIDIA L40", {}),
        ("NVIDIA A10G", {}),
        ("NVIDIA GeForce RTX 4090", {}),
        ("", {}),
    ],
)
def test_models(name: str, teraflops: dict[str, float]) -> None:
    """Each model has its own peak; a name that is not in the table, or only begins like a model, has none."""
    assert {precision: value * 1e12 for precision, value in teraflops.items()} == Peaks().flops(name)


def test_override(tmp_path: Path) -> None:
    """A site's table has precedence over the built-in one, and may have more models and precisions."""
    path = tmp_path / "peaks.yaml"
    path.write_text("'NVIDIA H100.*': {bf16: 900, fp8: 1800}\nNVIDIA A10G: {bf16: 70}\n")
    peaks = Peaks(path)

    assert {"bf16": 9e14, "fp8": 1.8e15} == peaks.flops("NVIDIA H100 PCIe")
    assert {"bf16": 7e13} == peaks.flops("NVIDIA A10G")
    assert {"fp16": 6.5e13} == peaks.flops("Tesla T4")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[1]", "is no table of peaks"),
        ("a: {b: c", "cannot be read"),
        ("'(': {bf16: 1}", "needs teraflops by precision"),
        ("H100: 989", "needs teraflops by precision"),
        ("H100: {bf16: many}", "needs teraflops by precision"),
        ("H100: {bf16: -1}", "needs teraflops by precision"),
        ("H100: {}", "needs teraflops by precision"),
        ("5: {bf16: 1}", "needs teraflops by precision"),
    ],
)
def test_wrong_tables(tmp_path: Path, text: str, complaint: str) -> None:
    """An unusable table raises an error with its name and the fault."""
    path = tmp_path / "peaks.yaml"
    path.write_text(text)

    with pytest.raises(PeaksError, match=f"{path}.*{complaint}"):
        Peaks(path)


def test_no_file(tmp_path: Path) -> None:
    """A missing table raises an error."""
    with pytest.raises(PeaksError, match="cannot be read"):
        Peaks(tmp_path / "none.yaml")


def test_bandwidth() -> None:
    """The peak of memory is its bus width times its clock, twice a cycle: 3.35 TB/s on an H100."""
    values = {"memory_bus_bits": 5120, "clock_memory_max_mhz": 2619}
    gpu = Gpu(GpuIdentity("GPU-a", 0, "unknown", ""), sets={"slow": Readings(0.0, values)})

    [sample] = Peaks().samples(gpu)

    assert ("gpu.peak.memory_bandwidth", 3_352_320_000_000) == (sample.metric.name, sample.value)


def test_nothing_known() -> None:
    """An unknown model without bus width has no series, nor has a lost GPU."""
    unknown = Gpu(GpuIdentity("GPU-a", 0, "unknown", ""))
    lost = Gpu(GpuIdentity("GPU-a", 0, "NVIDIA L4", ""), "lost")

    assert [] == [*Peaks().samples(unknown), *Peaks().samples(lost)]
