"""Faults of the node that stop jobs: what the kernel log, sysfs and ended processes tell, in one family of metrics."""
