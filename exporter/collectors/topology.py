"""Place of the node in its cluster: zone, rack, switches and NVLink domain."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from exporter.background.poller import Poller
from exporter.bpf import status
from exporter.kubernetes.api import ACCOUNT, Api
from exporter.model import Kind, Metric, Sample
from exporter.node import Node
from exporter.nodename import node_name
from exporter.nvml.samples import nvlink_domain
from exporter.options import Flag, Value
from exporter.resolve.source import Source
from exporter.topology import inventory, node_labels, slurm
from exporter.topology.place import NAMES, OF_A_DEVICE, Place

INFO = Metric(
    "accel.node.topology_info",
    "Always 1: place of the node in its cluster, by the labels that are known. leaf is the switch, or the provider's "
    "group of nodes, next to the node; spine and core are the levels above it; block is Slurm's block; nvlink_domain "
    "is the cluster UUID and clique of the node's GPUs, or the value of a node label. Join it on (job, instance).",
    Kind.GAUGE,
    labels=NAMES,
)
DEVICE = Metric(
    "rdma.device.topology_info",
    "Always 1: switches of one RDMA device, from --collector.topology.file. For a device without this series the "
    "switches of the node count.",
    Kind.GAUGE,
    labels=("device", *OF_A_DEVICE),
)
SUCCESS = Metric(
    "accel_exporter.topology.success",
    "1 when the last reading of the source (file, slurm or node_labels) succeeded, else 0.",
    Kind.GAUGE,
    labels=("source",),
)
FLAGS = (
    Flag(
        "node-labels",
        False,
        "Read the labels of this node in Kubernetes, which needs the right to get nodes: zone, region, and the labels "
        "of NVIDIA topograph, the GPU operator, EKS and GKE.",
    ),
    Flag("labels", (), "Labels of nodes with priority over the known ones, as rack=example.com/rack. Empty: none."),
    Flag("slurm-conf", "", "File topology.conf or topology.yaml of Slurm. Empty: none."),
    Flag(
        "file",
        "",
        "File with lines of NODES NAME=VALUE, such as node[01-32] rack=r7 leaf=l3. It has priority over other "
        "sources. Empty: none.",
    ),
    Flag("interval", 300.0, "Interval between readings, in seconds.", 1, 86_400),
    Flag("node-url", "", "URL of this node in Kubernetes. Empty: the API server by a pod's variables."),
    Flag("token-file", str(ACCOUNT / "token"), "File with the token for the URL, sent over https only. Empty: none."),
    Flag(
        "ca-file",
        str(ACCOUNT / "ca.crt"),
        "File with the certificate authorities for the URL. Empty: the system's.",
    ),
)
KEPT = 86_400.0
"""Seconds for which a reading counts at least: cables stay where they are while the API server is away."""
MOST_SECONDS = 10.0
log = logging.getLogger(__name__)


def configure(values: Mapping[str, Value]) -> Mapping[str, Any]:
    """Return the settings. Raises SettingsError."""
    given = values["labels"]
    return {
        **values,
        "labels": node_labels.own_labels(given if isinstance(given, tuple) else ()),
        "node-url": node_labels.url_of(str(values["node-url"]), os.environ) if values["node-labels"] else "",
    }


def create(node: Node) -> TopologyCollector:
    return TopologyCollector(node)


def sources(
    settings: Mapping[str, Any], node: str, now: Callable[[], float] = time.monotonic
) -> tuple[Source[Place], ...]:
    """Return the sources, unread, the first to count first; `settings` are configure()'s, `node` is the node's name."""
    interval = float(settings["interval"])
    keep, seconds = max(KEPT, 3 * interval), min(interval, MOST_SECONDS)
    file, conf, url = (str(settings[name]) for name in ("file", "slurm-conf", "node-url"))
    token, ca = (Path(settings[name]) if settings[name] else None for name in ("token-file", "ca-file"))
    api = Api(url, token, ca, seconds, "collector.topology")
    what = "the place of the node"
    return (
        Source("file", file, lambda: (inventory.place(Path(file), node),), keep, now, what),
        Source("slurm", conf, lambda: (slurm.place(Path(conf), node),), keep, now, what),
        Source("node_labels", url, lambda: (node_labels.place(api, settings["labels"]),), keep, now, what),
    )


class TopologyCollector:
    """Reads the sources in the background: neither the API server nor a file on a hung mount keeps a scrape waiting."""

    name = "topology"

    def __init__(self, node: Node, now: Callable[[], float] = time.monotonic) -> None:
        self.node = node
        self._sources = tuple(it for it in sources(node.settings, node_name(), now) if it.location)
        self._poller = Poller("topology", self.read, float(node.settings["interval"]), steady=True)

    def start(self) -> None:
        if self._sources:
            self._poller.start()

    def read(self) -> None:
        """Read every source now, and log new failures."""
        for source in self._sources:
            if source.read():
                log.warning("%s", source.failure)

    def collect(self) -> Iterator[Sample]:
        """Yield the place by the last readings, and the NVLink domain by NVML where no source names one."""
        place = Place()
        for source in self._sources:
            for found in source.items():
                place = place.over(found)
        domain = place.labels.get("nvlink_domain") or nvlink_domain(self.node.gpus.snapshot())
        if labels := {**place.labels, **({"nvlink_domain": domain} if domain else {})}:
            yield INFO.sample(1, labels)
        yield from (DEVICE.sample(1, {"device": name, **own}) for name, own in place.devices.items())
        for source in self._sources:
            if source.age is not None or source.failure:
                yield SUCCESS.sample(int(source.fresh and not source.failure), {"source": source.name})
            if source.age is not None:
                yield status.SOURCE_AGE.sample(source.age, {"source": f"topology_{source.name}"})

    def problems(self) -> Iterator[str]:
        """Yield the failures of the sources, for the landing page."""
        yield from (source.failure for source in self._sources if source.failure)

    def close(self) -> None:
        self._poller.close(1.0)
