"""Profiles of /metrics: how much of what was observed has series of its own. What is left out is added up exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from exporter.model import PROCESS_LABELS, Metric, Sample
from exporter.stability import FORMER, TODAY


class Profile(IntEnum):
    """From the fewest series to all; flags and the query's parameter have the names in lower case."""

    FLEET = 0
    NODE = 1
    DEBUG = 2

    @classmethod
    def of(cls, name: str) -> Profile:
        """Return the profile of a name. Raises ValueError with the names that there are."""
        try:
            return cls[name.upper()]
        except KeyError:
            raise ValueError(f"profile has to be one of {', '.join(PROFILES)}") from None


PROFILES = tuple(profile.name.lower() for profile in Profile)
BUCKETS: Mapping[Profile, int] = {Profile.FLEET: 4, Profile.NODE: 8, Profile.DEBUG: 12}
"""Classic buckets of a histogram at most; in the profile debug only where a native one has the others."""
MEANS = frozenset(("nccl.enqueue", "nccl.communicator.operation"))
"""Histograms that dashboards use only for their mean: two classic buckets in the profiles node and fleet."""
CONVENTIONAL = "gen_ai."
"""Names of histograms with the bounds of a convention, which only the profile fleet merges."""
JOB = ("pod", "namespace", "slurm_job_id", "gpu")
"""The labels of a process that the profile fleet has."""
_PROCESS = frozenset(PROCESS_LABELS) - {*JOB}

_IN_DEBUG = frozenset(
    (
        *("gpu.bar1.limit", "gpu.bar1.usage", "gpu.clock.event", "gpu.clock.max", "gpu.compute_mode"),
        *("gpu.graphics.active", "gpu.integer.active", "gpu.memory.busy", "gpu.memory.free"),
        *("gpu.memory.reserved", "gpu.nvlink.link.io", "gpu.nvlink.link.speed", "gpu.nvlink.throughput"),
        *("gpu.pcie.generation", "gpu.pcie.generation.max", "gpu.performance_state"),
        *("gpu.pipe.active_cycles", "gpu.power.draw", "gpu.sm.cycles", "gpu.temperature.margin.limit"),
        *(
            "gpu.tensor.pipe.active",
            "nccl.groups",
            "gpu.vgpu.instances",
            "hw.fan.speed_ratio",
            "hw.gpu.memory.utilization",
        ),
        *("accel.node.pci.link.speed", "accel.node.pci.link.width_max", "rdma.ack.latency"),
        *("rdma.netdev.io", "rdma.netdev.packets", "rdma.netdev.packets.discarded", "rdma.netdev.packets.marked"),
        *("rdma.pci.stalled_time", "rdma.pfc.pause_transitions", "rdma.poll_cq", "rdma.post_send"),
    )
)
"""Metrics that only the profile debug has; no alert and no recording rule uses one."""
_IN_NODE = frozenset(
    (
        *(
            "gpu.clock",
            "gpu.ecc.enabled",
            "gpu.persistence_mode",
            "gpu.fp16.active",
            "gpu.fp32.active",
            "gpu.fp64.active",
        ),
        *("gpu.pcie.throughput", "gpu.process.memory.usage", "gpu.process.utilization"),
        *(
            "gpu.sm.occupancy",
            "gpu.temperature.margin",
            "hw.gpu.io",
            "gpu.cuda.seen_from_start",
            "gpu.hip.seen_from_start",
        ),
        *("gpu.cuda.memory.allocations", "gpu.cuda.memory.frees", "gpu.cuda.memory.unattributed"),
        *("nccl.collective.bytes", "nccl.communicator.operation", "nccl.enqueue", "nccl.communicator.info"),
        *("rdma.memory_region.operations", "rdma.memory_region.registered"),
        *("rdma.link.width", "rdma.qp.busiest", "rdma.qp.state.changes", "rdma.gid.info"),
        *("accel_exporter.probe.hits", "rdma.send.packets.estimated", "rdma.post_send.calls"),
        *("rdma.port.packets", "accel.node.pci.link.width", "accel_exporter.infiniband.files_unreadable"),
        *("accel_exporter.collector.duration", "accel_exporter.collector.series", "accel_exporter.discovery"),
        "accel_exporter.series.limit",
    )
)
"""Metrics that the profiles node and debug have, and fleet has not."""
_IN_DEBUG_LABELS: Mapping[str, tuple[str, ...]] = {
    "accel.node.hwmon.alarm": ("sensor",),
    "accel_exporter.map.full": ("map",),
    "accel_exporter.probe.attached": ("symbol",),
    "accel_exporter.probe.hits": ("symbol",),
    "gpu.cuda.sync_wait": ("api",),
    "gpu.ecc.errors": ("location",),
    "gpu.memory.row_remap.banks": ("spare_rows",),
    "gpu.pcie.errors": ("error",),
    "gpu.nvlink.link.errors": ("link",),
    "gpu.nvlink.link.up": ("link",),
    "gpu.cuda.memory.frees": ("implicit",),
    "nccl.enqueue": ("collective",),
    "nccl.ras.rank.collectives": ("rank", "host"),
    "rdma.memory_region.operations": ("memory",),
    "rdma.post_send.calls": ("qp",),
    "rdma.send": ("qp", "peer_qp", "opcode"),
    "rdma.send.packets.estimated": ("qp", "peer_qp", "peer_gid", "peer_lid"),
    "rdma.send.work_requests": ("qp", "peer_qp", "peer_gid", "peer_lid"),
    "rdma.work_request.latency": ("opcode",),
}
"""Labels that only the profile debug has: series that differ in nothing else are one in the others."""
_IN_NODE_LABELS: Mapping[str, tuple[str, ...]] = {
    "gpu.clock.slowed": ("reason",),
    "gpu.cuda.api.calls": ("api",),
    "gpu.cuda.memory.copies": ("direction", "host_memory"),
    "gpu.ecc.sram.errors": ("unit",),
    "hw.gpu.utilization": ("task",),
    "nccl.collective.bus": ("collective",),
    "nccl.collective.calls": ("collective",),
    "nccl.ras.rank.collectives": ("collective",),
    "accel.node.edac.errors": ("dimm",),
    "accel.node.pci.aer.errors": ("pci_bus_id", "root_port"),
    "rdma.cnp.packets": ("kind",),
    "rdma.queue_pairs": ("type", "mtu", "timeout_seconds", "retries", "rnr_retries"),
    "rdma.send.work_requests": ("opcode",),
    "rdma.work_request.latency": ("device",),
}
"""Labels that fleet does not have either, besides those of the process and those that metrics declare as identity.
Errors, faults and what NCCL's RAS reports keep those: which process or rank it is, is known in every profile."""
SINGLY: Mapping[str, Callable[[Sample], bool]] = {
    "rdma.qp.state": lambda sample: sample.value in (5, 6),
    "nccl.ras.rank.lag": lambda sample: bool(sample.value),
    "nccl.ras.rank.missing": lambda sample: True,
    "gpu.nvlink.link.up": lambda sample: not sample.value,
    "gpu.power.limit": lambda sample: sample.labels.get("limit") == "enforced",
    "gpu.memory.row_remap.banks": lambda sample: sample.labels.get("spare_rows") in ("low", "none"),
    "hw.gpu.utilization": lambda sample: sample.labels.get("task") == "general",
    "hw.temperature.limit": lambda sample: sample.labels.get("limit") == "memory_max",
    "accel_exporter.probe.attached": lambda sample: not sample.value,
    "accel_exporter.map.full": lambda sample: bool(sample.value),
    "accel.node.hwmon.alarm": lambda sample: bool(sample.value),
    "accel.node.pci.link.width": lambda sample: sample.labels.get("kind") == "nic",
}
"""Samples that have their own series in every profile: mostly of what does not work."""
_REST_IN_DEBUG = frozenset(("gpu.power.limit", "hw.temperature.limit", "nccl.ras.rank.lag", "rdma.qp.state"))
"""Metrics of which node and fleet have such samples only."""
MOST_SINGLY: Mapping[str, int] = {"rdma.qp.state": 16, "nccl.ras.rank.lag": 16, "nccl.ras.rank.missing": 64}
"""The most samples with their own series, those with the largest values. Other metrics count all queue pairs
(rdma.queue_pairs) and all missing ranks (nccl.ras.ranks.missing)."""
RAS = "nccl.ras."
"""Prefix of the names of metrics of NCCL's RAS."""
MOST_LARGE, MOST_LATE = 16, 8
"""Communicators of NCCL's RAS in node and fleet: the largest ones, and those with the ranks most behind."""


INFO = "job.process.info"
"""The metric of a process that keeps the labels of JOINED."""
CONTAINER = "container_id"
JOINED = frozenset((CONTAINER, "gpu_uuid"))
"""Long labels of processes, which other series of node and fleet get by a join with INFO on the pid."""
_WITH_GPU = frozenset(("gpu.process.memory.usage", "gpu.process.utilization", "nccl.last_call.timestamp"))
"""Metrics of processes that rules and dashboards join with those of GPUs: like errors, they keep the GPU's UUID."""


@dataclass(frozen=True, slots=True)
class ProfileRule:
    """Effect of a profile on a metric. `singly` is true of samples that have a series of their own.

    `joined`: labels of JOINED that series of one process do not have.
    """

    shown: bool
    without: frozenset[str]
    singly: Callable[[Sample], bool] | None
    joined: frozenset[str]


def rule_of(metric: Metric, profile: Profile) -> ProfileRule:
    """Return the rule of a metric for a profile below debug."""
    name = TODAY + metric.name.removeprefix(FORMER) if metric.name.startswith(FORMER) else metric.name
    least = Profile.NODE if name in _IN_NODE else Profile.FLEET
    if name in _IN_DEBUG | _REST_IN_DEBUG:
        least = Profile.DEBUG
    without = set(_IN_DEBUG_LABELS.get(name, ()))
    if profile < Profile.NODE:
        without.update(_IN_NODE_LABELS.get(name, ()))
        if not metric.fault and not name.startswith("nccl.ras."):
            without |= {*metric.identity, *(_PROCESS if metric.process else ())}
    joined = JOINED.difference(metric.labels) if metric.process and name != INFO else frozenset[str]()
    if metric.fault or name in _WITH_GPU:
        joined &= {CONTAINER}
    if without:
        without |= joined
    return ProfileRule(profile >= least, frozenset(without), SINGLY.get(name), joined)


def communicators_left_out(samples: Iterable[Sample]) -> frozenset[str]:
    """Return the hashes of the communicators that have series of RAS only in the profile debug.

    A job of 2,000 ranks has hundreds of communicators, and the node with its rank 0 has the series of all of them. A
    missing or late rank is missing or late in several. Those with missing or failed ranks come before larger ones.
    """
    sizes, lags, failing = dict[str, float](), dict[str, float](), set[str]()
    for sample in samples:
        comm_hash, value = sample.labels.get("comm_hash", ""), sample.value
        if not comm_hash or not sample.metric.name.startswith(RAS) or not isinstance(value, int | float):
            continue
        lags.setdefault(comm_hash, 0)
        if sample.metric.name == "nccl.ras.communicator.ranks":
            sizes[comm_hash] = value
        elif sample.metric.name == "nccl.ras.rank.lag":
            lags[comm_hash] = max(lags[comm_hash], value)
        elif sample.metric.fault and value:
            failing.add(comm_hash)
    large = sorted(lags, key=lambda comm: (comm not in failing, -sizes.get(comm, 0), comm))[:MOST_LARGE]
    late = sorted((comm for comm in lags if lags[comm]), key=lambda comm: (-lags[comm], comm))[:MOST_LATE]
    return frozenset(lags) - {*large, *late}
