"""The collector of custom probes. Imported where there is a folder of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from exporter.bpf.events import EVENTS_LOST
from exporter.bpf.safety import protection
from exporter.bpf.status import SOURCE_AGE
from exporter.collectors.custom import DIR, HEADERS, INTERVAL, PYTHON, SERIES, SPANS
from exporter.custom import folder, headers, metrics
from exporter.custom.attach import Attacher
from exporter.custom.child import Options
from exporter.custom.decode import Cgroups, Decoder
from exporter.custom.definition import Definition, MapReading
from exporter.custom.folder import FolderError, ProbeSource, RefusedProbe
from exporter.custom.messages import Records, Shape
from exporter.custom.probe import Probe, View
from exporter.custom.samples import samples
from exporter.custom.spans import span
from exporter.model import Sample, Unavailable
from exporter.node import Node
from exporter.series import SeriesLimit

log = logging.getLogger(__name__)


class Custom:
    """The collector of all probes of the folder, each with a worker process of its own."""

    name = "custom"

    def __init__(self, node: Node) -> None:
        self._node, self._settings = node, node.settings
        self._decoder = Decoder(node.processes.labels, Cgroups(node.sys / "fs/cgroup"))
        self.probes: list[Probe] = []
        self._limits: dict[str, SeriesLimit] = {}
        self.refused: list[RefusedProbe] = []

    def start(self) -> None:
        """Start compiling, in the background.

        Raises Unavailable where others than root can write in the folder, or kernel headers are missing, and
        FolderError where the folder cannot be read now, so that a reload tries again.
        """
        settings = self._settings
        try:
            found = folder.load(Path(settings[DIR]))
        except FolderError as error:
            if error.passing:
                raise
            log.warning("no custom probe is loaded: %s", error)  # somebody named the folder
            raise Unavailable(str(error)) from error
        options = Options(
            settings[PYTHON], headers.find(settings[HEADERS]), settings[INTERVAL], settings[SPANS], str(self._node.proc)
        )
        self.refused = [probe for probe in found if isinstance(probe, RefusedProbe)]
        for refused in self.refused:
            log.warning("the custom probe %s is not loaded: %s", refused.name, refused.reason)
        compiling = threading.Semaphore()
        self.probes = [self._probe(source, options, compiling) for source in found if isinstance(source, ProbeSource)]
        self._limits = {
            probe.definition.name: SeriesLimit(f"custom_{probe.definition.name}", settings[SERIES])
            for probe in self.probes
        }
        for probe in self.probes:
            if probe.attacher.symbols or probe.attacher.usdt:
                self._node.targets.want(probe.attacher)
            probe.start()

    def collect(self) -> Iterator[Sample]:
        """Yield the samples of all probes, or raise as `Targets.require` where no probe sees anything without it."""
        blind = self._blind()
        if blind and len(blind) == len(self.probes):
            self._node.targets.require()
        for probe in self.probes:
            view, name = probe.view, probe.definition.name
            if name in blind:
                yield metrics.UP.sample(0, {"probe": name})
                continue
            found = (sample for reading in probe.definition.readings for sample in self._read(reading, view))
            yield from self._limits[name].apply(found)
            yield from probe.attacher.collect()
            yield from _about(probe, view)
        for refused in self.refused:
            yield metrics.UP.sample(0, {"probe": refused.name})

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each probe that does not run, point that is not attached, and map that is full."""
        for refused in self.refused:
            yield f"{refused.name}: {refused.reason}"
        blind = self._blind()
        for probe in self.probes:
            view, name = probe.view, probe.definition.name
            if name in blind:
                yield f"{name}: {blind[name]}"
            if view.problem:
                yield f"{name}: {view.problem}"
            for event, reason in view.tracepoints.items():
                if reason:
                    yield f"{name}: tracepoint {event}: {reason}"
            for state in probe.attacher.states():
                if not state.attached:
                    yield f"{name}: {state.symbol} in {state.library}: {state.reason}"
            for source, rows in view.rows.items():
                if view.shapes[source].fills and rows.entries >= view.shapes[source].entries:
                    yield f"{name}: its map {source} is full with {rows.entries} keys: nothing is counted for new ones"

    def settle(self, seconds: float) -> bool:
        """Wait until each probe was read once or has failed. Returns False when that takes more than `seconds`."""
        until = time.monotonic() + seconds
        return all(probe.settled.wait(max(0.0, until - time.monotonic())) for probe in self.probes)

    def close(self) -> None:
        for probe in self.probes:
            probe.stop()
        for probe in self.probes:
            probe.close()

    def _blind(self) -> dict[str, str]:
        """Return the probes of functions of libraries alone, with the reason, where libraries are not searched for."""
        try:
            self._node.targets.require()
        except (Unavailable, OSError) as error:
            return {it.name: str(error) for it in (probe.definition for probe in self.probes) if not it.tracepoints}
        return {}

    def _probe(self, source: ProbeSource, options: Options, compiling: threading.Semaphore) -> Probe:
        trial = self._node.trial
        attacher = Attacher(
            source.definition,
            protection=partial(protection, self._node.proc),
            returns_allowed=trial.returns_allowed,
            costs=lambda: trial.costs,
            started=self._node.processes.labels,
        )
        return Probe(source, options, attacher, compiling, partial(self._receive, source.definition))

    def _read(self, reading: MapReading, view: View) -> Iterator[Sample]:
        return samples(reading, view.shapes, view.rows, self._decoder)

    def _receive(self, definition: Definition, records: Records, shape: Shape) -> None:
        for declared in definition.spans:
            for row in records.rows if declared.buffer == records.buffer else ():
                made = span(declared, shape.value or {}, row, self._node.clock, self._node.processes.labels)
                if made:
                    self._node.spans(made)


def _about(probe: Probe, view: View) -> Iterator[Sample]:
    """Yield the exporter's own metrics about a probe."""
    name = probe.definition.name
    labels = {"probe": name}
    yield metrics.UP.sample(int(not view.problem), labels)
    for reason, count in probe.ends().items():
        yield metrics.STARTS.sample(count, labels | {"reason": reason})
    resident, seconds = probe.process()
    yield metrics.PROCESSOR.sample(seconds, labels)
    if resident is not None:
        yield metrics.RESIDENT.sample(resident, labels)
    for event, reason in view.tracepoints.items():
        yield metrics.TRACEPOINT.sample(int(not reason), labels | {"tracepoint": event})
    for source, rows in view.rows.items():
        shape, of_map = view.shapes[source], labels | {"map": source}
        if "Hash" in shape.kind:
            yield metrics.ENTRIES.sample(rows.entries, of_map)
            if shape.fills:
                yield metrics.LIMIT.sample(shape.entries, of_map)
            yield metrics.UNREAD.sample(rows.left_out, of_map)
    if view.at:
        yield SOURCE_AGE.sample(time.monotonic() - view.at, {"source": f"custom_{name}"})
    for buffer, lost in view.lost.items():
        yield EVENTS_LOST.sample(lost, {"stream": f"custom_{name}_{buffer}"})
    yield metrics.LIMITED.sample(view.limited, labels)
    lost_map = probe.definition.lost
    if lost_map and lost_map in view.rows:
        counted = [value for key, value in view.rows[lost_map].rows if key == 0]
        yield metrics.LOST.sample(counted[0] if counted else 0, labels)
