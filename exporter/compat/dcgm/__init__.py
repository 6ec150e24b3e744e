"""Series of dcgm-exporter from NVML's readings, and readings of DCGM itself where it runs."""
