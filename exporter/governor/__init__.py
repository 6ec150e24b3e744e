"""The bound on what probes cost: functions of which calls cost too much are probed in windows, and counts estimated."""
