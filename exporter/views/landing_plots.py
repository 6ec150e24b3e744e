"""Values that the page at / plots, and their extraction from samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from exporter.history import CounterValue, History, Key, ScrapeValues
from exporter.model import Sample
from exporter.views.landing_samples import NamedSamples, number, place, queue_pair

LAUNCHES, BYTES, COLLECTIVES = "launches", "bytes", "collectives"
"""Kinds of plots of a process."""
SENT, QP_SENT, PORT_SENT, NACKS = "sent", "qp", "port", "nacks"
"""Kinds of plots of a process, of a queue pair, and the last two of a port."""
GPU = "gpu"
_PROCESSES = {LAUNCHES: "cuda", BYTES: "cuda", COLLECTIVES: "nccl", SENT: "verbs", QP_SENT: "verbs"}
"""The collector that reports each kind; it has seen nothing yet of a process that it does not report."""
_DEVICES = {GPU: "nvml", NACKS: "infiniband", PORT_SENT: "infiniband"}
_ADDED = (LAUNCHES, COLLECTIVES, SENT)


def history() -> History:
    return History(read, frozenset((*_PROCESSES.values(), *_DEVICES.values())), _ADDED)


def read(samples: Sequence[Sample]) -> ScrapeValues:
    """Return what is plotted and of which rates are shown; what is not in the samples is not in it."""
    named = NamedSamples(samples, containers=False)
    watched = {kind for kind, collector in _PROCESSES.items() if named.healthy(collector)}
    by_pair = [it for it in named.of_processes("rdma.send") if it.labels.get("qp")]
    data = named.where("rdma.port.io", direction="transmit")
    counts = {
        **_counts(LAUNCHES, ((it.labels["pid"], it) for it in named.of_processes("gpu.cuda.kernel.launch.calls"))),
        **_counts(COLLECTIVES, ((it.labels["pid"], it) for it in named.of_processes("nccl.collective.calls"))),
        **_counts(SENT, ((it.labels["pid"], it) for it in named.of_processes("rdma.send"))),
        **_counts(QP_SENT, (("/".join(queue_pair(it)), it) for it in by_pair)),
        **_counts(PORT_SENT, ((place(it), it) for it in data)),
    }
    return ScrapeValues(counts, _gauges(named, watched), watched)


def _counts(kind: str, samples: Iterable[tuple[str, Sample]]) -> dict[Key, CounterValue]:
    found: dict[Key, CounterValue] = {}
    for of, sample in samples:
        before = found.get((kind, of), CounterValue(0.0, sample.start or 0.0))
        found[kind, of] = CounterValue(before.value + number(sample), min(before.start, sample.start or 0.0))
    return found


def _gauges(named: NamedSamples, watched: set[str]) -> dict[Key, float]:
    gauges: dict[Key, float] = defaultdict(float)
    for sample in named.of_processes("gpu.cuda.memory.usage"):
        gauges[BYTES, sample.labels["pid"]] += number(sample)
    if BYTES in watched:
        gauges[BYTES, ""] = sum(gauges.values())
    for sample in named.all("rdma.nack"):
        gauges[NACKS, place(sample)] += number(sample)
    ratios = [value for (kind, _), value in gauges.items() if kind == NACKS]
    if ratios:
        gauges[NACKS, ""] = max(ratios)
    busy = {
        sample.labels.get("gpu_uuid", ""): number(sample)
        for sample in named.where("hw.gpu.utilization", task="general")
    }
    gauges.update({(GPU, uuid): value for uuid, value in busy.items() if uuid})
    if busy:
        gauges[GPU, ""] = sum(busy.values()) / len(busy)
    return gauges
