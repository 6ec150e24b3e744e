"""What NVIDIA's management library says of the GPUs: read in a child process, told as snapshots."""
