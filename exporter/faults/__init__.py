"""Faults of the node that stop jobs, from the kernel log, sysfs and crashed processes, in one family of metrics."""
