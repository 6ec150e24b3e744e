"""What the CUDA probes hook, and what the numbers they see are called."""
