"""A collector that probes, running on this machine's processes, for tests."""

from __future__ import annotations

import filecmp
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from exporter.bpf.targets import Targets
from exporter.model import Distribution, Sample, Span
from exporter.node import Node
from exporter.options import Flag
from exporter.probe_collector import ProbeCollector
from exporter.resolve.process import ProcessTable
from exporter.views.prometheus import name
from tests.nodes import make_node
from tests.support import PATIENCE

Labels = frozenset[tuple[str, str]]


def _same(library: str, other: str) -> bool:
    """Return whether these are copies of one file."""
    if Path(library).name != Path(other).name:
        return False
    try:
        return filecmp.cmp(library, other, shallow=False)
    except OSError:  # of a test that has ended
        return False


class Observed:
    """A running collector, the node that it runs on, and questions to it."""

    def __init__(self, collector: Any, targets: Targets, spans: list[Span], node: Node) -> None:
        self.collector, self.targets, self.spans, self.node = collector, targets, spans, node

    def samples(self) -> list[Sample]:
        return list(self.collector.collect())

    def values(self, metric: str, pid: int | None = None, **labels: str) -> dict[Labels, Any]:
        """The values of a metric by the labels of its own, of samples that have these labels."""
        wanted = labels | ({} if pid is None else {"pid": str(pid)})
        found = [it for it in self.samples() if name(it.metric) == metric and wanted.items() <= it.labels.items()]
        own = [frozenset((key, value) for key, value in it.labels.items() if key in it.metric.labels) for it in found]
        return dict(zip(own, (it.value for it in found), strict=True))

    def value(self, metric: str, pid: int | None = None, **labels: str) -> Any:
        """The one value of a metric with these labels; None if there is none."""
        values = list(self.values(metric, pid, **labels).values())
        assert len(values) <= 1, f"{metric} {labels}: {values}"
        return values[0] if values else None

    def sums(self, *metrics: str, pid: int | None = None) -> dict[str, dict[bool, int]]:
        """The sums of metrics over series with a pid (False) and over those that are folded (True).

        With `pid` the former are of this process only: other programs of the machine may use a library of that name.
        """
        found = {metric: {False: 0, True: 0} for metric in metrics}
        for it in self.samples():
            if pid is not None and it.labels.get("pid", str(pid)) != str(pid):
                continue
            if (metric := name(it.metric)) in found:
                value = sum(it.value.counts) if isinstance(it.value, Distribution) else int(it.value)
                found[metric]["overflow" in it.labels] += value
        return found

    def named(self, pid: int, program: str) -> bool:
        """Return whether a process is known under the name of this program."""
        labels, _ = self.collector.ledger.known.get(pid, ({}, 0.0))
        return pid in self.collector.ledger and labels.get("comm") == program

    def attached(self, pid: int, libraries: Collection[str]) -> bool:
        """Return whether a process is known and all probes are attached, some of them in each of these libraries.

        Copies of one library, which other tests make, have the path of one of them.
        """
        attached = self.values("accel_exporter_probe_attached")
        found = {dict(labels)["library"] for labels in attached}
        known = all(it in found or any(map(partial(_same, it), found)) for it in libraries)
        return known and all(attached.values()) and pid in self.collector.ledger

    @property
    def lost(self) -> dict[str, int]:
        """Counts of losses in the BPF programs, by map; only those above 0."""
        return {it: count for it, count in self.collector.object.globals().items() if it.endswith("_lost") and count}

    def in_flight(self, pid: int, table: str = "in_flight") -> list[Any]:
        """Return the calls that threads of a process make now: FLIGHTS() of bpf/flight.h."""
        return [it for it in self.kernel(table, pid) if it.sp]

    def left_out(self, pid: int) -> bool:
        """Return whether calls of a process do not count in a library, as it passes them on."""
        maps = self.collector.object.maps
        libraries = [key >> 32 for key, _ in maps["passing"].items() if key & 0xFFFFFFFF == pid]
        return any(maps["passing_processes"].get(it) for it in libraries)

    def kernel(self, table: str, pid: int) -> list[Any]:
        """Return the values that a map holds of a process."""
        rows = self.collector.object.maps[table].items()
        return [value for key, value in rows if getattr(key, "tgid", key) == pid]

    def by(self, metric: str, pid: int, *names: str) -> dict[Any, Any]:
        """The values of a metric by one label, or by several."""
        found = {}
        for key, value in self.values(metric, pid).items():
            labels = tuple(dict(key).get(it, "") for it in names)
            found[labels if len(names) > 1 else labels[0]] = value
        return found


@contextmanager
def running(
    kind: type[ProbeCollector[Any]],
    flags: Sequence[Flag],
    grace: float | None = None,
    shared: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Iterator[Observed]:
    """A collector with these settings (dashes as underscores), attached to what runs and what comes.

    `shared` replaces fields of its node. A short `grace` detaches soon from what earlier tests used.
    """
    spans: list[Span] = []
    targets = Targets() if grace is None else Targets(grace=grace)
    defaults = {flag.name: flag.default for flag in flags}
    chosen = {key.replace("_", "-"): value for key, value in settings.items()}
    assert chosen.keys() <= defaults.keys()
    node = make_node(defaults | chosen, ProcessTable(), targets, spans.append, **(shared or {}))
    collector = kind(node)
    collector.start()
    try:
        targets.start()
        try:
            assert targets.scanned.wait(PATIENCE)
            yield Observed(collector, targets, spans, node)
        finally:
            targets.close()
    finally:
        collector.close()
