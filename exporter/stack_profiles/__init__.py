"""Profiles of stacks: who holds the memory of GPUs and who launches kernels, by line of code, as pprof and others."""
