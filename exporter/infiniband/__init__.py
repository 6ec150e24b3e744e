"""Counters and links of RDMA devices, as the kernel has them in /sys/class/infiniband and their network interfaces."""
