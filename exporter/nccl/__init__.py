"""What the NCCL probes hook, what a communicator looks like in memory, and what the numbers are called."""
