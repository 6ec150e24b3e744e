"""The samples of one gathering by metric, as the page at / shows them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from exporter.model import Distribution, Sample
from exporter.profile import CONTAINER, INFO


class NamedSamples:
    """Samples by the name of their metric; those of a process have the container's id, wherever that is.

    Not so without `containers`, which takes a fraction of the time.
    """

    def __init__(self, samples: Sequence[Sample], containers: bool = True) -> None:
        self._by_name: dict[str, list[Sample]] = defaultdict(list)
        joined = containers and {
            sample.labels["pid"]: sample.labels[CONTAINER]
            for sample in samples
            if sample.metric.name == INFO and CONTAINER in sample.labels
        }
        for sample in samples:
            container = joined and joined.get(sample.labels.get("pid", ""))
            if container and CONTAINER not in sample.labels:
                sample = replace(sample, labels={**sample.labels, CONTAINER: container})
            self._by_name[sample.metric.name].append(sample)

    def all(self, name: str) -> Sequence[Sample]:
        return self._by_name.get(name, ())

    def where(self, name: str, **labels: str) -> Iterator[Sample]:
        """The samples that have these labels."""
        for sample in self.all(name):
            if all(sample.labels.get(key) == value for key, value in labels.items()):
                yield sample

    def of_processes(self, name: str) -> Iterator[Sample]:
        """The samples of processes; of the layers the driver's, the runtime's only where the driver was not seen."""
        samples = [sample for sample in self.all(name) if sample.labels.get("pid")]
        driven = {it.labels["pid"] for it in samples if it.labels.get("api_layer") == "driver"}
        for sample in samples:
            if sample.labels.get("api_layer") != "runtime" or sample.labels["pid"] not in driven:
                yield sample

    def total(self, name: str, **labels: str) -> float:
        """The sum of those samples; 0 if there are none."""
        return sum(map(number, self.where(name, **labels)))

    @property
    def searched(self) -> bool:
        """Return whether libraries are searched for."""
        return any(self.where("accel_exporter.source.age", source="processes"))

    def healthy(self, collector: str) -> bool:
        """Return whether the collector ended in time and without an error."""
        return bool(self.total("accel_exporter.collector.success", collector=collector))


def none_seen(named: NamedSamples, collector: str, text: str) -> str:
    """Return this text where the collector works that would have seen the thing, else that nothing is known."""
    unknown = f"Unknown: collector {collector} does not work or is disabled."
    return text if named.healthy(collector) else unknown


def number(sample: Sample) -> float:
    return 0.0 if isinstance(sample.value, Distribution) else float(sample.value)


def probes(samples: Iterable[Sample]) -> tuple[int, int]:
    """Return how many probes are attached, and how many there are to attach.

    Below profile debug the attached ones of a library are one sample, and its value is their number.
    """
    values = [int(number(sample)) for sample in samples]
    return sum(values), sum(max(1, value) for value in values)


def place(sample: Sample) -> str:
    """The port of an RDMA device, as the page writes it."""
    return f"{sample.labels.get('device', '')}/{sample.labels.get('port', '')}"


def queue_pair(sample: Sample) -> tuple[str, str, str]:
    """Process, device and number of a queue pair."""
    return sample.labels.get("pid", ""), sample.labels.get("device", ""), sample.labels.get("qp", "")
