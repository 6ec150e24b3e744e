"""Faults that NVIDIA's driver reports in the kernel log and through NVML: Xids, SXids, GPUs that left the bus."""
