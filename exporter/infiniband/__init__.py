"""Counters and links of RDMA devices, from /sys/class/infiniband and the devices' network interfaces."""
