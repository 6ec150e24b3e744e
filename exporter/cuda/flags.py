"""Flags of the collector, and the size of the table of allocations that follows from one of them."""

from __future__ import annotations

from exporter.options import Flag
from exporter.series import limit_flag

GRANULE = 2 << 20
"""Bytes of the smallest physical allocation (cuMemGetAllocationGranularity): no GPU has more handles than these."""
LIVE_LEAST, LIVE_MOST = 1 << 18, 1 << 20

FLAGS = (
    Flag(
        "layers",
        "driver",
        "API layers that are probed. The runtime calls the driver: with both, calls of programs with a shared runtime "
        "cost twice as much, and are also counted by the runtime's names.",
        choices=("driver", "runtime", "both"),
    ),
    Flag(
        "live-allocations",
        0,
        "Maximum number of live allocations that are tracked, of all processes, with 120 bytes of kernel memory each. "
        "One process gets an eighth of the table, at least one entry, and more while less than half of the table is "
        "in use. 0: three for each 4 MiB of the memory of the node's GPUs, 262,144 at least (also where NVML does not "
        "report it) and 1,048,576 at most.",
        0,
        1 << 24,
    ),
    Flag(
        "allocation-span-bytes",
        1 << 26,
        "Least size of an allocation or free that becomes a span, in bytes.",
        0,
        1 << 50,
    ),
    Flag("copy-span-bytes", 1 << 26, "Least size of a copy that becomes a span, in bytes.", 0, 1 << 50),
    Flag(
        "wait-span-seconds", 0.1, "Least time of a wait for the GPU that becomes a span, in seconds.", 0, 1_000_000_000
    ),
    Flag(
        "spans-per-second",
        100,
        "Maximum number of spans a second of one process, including errors; all processes together may send ten times"
        " as many.",
        0,
        1 << 30,
    ),
    limit_flag(10_000),
    Flag(
        "profile-cpu-ratio",
        0.05,
        "Maximum part of one processor that unwinding stacks may take, with --web.enable-profiles; a minute of it may "
        "be used at once. Beyond it allocations are in profiles without their stacks.",
        0.0,
        1.0,
    ),
    Flag(
        "profile-launches-every",
        1000,
        "Number of launches of which one is sampled for the profile of launches and represents all of them, with "
        "--web.enable-profiles. 0: none is.",
        0,
        1 << 20,
    ),
    Flag(
        "profile-allocators",
        False,
        "Probe the blocks of PyTorch's caching allocator, so that the profile of memory in use attributes them to "
        "stacks, with --web.enable-profiles. It costs a probe at each block, and 90 MB of kernel memory.",
    ),
    Flag(
        "hang-stacks-seconds",
        300.0,
        "Time after which a call of CUDA or NCCL that has not returned, or a thread in state D, is a hang, in seconds. "
        "Stacks of all threads of the job's processes on the node are then kept as a profile, with "
        "--web.enable-profiles, one in ten minutes at most. 0: none is.",
        0.0,
        1_000_000.0,
    ),
    Flag(
        "all-errors",
        False,
        "Count errors of launches and of the runtime's copies too, at about twice the cost of these calls.",
    ),
)


def live_rows(memory: int | None) -> int:
    """Return the rows of the table of live allocations for GPUs with so many bytes (None: not known), half to spare."""
    return min(max((memory or 0) // GRANULE * 3 // 2, LIVE_LEAST), LIVE_MOST)
