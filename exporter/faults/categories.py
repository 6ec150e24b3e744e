"""The causes that stop jobs: the rows of the table of unexpected interruptions in "The Llama 3 Herd of Models".

arXiv 2407.21783, table 5: 419 of them in 54 days on 16,384 GPUs. Every category label is one of these.
"""

from __future__ import annotations

from dataclasses import dataclass

FAULTY_GPU = "faulty_gpu"
HBM = "gpu_hbm3_memory"
SOFTWARE = "software_bug"
NETWORK = "network_switch_cable"
MAINTENANCE = "host_maintenance"
SRAM = "gpu_sram_memory"
PROCESSOR = "gpu_system_processor"
NIC = "nic"
NCCL = "nccl_watchdog_timeouts"
CORRUPTION = "silent_data_corruption"
THERMAL = "gpu_thermal_interface_sensor"
SSD = "ssd"
POWER = "power_supply"
CHASSIS = "server_chassis"
EXPANSION = "io_expansion_board"
DEPENDENCY = "dependency"
CPU = "cpu"
MEMORY = "system_memory"


@dataclass(frozen=True, slots=True)
class Category:
    """A row of the table: its name there and its number of interruptions."""

    label: str
    name: str
    count: int


CATEGORIES = (
    Category(FAULTY_GPU, "Faulty GPU", 148),
    Category(HBM, "GPU HBM3 Memory", 72),
    Category(SOFTWARE, "Software Bug", 54),
    Category(NETWORK, "Network Switch/Cable", 35),
    Category(MAINTENANCE, "Host Maintenance", 32),
    Category(SRAM, "GPU SRAM Memory", 19),
    Category(PROCESSOR, "GPU System Processor", 17),
    Category(NIC, "NIC", 7),
    Category(NCCL, "NCCL Watchdog Timeouts", 7),
    Category(CORRUPTION, "Silent Data Corruption", 6),
    Category(THERMAL, "GPU Thermal Interface + Sensor", 6),
    Category(SSD, "SSD", 3),
    Category(POWER, "Power Supply", 3),
    Category(CHASSIS, "Server Chassis", 2),
    Category(EXPANSION, "IO Expansion Board", 2),
    Category(DEPENDENCY, "Dependency", 2),
    Category(CPU, "CPU", 2),
    Category(MEMORY, "System Memory", 2),
)
