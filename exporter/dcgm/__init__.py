"""dcgm-exporter's names for what NVML says, and what DCGM itself says where it runs."""
