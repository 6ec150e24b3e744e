"""Samples and spans in wire formats: pure functions, no I/O."""
