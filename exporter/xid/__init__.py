"""Faults that NVIDIA's driver tells in the kernel log and through NVML: Xids, SXids, GPUs that left the bus."""
