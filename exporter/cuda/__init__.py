"""CUDA: functions to probe, and names, labels and samples for the numbers that the probes count."""
