"""NVIDIA's management library: a child process reads the GPUs, the exporter shows snapshots."""
