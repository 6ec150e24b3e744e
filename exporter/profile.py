"""Profiles of /metrics: how much of what was observed has series of its own. What is left out is added up exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from exporter import values
from exporter.model import PROCESS_LABELS, Distribution, Kind, Labels, Metric, Sample, Value


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
BUCKETS: Mapping[Profile, int] = {Profile.FLEET: 4, Profile.NODE: 8}
"""Buckets of a histogram at most."""
CONVENTIONAL = "gen_ai."
"""Names of histograms with the bounds of a convention, which the profile node leaves as they are."""
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
        *("node.pci.link.speed", "node.pci.link.width_max", "rdma.ack.latency"),
        *("rdma.netdev.counter", "rdma.poll_cq", "rdma.port.hw_value", "rdma.post_send"),
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
        *("gpu.sm.occupancy", "gpu.temperature.margin", "hw.gpu.io", "gpu.cuda.seen_from_start"),
        *("gpu.cuda.memory.allocations", "gpu.cuda.memory.frees", "gpu.cuda.memory.unattributed"),
        *("nccl.communicator.operation", "nccl.enqueue", "nccl.communicator.info"),
        *("rdma.memory_region.operations", "rdma.memory_region.registered", "rdma.link.physical_state"),
        *("rdma.link.width", "rdma.qp.busiest", "rdma.qp.state.changes", "rdma.gid.info"),
        *("accel_exporter.probe.hits", "rdma.send.packets.estimated", "rdma.post_send.calls"),
    )
)
"""Metrics that the profiles node and debug have, and fleet has not."""
_PORT_COUNTERS = frozenset(
    (
        *("port_xmit_data", "port_rcv_data", "port_rcv_errors", "port_xmit_discards", "port_xmit_wait"),
        *("symbol_error", "link_error_recovery", "local_link_integrity_errors", "excessive_buffer_overrun_errors"),
        *("port_rcv_remote_physical_errors",),
        *("retry_exceeded_err", "retry_rnr_exceeded_err", "req_transport_retries_exceeded"),
        *("req_rnr_retries_exceeded", "max_retry_exceeded"),
    )
)
"""Of rdma.port.hw_counter those that node and fleet have: those of alerts and dashboards, with the bytes. Many of the
others have a metric of their own."""
_IN_DEBUG_LABELS: Mapping[str, tuple[str, ...]] = {
    "accel_exporter.probe.attached": ("symbol",),
    "accel_exporter.probe.hits": ("symbol",),
    "gpu.cuda.sync_wait": ("api",),
    "gpu.ecc.errors": ("location",),
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
    "gpu.pcie.errors": ("error",),
    "nccl.collective.bus": ("collective",),
    "nccl.collective.bytes": ("collective",),
    "nccl.collective.calls": ("collective",),
    "nccl.ras.rank.collectives": ("collective",),
    "node.pci.aer.errors": ("pci_bus_id", "root_port"),
    "rdma.cnp.packets": ("kind",),
    "rdma.queue_pairs": ("type", "mtu", "timeout_seconds", "retries", "rnr_retries"),
    "rdma.send.work_requests": ("opcode",),
}
"""Labels that fleet does not have either, besides those of the process and those that metrics declare as identity.
Errors, faults and what NCCL's RAS reports keep those: which process or rank it is, is known in every profile."""
SINGLY: Mapping[str, Callable[[Sample], bool]] = {
    "rdma.qp.info": lambda sample: sample.labels.get("state") in ("ERR", "SQE"),
    "nccl.ras.rank.lag": lambda sample: bool(sample.value),
    "rdma.port.hw_counter": lambda sample: sample.labels.get("counter") in _PORT_COUNTERS,
    "gpu.nvlink.link.up": lambda sample: not sample.value,
    "gpu.power.limit": lambda sample: sample.labels.get("limit") == "enforced",
    "hw.temperature.limit": lambda sample: sample.labels.get("limit") == "memory_max",
    "accel_exporter.probe.attached": lambda sample: not sample.value,
}
"""Samples that have their own series in every profile: mostly of what does not work."""
_REST_IN_DEBUG = frozenset(
    ("gpu.power.limit", "hw.temperature.limit", "nccl.ras.rank.lag", "rdma.port.hw_counter", "rdma.qp.info")
)
"""Metrics of which node and fleet have such samples only."""
MOST_SINGLY: Mapping[str, int] = {"rdma.qp.info": 16}
"""Samples at most that have their own series so; all of them are counted by another metric, rdma.queue_pairs."""


INFO = "job.process.info"
"""The metric of a process that keeps the labels of JOINED."""
JOINED = "container_id"
"""A long label of processes, which other series of node and fleet get by a join with INFO on the pid."""
MOST_RULES = 4096
"""Rules that a reduction remembers; there are some 700 metrics."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a profile does with a metric. `singly` is true of samples that have a series of their own.

    `joined`: series of one process each, which have no label JOINED.
    """

    shown: bool
    without: frozenset[str]
    singly: Callable[[Sample], bool] | None
    joined: bool


def rule_of(metric: Metric, profile: Profile) -> Rule:
    """Return the rule of a metric for a profile below debug."""
    name = metric.name
    least = Profile.NODE if name in _IN_NODE else Profile.FLEET
    if name in _IN_DEBUG | _REST_IN_DEBUG:
        least = Profile.DEBUG
    without = set(_IN_DEBUG_LABELS.get(name, ()))
    if profile < Profile.NODE:
        without.update(_IN_NODE_LABELS.get(name, ()))
        if not metric.fault and not name.startswith("nccl.ras."):
            without |= {*metric.identity, *(_PROCESS if metric.process else ())}
    joined = metric.process and name != INFO
    if joined and without:
        without.add(JOINED)
    return Rule(profile >= least, frozenset(without), SINGLY.get(name), joined)


@dataclass(slots=True)
class _Sum:
    """A series to which others are added up. `counted` is unused for a gauge; `members` are those of one page."""

    metric: Metric
    labels: Labels
    counted: Value
    start: float | None
    members: int = 0


class Reduction:
    """Reduces the samples of one page after the other to a profile. One thread at a time.

    Counters and histograms that are added up keep the counts of members that vanish, and vanish with the last member.
    Of gauges it is the sum, or the largest of times, ratios, temperatures and infos.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._sums: dict[str, _Sum] = {}
        self._rules: dict[int, tuple[Metric, Rule]] = {}
        self._members: dict[str, Value] = {}

    def apply(self, samples: Iterable[Sample]) -> list[Sample]:
        """Return the samples of the profile."""
        if self._profile is Profile.DEBUG:
            return list(samples)
        kept: list[Sample] = []
        bounded: list[Sample] = []
        shortened: set[str] = set()
        gauges: dict[str, Value] = {}
        seen: dict[str, Value] = {}
        for one in self._sums.values():
            one.members = 0
        for sample in samples:
            rule = self._rule(sample.metric)
            if rule.joined and not rule.without:
                sample = self._short(sample, shortened)
            if rule.singly and rule.singly(sample):
                (bounded if sample.metric.name in MOST_SINGLY else kept).append(sample)
            elif rule.shown and not rule.without:
                kept.append(self._coarse(sample))
            elif rule.shown:
                self._add(sample, rule.without, gauges, seen)
        self._members = seen
        self._sums = {key: one for key, one in self._sums.items() if one.members}
        for key, one in self._sums.items():
            value = gauges[key] if one.metric.kind is Kind.GAUGE else one.counted
            kept.append(self._coarse(Sample(one.metric, one.labels, value, one.start)))
        return kept + list(_first(bounded))

    @staticmethod
    def _short(sample: Sample, seen: set[str]) -> Sample:
        """Return the sample without JOINED, unless another one of the page is the same without it."""
        if not sample.labels.get("pid") or JOINED not in sample.labels:
            return sample
        labels = {name: text for name, text in sample.labels.items() if name != JOINED}
        key = values.key(sample.metric, labels)
        if key in seen:
            return sample
        seen.add(key)
        return Sample(sample.metric, labels, sample.value, sample.start)

    def _rule(self, metric: Metric) -> Rule:
        """Return the rule of a metric, by its identity, as its hash would take the time of all its texts."""
        known = self._rules.get(id(metric))
        if known is None or known[0] is not metric:
            if len(self._rules) >= MOST_RULES:  # metrics that other exporters and custom probes bring may be ever new
                self._rules.clear()
            known = self._rules[id(metric)] = metric, rule_of(metric, self._profile)
        return known[1]

    def _add(self, sample: Sample, without: frozenset[str], gauges: dict[str, Value], seen: dict[str, Value]) -> None:
        metric, value = sample.metric, sample.value
        labels = {name: text for name, text in sample.labels.items() if text and name not in without}
        into = values.key(metric, labels)
        one = self._sums.get(into)
        if one is None:
            one = self._sums[into] = _Sum(metric, labels, values.zero(value), sample.start)
        one.members += 1
        if sample.start is not None and (one.start is None or sample.start < one.start):
            one.start = sample.start
        if metric.kind is Kind.GAUGE:
            gauges[into] = values.combine(metric, gauges[into], value) if into in gauges else value
            return
        of = values.key(metric, sample.labels)
        one.counted = values.plus(one.counted, values.rise(self._members.get(of, values.zero(value)), value))
        seen[of] = value

    def _coarse(self, sample: Sample) -> Sample:
        if not isinstance(sample.value, Distribution):
            return sample
        if self._profile is Profile.NODE and sample.metric.name.startswith(CONVENTIONAL):
            return sample
        few = values.merged(sample.value, BUCKETS[self._profile])
        return Sample(sample.metric, sample.labels, few, sample.start)


def _first(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield as many samples of each metric as MOST_SINGLY allows, the same ones while they are there."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.metric.name, []).append(sample)
    for name, own in found.items():
        yield from sorted(own, key=lambda sample: values.key(sample.metric, sample.labels))[: MOST_SINGLY[name]]
