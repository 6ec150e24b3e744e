"""The metrics about stacks that are taken for profiles."""

from __future__ import annotations

from exporter.model import Kind, Metric

TAKEN = Metric(
    "gpu.profile.stacks",
    "Stacks of allocations and of sampled launches that were taken and unwound for profiles. Only with "
    "--web.enable-profiles.",
    Kind.COUNTER,
)
DROPPED = Metric(
    "gpu.profile.stacks.dropped",
    "Stacks without frames in profiles, by reason: budget (they would take more processor time than "
    "--collector.cuda.profile-cpu-ratio allows), backlog and ring (no room in the queue, in the ring buffer), "
    "unwinder (the child process had ended), table (no row for the thread), limit (more different stacks than are "
    "kept), blocks (no row for a block of a caching allocator), process (it ended first). Profiles include what they "
    "allocated, without frames.",
    Kind.COUNTER,
    labels=("reason",),
)
TRUNCATED = Metric(
    "gpu.profile.stacks.truncated",
    "Stacks without their outermost frames, by reason: stack (deeper than the 32 KiB that are copied), "
    "frame_information (a function without valid .eh_frame), depth (more than 512 frames), python (more than 512 of "
    "Python).",
    Kind.COUNTER,
    labels=("reason",),
)
HANGS = Metric(
    "gpu.profile.hangs",
    "Profiles that were kept of hangs: stacks of all threads of a job's processes on this node, when a call had not "
    "returned for --collector.cuda.hang-stacks-seconds. Hangs within ten minutes after a profile have one of their own "
    "later, if they last.",
    Kind.COUNTER,
)
TRUNCATIONS = ("stack", "frame_information", "depth", "python")
"""Reasons of TRUNCATED."""
METRICS = (TAKEN, DROPPED, TRUNCATED, HANGS)
