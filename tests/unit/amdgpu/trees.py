"""Trees of files as the kernel's driver amdgpu makes them: Documentation/gpu/amdgpu of the kernel."""

from __future__ import annotations

from pathlib import Path

BUS = "0000:c1:00.0"
XGMI, PCIE, HYPERTRANSPORT = 11, 2, 1
"""Types of links (kfd_crat.h)."""
FILES = {
    "product_name": "AMD Instinct MI300X OAM",
    "unique_id": "8b1c2d3e4f506172",
    "serial_number": "692251001234",
    "vbios_version": "113-M3000100-102",
    "device": "0x74a1",
    "power/runtime_status": "active",
    "gpu_busy_percent": "87",
    "mem_busy_percent": "31",
    "mem_info_vram_total": "206141652992",
    "mem_info_vram_used": "103070826496",
    "mem_info_vis_vram_total": "206141652992",
    "mem_info_vis_vram_used": "103070826496",
    "mem_info_gtt_total": "1013309239296",
    "mem_info_gtt_used": "14090240",
    "pcie_replay_count": "23",
    "hwmon/hwmon3/name": "amdgpu",
    "hwmon/hwmon3/power1_average": "689000000",
    "hwmon/hwmon3/power1_cap": "750000000",
    "hwmon/hwmon3/temp1_input": "-5000",
    "hwmon/hwmon3/temp1_label": "edge",
    "hwmon/hwmon3/temp2_input": "76000",
    "hwmon/hwmon3/temp2_label": "junction",
    "hwmon/hwmon3/temp3_input": "64500",
    "hwmon/hwmon3/temp3_label": "mem",
    "hwmon/hwmon3/freq1_input": "2100000000",
    "hwmon/hwmon3/freq1_label": "sclk",
    "ras/umc_err_count": "ue: 2\nce: 7\nde: 5",
    "ras/gfx_err_count": "ue: 0\nce: 0",
    "ras/sdma_err_count": "Query currently inaccessible",
    "ras/features": "feature mask: 0x5fff",
}


class Tree:
    """A folder in place of /sys."""

    def __init__(self, sys: Path) -> None:
        self.sys = sys
        (sys / "class/drm").mkdir(parents=True)
        (sys / "class/drm/version").write_text("drm 1.1.0 20060810\n")

    def card(self, name: str = "card1", bus: str = BUS, driver: str = "amdgpu", **other: str) -> Path:
        device = self.sys / "devices/pci0000:c0" / bus
        for file, content in (FILES | other).items():
            (device / file).parent.mkdir(parents=True, exist_ok=True)
            (device / file).write_text(content + "\n")
        (self.sys / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        (device / "driver").symlink_to(self.sys / "bus/pci/drivers" / driver)
        (device / "drm" / name).mkdir(parents=True)
        (device / "drm" / name / "device").symlink_to(device)
        (self.sys / "class/drm" / name).symlink_to(device / "drm" / name)
        return device

    def node(self, number: int, gpu_id: int, bus: str = "", minor: int = 0, **properties: int) -> Path:
        """A node of amdkfd: a CPU with gpu_id 0. A GPU's render node belongs to the PCI device `bus`, if it has one."""
        folder = self.sys / "class/kfd/kfd/topology/nodes" / str(number)
        folder.mkdir(parents=True)
        (folder / "gpu_id").write_text(f"{gpu_id}\n")
        found = {"cpu_cores_count": 0 if gpu_id else 96, "simd_count": 304, "drm_render_minor": minor} | properties
        (folder / "properties").write_text("".join(f"{name} {value}\n" for name, value in found.items()))
        if bus:
            render = self.sys / "class/drm" / f"renderD{minor}"
            render.mkdir(parents=True)
            (render / "device").symlink_to(self.sys / "devices/pci0000:c0" / bus)
        return folder

    def link(self, source: int, target: int, kind: int, bandwidth: int = 0, folder: str = "io_links") -> None:
        """A link between two nodes, as amdkfd lists it at its source."""
        place = self.sys / "class/kfd/kfd/topology/nodes" / str(source) / folder
        number = len(list(place.iterdir())) if place.is_dir() else 0
        (place / str(number)).mkdir(parents=True)
        found = {"type": kind, "version_major": 0, "version_minor": 0, "node_from": source, "node_to": target}
        found |= {"weight": 15, "min_latency": 0, "max_latency": 0, "min_bandwidth": bandwidth}
        found |= {"max_bandwidth": bandwidth, "recommended_transfer_size": 0, "flags": 1}
        (place / str(number) / "properties").write_text("".join(f"{name} {value}\n" for name, value in found.items()))

    def process(self, pid: int, **vram: int) -> Path:
        """A process of amdkfd, with its bytes by gpu_id: gpu_51110=4096."""
        folder = self.sys / "class/kfd/kfd/proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "pasid").write_text("32770\n")
        for gpu, size in vram.items():
            (folder / gpu.replace("gpu_", "vram_")).write_text(f"{size}\n")
            (folder / gpu.replace("gpu_", "sdma_")).write_text("0\n")
        return folder
