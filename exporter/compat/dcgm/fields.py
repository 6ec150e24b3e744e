"""Fields of dcgm-exporter that are filled from NVML's readings: names, types and units, and the reading of each.

Names, types, units and defaults: those of its etc/default-counters.csv, main branch of July 2026, with the
commented rows. The NVML call of each: that of DCGM 4.5.3. `make docs` writes docs/dcgm-fields.md from this table.
"""

from __future__ import annotations

from exporter.compat.dcgm.field import Field, active, counter, gauge, label, mib, rate, thousandth, total

LINKS = range(18)
"""The links that have fields of their own."""

_AMPERE = "Ampere and newer."
_OLD = "Before Ampere."
_LINK4 = "NVLink 4 and older; absent where NVML has only the newer counters."
_RATE = "A rate, as DCGM makes it: KiB of both directions since the reading before, by 1000, by its seconds."
_WINDOW = "Of the last five minutes, dcgm-exporter's default window."

FIELDS: tuple[Field, ...] = (
    gauge("DCGM_FI_DEV_SM_CLOCK", "Clock of the SMs (in MHz).", "clock_sm_mhz", default=True),
    gauge("DCGM_FI_DEV_MEM_CLOCK", "Clock of the memory (in MHz).", "clock_memory_mhz", default=True),
    gauge("DCGM_FI_DEV_VIDEO_CLOCK", "Clock of the video engines (in MHz).", "clock_video_mhz"),
    gauge("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (in C).", "memory_temperature_c", default=True),
    gauge("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", "temperature_c", default=True),
    gauge("DCGM_FI_DEV_GPU_TEMP_LIMIT", "Margin to the nearest slowdown temperature (in C).", "temperature_margin_c"),
    gauge("DCGM_FI_DEV_SLOWDOWN_TEMP", "Temperature of slowdown (in C).", "temperature_limit_slowdown_c"),
    gauge("DCGM_FI_DEV_SHUTDOWN_TEMP", "Temperature of shutdown (in C).", "temperature_limit_shutdown_c"),
    gauge(
        "DCGM_FI_DEV_POWER_USAGE",
        "Power drawn (in W).",
        "power_mw",
        thousandth,
        default=True,
        note="A mean over 1 s on Ampere (but the GA100) and newer.",
    ),
    gauge("DCGM_FI_DEV_POWER_USAGE_INSTANT", "Power drawn now (in W).", "power_instant_mw", thousandth),
    gauge("DCGM_FI_DEV_POWER_MGMT_LIMIT", "Power limit requested (in W).", "power_limit_requested_mw", thousandth),
    gauge("DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN", "Lowest power limit (in W).", "power_limit_min_mw", thousandth),
    gauge("DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX", "Highest power limit (in W).", "power_limit_max_mw", thousandth),
    gauge("DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF", "Default power limit (in W).", "power_limit_default_mw", thousandth),
    gauge("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "Power limit in force (in W).", "power_limit_enforced_mw", thousandth),
    counter(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "Energy used since the driver was loaded (in mJ).",
        "energy_mj",
        default=True,
    ),
    counter("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "PCIe replays.", "pcie_replays", default=True),
    *(
        gauge(
            f"DCGM_FI_DEV_PCIE_{name}_THROUGHPUT",
            f"PCIe traffic {what}, over 20 ms (in KB per second).",
            f"pcie_{name.lower()}_kb_per_s",
            note="Before Hopper. Old files call it a counter, which it never was. Newer GPUs have DCGM_FI_PROF_PCIE_*.",
        )
        for name, what in (("TX", "sent"), ("RX", "received"))
    ),
    counter("DCGM_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS", "Correctable PCIe errors.", "pcie_correctable_errors"),
    gauge(
        "DCGM_FI_DEV_GPU_UTIL",
        "Share of time in which a kernel ran (in %).",
        "utilization_percent",
        default=True,
        note="NVML has none while MIG is on. The new name has ratio; the value is a percentage all the same.",
    ),
    gauge(
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "Share of time in which device memory was read or written (in %).",
        "memory_copy_percent",
        default=True,
        note="NVML has none while MIG is on.",
    ),
    gauge("DCGM_FI_DEV_ENC_UTIL", "Utilization of the encoders (in %).", "encoder_percent", default=True),
    gauge("DCGM_FI_DEV_DEC_UTIL", "Utilization of the decoders (in %).", "decoder_percent", default=True),
    gauge("DCGM_FI_DEV_PSTATE", "Performance state; 0 is the fastest.", "performance_state"),
    gauge(
        "DCGM_FI_DEV_XID_ERRORS",
        "Newest Xid since the exporter's start, 0 before the first.",
        "last_xid",
        default=True,
        note="From NVML's events, as in DCGM. gpu_xid_errors_total counts, and knows the kernel log too.",
    ),
    gauge(
        "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION",
        "Action that the GPU requires: 0 none, 1 reset, 2 reboot, 3 and more: see NVML.",
        "recovery_action",
    ),
    *(
        counter(
            f"DCGM_FI_DEV_{name}_VIOLATION", f"Time for which clocks were lowered {cause} (in ns).", f"slowed_{key}_ns"
        )
        for name, key, cause in (
            ("POWER", "power_cap", "to stay within the power limit"),
            ("THERMAL", "thermal", "because of the temperature"),
            ("SYNC_BOOST", "sync_boost", "by sync boost"),
            ("BOARD_LIMIT", "board_limit", "by the board's limits"),
            ("LOW_UTIL", "low_utilization", "for low utilization"),
            ("RELIABILITY", "reliability", "by the voltage limit for reliability"),
        )
    ),
    gauge(
        "DCGM_EXP_CLOCK_EVENTS_COUNT",
        "Readings in which clocks were lowered, by reason.",
        "clock_events",
        split="clock_event",
        note=f"{_WINDOW} A reading each 10 s unless set otherwise, where dcgm-exporter has one each 30 s.",
    ),
    counter(
        "DCGM_EXP_CLOCK_EVENTS_TOTAL",
        "Times that a reason for lowered clocks appeared between two readings.",
        "clock_events_begun",
        split="clock_event",
    ),
    gauge("DCGM_EXP_XID_ERRORS_COUNT", "Xids, by number.", "xids_in_window", split="xid", note=_WINDOW),
    counter("DCGM_EXP_XID_ERRORS_TOTAL", "Xids since the exporter's start, by number.", "xids", split="xid"),
    *(
        gauge(
            f"DCGM_FI_DEV_FB_{name}",
            f"Framebuffer memory {what} (in MiB).",
            f"memory_{key}bytes",
            mib,
            default=name != "TOTAL",
            instance=True,
        )
        for name, key, what in (
            ("FREE", "free_", "free"),
            ("USED", "used_", "in use, without reserved memory"),
            ("RESERVED", "reserved_", "reserved by the driver"),
            ("TOTAL", "", "in total"),
        )
    ),
    *(
        counter(
            f"DCGM_FI_DEV_ECC_{bits}_{scope}_TOTAL", f"ECC errors of {what} {since}.", f"ecc_{error}_{lifetime}_total"
        )
        for scope, lifetime, since in (
            ("VOL", "volatile", "since the driver was loaded"),
            ("AGG", "aggregate", "in the GPU's life"),
        )
        for bits, error, what in (
            ("SBE", "corrected", "single bits, corrected,"),
            ("DBE", "uncorrected", "double bits, not corrected,"),
        )
    ),
    counter("DCGM_FI_DEV_RETIRED_SBE", "Pages retired for single-bit errors.", "retired_pages_single_bit", note=_OLD),
    counter("DCGM_FI_DEV_RETIRED_DBE", "Pages retired for double-bit errors.", "retired_pages_double_bit", note=_OLD),
    counter(
        "DCGM_FI_DEV_RETIRED_PENDING", "1 while pages wait to be retired, else 0.", "retired_pages_pending", note=_OLD
    ),
    *(
        counter(
            f"DCGM_FI_DEV_NVLINK_{name}_ERROR_COUNT_TOTAL",
            f"NVLink {what}, of all links.",
            f"nvlink_{key}",
            note=_LINK4,
        )
        for name, key, what in (
            ("CRC_FLIT", "crc_flit_errors", "CRC errors of flow control"),
            ("CRC_DATA", "crc_data_errors", "CRC errors of data"),
            ("REPLAY", "replays", "replays"),
            ("RECOVERY", "recoveries", "recoveries"),
        )
    ),
    gauge(
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        "NVLink payload both ways, of all links (in MB/s).",
        "nvlink_mb_per_s",
        default=True,
        note=f"{_RATE} Releases up to 4.8.2 called it a counter.",
    ),
    *(
        gauge(
            f"DCGM_FI_DEV_NVLINK_BANDWIDTH_L{link}",
            f"NVLink payload both ways, of link {link} (in MB/s).",
            f"nvlink_{link}_mb_per_s",
            note=_RATE,
        )
        for link in LINKS
    ),
    gauge("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "1 while the vGPU is licensed, else 0.", "vgpu_licensed", default=True),
    counter(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "Memory rows remapped for uncorrectable errors.",
        "remapped_rows_uncorrectable",
        default=True,
        note=_AMPERE,
    ),
    counter(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "Memory rows remapped for correctable errors.",
        "remapped_rows_correctable",
        default=True,
        note=_AMPERE,
    ),
    gauge(
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        "1 once remapping a row has failed, else 0.",
        "remapped_rows_failure",
        default=True,
        note=_AMPERE,
    ),
    gauge(
        "DCGM_FI_DEV_ROW_REMAP_PENDING",
        "1 while rows wait for a reset to be remapped, else 0.",
        "remapped_rows_pending",
        note=_AMPERE,
    ),
    label("DCGM_FI_DRIVER_VERSION", "Version of the driver.", "driver", True),
    label("DCGM_FI_NVML_VERSION", "Version of NVML.", "nvml"),
    label("DCGM_FI_DEV_BRAND", "Brand of the GPU.", "brand"),
    label("DCGM_FI_DEV_SERIAL", "Serial number of the board.", "serial"),
    label("DCGM_FI_DEV_OEM_INFOROM_VER", "Version of the InfoROM's OEM object.", "inforom_oem"),
    label("DCGM_FI_DEV_ECC_INFOROM_VER", "Version of the InfoROM's ECC object.", "inforom_ecc"),
    label("DCGM_FI_DEV_POWER_INFOROM_VER", "Version of the InfoROM's power object.", "inforom_power"),
    label("DCGM_FI_DEV_INFOROM_IMAGE_VER", "Version of the InfoROM's image.", "inforom_image"),
    label("DCGM_FI_DEV_VBIOS_VERSION", "Version of the VBIOS.", "vbios"),
    active(
        "GR_ENGINE_ACTIVE",
        "Share of time in which the graphics or compute engine was active.",
        "graphics_active_percent",
        1001,
        True,
    ),
    active("SM_ACTIVE", "Share of cycles in which an SM had a warp, over all SMs.", "sm_active_percent", 1002),
    active("SM_OCCUPANCY", "Resident warps as a share of the maximum of the SMs.", "sm_occupancy_percent", 1003),
    active(
        "PIPE_TENSOR_ACTIVE",
        "Share of cycles in which the tensor pipes were active.",
        "tensor_active_percent",
        1004,
        True,
    ),
    active(
        "DRAM_ACTIVE", "Share of cycles in which device memory sent or received.", "dram_active_percent", 1005, True
    ),
    active("PIPE_FP64_ACTIVE", "Share of cycles in which the FP64 pipes were active.", "fp64_active_percent", 1006),
    active("PIPE_FP32_ACTIVE", "Share of cycles in which the FP32 pipes were active.", "fp32_active_percent", 1007),
    active("PIPE_FP16_ACTIVE", "Share of cycles in which the FP16 pipes were active.", "fp16_active_percent", 1008),
    active(
        "PIPE_INT_ACTIVE", "Share of cycles in which the integer pipes were active.", "integer_active_percent", 1016
    ),
    active("PIPE_TENSOR_IMMA_ACTIVE", "Share of cycles of integer matrix work.", "tensor_imma_active_percent", 1013),
    active("PIPE_TENSOR_HMMA_ACTIVE", "Share of cycles of FP16 matrix work.", "tensor_hmma_active_percent", 1014),
    active("PIPE_TENSOR_DFMA_ACTIVE", "Share of cycles of FP64 matrix work.", "tensor_dfma_active_percent", 1015),
    rate(
        "PCIE_TX_BYTES", "PCIe traffic sent, headers included (in bytes per second).", "pcie_tx_mib_per_s", 1009, True
    ),
    rate(
        "PCIE_RX_BYTES",
        "PCIe traffic received, headers included (in bytes per second).",
        "pcie_rx_mib_per_s",
        1010,
        True,
    ),
    rate("NVLINK_TX_BYTES", "NVLink traffic sent (in bytes per second).", "nvlink_tx_mib_per_s", 1011),
    rate("NVLINK_RX_BYTES", "NVLink traffic received (in bytes per second).", "nvlink_rx_mib_per_s", 1012),
    total("SM_CYCLES_ELAPSED", "Cycles of the SMs.", "sm_cycles"),
    total("SM_CYCLES_ACTIVE", "Cycles in which SMs had a warp.", "sm_active_cycles"),
    *(
        total(f"{name}_CYCLES_ACTIVE", f"Cycles of {what}.", f"{key}_active_cycles")
        for name, key, what in (
            ("MMA", "tensor", "matrix work"),
            ("DMMA", "tensor_dmma", "FP64 matrix work (DMMA)"),
            ("HMMA", "tensor_hmma", "FP16 matrix work"),
            ("IMMA", "tensor_imma", "integer matrix work"),
            ("DFMA", "tensor_dfma", "FP64 matrix work (DFMA)"),
            ("INT", "integer", "the integer pipes"),
            ("FP64", "fp64", "the FP64 pipes"),
            ("FP32", "fp32", "the FP32 pipes"),
            ("FP16", "fp16", "the FP16 pipes"),
        )
    ),
    total("PCIE_TX_BYTES", "Bytes sent by PCIe.", "pcie_tx_bytes"),
    total("PCIE_RX_BYTES", "Bytes received by PCIe.", "pcie_rx_bytes"),
)

UNREAD = {
    "DCGM_EXP_GPU_HEALTH_STATUS": "Findings of DCGM's own health watches.",
    "DCGM_EXP_P2P_STATUS": "Not read from NVML.",
}
"""Rows of dcgm-exporter's files, old ones included, that only DCGM fills, with the reason."""
