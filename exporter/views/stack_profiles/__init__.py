"""Profiles of stacks in the formats of other programs, and as the page /flamegraph. Pure functions, no I/O."""
