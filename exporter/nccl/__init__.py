"""NCCL: functions to probe, layout of communicators in memory, and samples of the counts."""
