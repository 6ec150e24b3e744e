"""The metrics about stacks that are taken for profiles."""

from __future__ import annotations

from exporter.model import Kind, Metric

TAKEN = Metric(
    "gpu.profile.stacks",
    "Stacks of allocations and of sampled launches, taken and unwound for profiles. Only with --web.enable-profiles.",
    Kind.COUNTER,
)
DROPPED = Metric(
    "gpu.profile.stacks.dropped",
    "Stacks without frames in profiles, by reason: budget (unwinding would exceed "
    "--collector.cuda.profile-cpu-ratio), ring (ring buffer full; for launches and blocks of a caching allocator half "
    "full), unwinder (the child process had ended), table (no row for the thread), limit (more different stacks than "
    "are kept), blocks (no row for a block of a caching allocator), process (the process ended first). Profiles "
    "include their allocations, without frames.",
    Kind.COUNTER,
    labels=("reason",),
)
TRUNCATED = Metric(
    "gpu.profile.stacks.truncated",
    "Stacks without their outermost frames, by reason: stack (deeper than the 32 KiB that are copied), "
    "frame_information (a function without valid .eh_frame), depth (more than 512 frames), python (more than 512 "
    "Python frames).",
    Kind.COUNTER,
    labels=("reason",),
)
HANGS = Metric(
    "gpu.profile.hangs",
    "Profiles kept of hangs: stacks of all threads of a job's processes on this node, taken when a call had not "
    "returned for --collector.cuda.hang-stacks-seconds. A hang within ten minutes after a profile gets a profile "
    "later, if it lasts.",
    Kind.COUNTER,
)
TRUNCATIONS = ("stack", "frame_information", "depth", "python")
"""Reasons of TRUNCATED."""
METRICS = (TAKEN, DROPPED, TRUNCATED, HANGS)
