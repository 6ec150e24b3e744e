"""dcgm-exporter's series under its own names, from NVML; and the values of DCGM where it runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from exporter import urls
from exporter.background.poller import Poller
from exporter.bpf import status
from exporter.compat.dcgm import csv
from exporter.compat.dcgm.derived import Derived
from exporter.compat.dcgm.engine import EMBEDDED
from exporter.compat.dcgm.owners import EntityOwners
from exporter.compat.dcgm.profiling import DcgmProfiling
from exporter.compat.dcgm.series import HOSTNAME_LABELS, DcgmSeries, Entity, metric
from exporter.model import Kind, Metric, Sample, Unavailable
from exporter.node import Node
from exporter.nodename import node_name
from exporter.nvml.pids import labels_of
from exporter.nvml.snapshot import Values
from exporter.options import Option, SettingsError, Value

OPTIONS = (
    Option("compat.dcgm", False, "Add dcgm-exporter's series, with its names, units and labels, from NVML.", "dcgm"),
    Option(
        "compat.dcgm.csv",
        "",
        "File with the fields, in dcgm-exporter's own format. Empty: the default fields of dcgm-exporter.",
        "dcgm",
        metavar="FILE",
    ),
    Option(
        "compat.dcgm.names",
        "old",
        "Names of the fields: old for the names up to DCGM 4.5 (or those in the file), new for the names since 4.6, "
        "or both.",
        "dcgm",
        choices=("old", "new", "both"),
    ),
    Option(
        "compat.hostname-label",
        "Hostname",
        "Label of this node's name: Hostname as in dcgm-exporter up to 4.8.2, hostname as in later releases.",
        "dcgm",
        choices=tuple(HOSTNAME_LABELS),
    ),
    Option(
        "dcgm.url",
        "",
        "URL of a dcgm-exporter with series to add to /metrics, with the labels pod and gpu_uuid. Empty: none.",
        "dcgm",
        metavar="URL",
    ),
    Option(
        "dcgm.bindings",
        "",
        "Folder of NVIDIA's Python bindings (pydcgm.py), for values of DCGM that NVML lacks before Hopper. Empty:"
        " none.",
        "dcgm",
        metavar="DIR",
    ),
    Option(
        "dcgm.host-engine",
        "localhost",
        f"Host or host:port of the nv-hostengine for the bindings. {EMBEDDED}: one in a child process of the exporter.",
        "dcgm",
        metavar="HOST",
    ),
    Option(
        "dcgm.interval",
        15.0,
        "Interval between readings of --dcgm.url and of --dcgm.bindings.",
        "dcgm",
        duration=True,
        least=1,
        most=86_400,
    ),
)
FILLED = tuple(metric(row, row.name) for row in csv.every() if row.kind is not None)
"""Metrics with the default help texts; those of a file may differ."""
SUCCESS = Metric(
    "accel_exporter.dcgm.success",
    "1 when DCGM, or the dcgm-exporter at --dcgm.url, answered the last request, else 0.",
    Kind.GAUGE,
    labels=("source",),
)
REFUSED = Metric(
    "accel_exporter.dcgm.lines.refused",
    "Lines of the last page of the dcgm-exporter at --dcgm.url that were left out: no gauge or counter, or too many.",
    Kind.GAUGE,
)
LOOK_SECONDS = 5.0
"""Seconds between two checks for new readings, from which rates and reasons for lowered clocks are derived."""

log = logging.getLogger(__name__)


def configure(values: Mapping[str, Value]) -> Mapping[str, Any] | None:
    """Returns the settings with the rows to show; None while no part of the collector is on. Raises SettingsError."""
    if values["compat.dcgm.csv"] and not values["compat.dcgm"]:
        raise SettingsError("compat.dcgm.csv has no effect without compat.dcgm; give both")
    if not (values["compat.dcgm"] or values["dcgm.url"] or values["dcgm.bindings"]):
        return None
    if values["dcgm.url"]:
        urls.checked("dcgm.url", str(values["dcgm.url"]), "http://localhost:9400/metrics")
    bindings = Path(str(values["dcgm.bindings"]))
    if values["dcgm.bindings"] and not (bindings / "pydcgm.py").is_file():
        raise SettingsError(
            f"dcgm.bindings: there is no pydcgm.py in {bindings}; "
            "DCGM 4 has it in /usr/share/datacenter-gpu-manager-4/bindings/python3"
        )
    file = str(values["compat.dcgm.csv"])
    return {**values, "rows": csv.read(Path(file)) if file else csv.default()}


def create(node: Node) -> Dcgm:
    return Dcgm(node)


class Dcgm:
    """Shows readings of the NVML collector under other names, and those of up to two more sources in the background."""

    name = "dcgm"

    def __init__(self, node: Node) -> None:
        settings = node.settings
        self._gpus = node.gpus
        self._owner = EntityOwners(node.allocations, labels_of(node.processes, node.proc))
        self._derived = Derived()
        self._rows: tuple[csv.FieldRow, ...] = settings["rows"] if settings["compat.dcgm"] else ()
        hostname = node_name()
        self._series = DcgmSeries(
            self._rows, settings["compat.dcgm.names"], settings["compat.hostname-label"], hostname
        )
        interval = settings["dcgm.interval"]
        from exporter.compat.dcgm.endpoint import PageReader, Passthrough  # with urllib.request

        self._endpoint = PageReader(settings["dcgm.url"], interval) if settings["dcgm.url"] else None
        self._passthrough = Passthrough()
        bindings = settings["dcgm.bindings"]
        self._profiling = DcgmProfiling(Path(bindings), settings["dcgm.host-engine"], interval) if bindings else None
        self._looker = Poller("dcgm looker", self._look, LOOK_SECONDS, first_after=LOOK_SECONDS)

    def start(self) -> None:
        """Starts the other sources, and logs the selected fields that no source fills."""
        for row in self._rows:
            if row.field is None and self._endpoint is None:
                log.warning("%s (line %d) is not filled: %s", row.name, row.line, csv.why_unread(row.name))
        self._gpus.listen(self._derived.event)
        if self._endpoint is not None:
            self._endpoint.start()
        if self._profiling is not None:
            self._gpus.supplement(self.name, self._profiling.readings)
            self._profiling.start()
        if self._rows:
            self._looker.start()

    def collect(self) -> Iterator[Sample]:
        """Yields all known series. Raises Unavailable without NVML and without another source."""
        snapshot = self._gpus.snapshot()
        if snapshot.state == "absent" and self._endpoint is None and self._profiling is None:
            raise Unavailable(f"there is no NVML to fill the fields: {snapshot.reason}", "see the collector nvml")
        self._derived.look(snapshot)
        page = self._endpoint.page() if self._endpoint is not None else None
        if page is not None:
            yield from self._passthrough.samples(page, snapshot, self._owner)
            yield REFUSED.sample(page.refused)
        shown = self._passthrough.shown(page) if page is not None else frozenset()
        yield from self._series.samples(snapshot, self._derived.readings, self._profiled, self._owner, shown)
        for source, other in (("endpoint", self._endpoint), ("bindings", self._profiling)):
            if other is not None:
                yield SUCCESS.sample(int(not other.failure), {"source": source})
                age = other.age()
                if age is not None:
                    yield status.SOURCE_AGE.sample(age, {"source": f"dcgm_{source}"})

    def problems(self) -> Iterator[str]:
        """Yields the problems for the landing page."""
        if self._endpoint is not None and self._endpoint.failure:
            yield f"dcgm-exporter cannot be read: {self._endpoint.failure}"
        if self._profiling is not None and self._profiling.failure:
            yield f"DCGM cannot be read: {self._profiling.failure}"

    def close(self) -> None:
        self._looker.close()
        self._gpus.unlisten(self._derived.event)
        if self._endpoint is not None:
            self._endpoint.close(1.0)
        if self._profiling is not None:
            self._gpus.supplement(self.name, None)
            self._profiling.close()

    def _profiled(self, entity: Entity) -> Values:
        """Returns DCGM's values of a whole GPU; none for an instance, which DCGM is not queried for."""
        return self._profiling.values(entity.gpu.uuid) if self._profiling is not None and not entity.migs else {}

    def _look(self) -> None:
        self._derived.look(self._gpus.snapshot())
