"""Whom GPUs are given to: the kubelet's device allocations, and the jobs that a Slurm prolog wrote down."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from exporter.bpf import status
from exporter.kubernetes import podresources, pods
from exporter.kubernetes.podresources import Given
from exporter.kubernetes.pods import Api, Pod
from exporter.model import Kind, Metric, Sample, Unavailable
from exporter.node import Node
from exporter.options import Option, Value
from exporter.resolve import slurm
from exporter.resolve.allocations import Allocation, of_containers, of_jobs
from exporter.resolve.gpu import Inventory
from exporter.resolve.slurm import Mapped
from exporter.resolve.source import Source

SOCKET, INTERVAL, FOLDER = "kubernetes.pod-resources-socket", "kubernetes.interval", "slurm.mapping-dir"
LABELS, URL = "kubernetes.pod-labels", "kubernetes.pods-url"
TOKEN, AUTHORITY = "kubernetes.token-file", "kubernetes.ca-file"
FOLDER_VARIABLE = "DCGM_HPC_JOB_MAPPING_DIR"
OPTIONS = (
    Option("collector.allocation", True, "whom GPUs are given to, by the kubelet and by Slurm", "allocation"),
    Option(
        SOCKET, str(podresources.SOCKET), "the kubelet's PodResources API; empty: none", "allocation", metavar="PATH"
    ),
    Option(
        INTERVAL,
        30.0,
        "between two questions to the kubelet, or looks at the folder",
        "allocation",
        duration=True,
        least=1,
        most=86_400,
    ),
    Option(
        LABELS,
        (),
        "labels of pods that gpu_allocation_info has too, as label_NAME; empty: pods are not listed",
        "allocation",
        metavar="NAME,NAME",
    ),
    Option(
        URL,
        "",
        "lists this node's pods: the kubelet's /pods, or the API server's; empty: the API server by a pod's variables",
        "allocation",
        metavar="URL",
    ),
    Option(
        TOKEN,
        str(pods.ACCOUNT / "token"),
        "token for it, sent over https only; empty: none",
        "allocation",
        metavar="FILE",
    ),
    Option(
        AUTHORITY,
        str(pods.ACCOUNT / "ca.crt"),
        "who vouches for it; empty: the system's authorities",
        "allocation",
        metavar="FILE",
    ),
    Option(
        FOLDER,
        "",
        f"dcgm-exporter's HPC mapping folder: a file of jobs for each GPU; empty: {FOLDER_VARIABLE}, or none",
        "allocation",
        metavar="DIR",
    ),
)
INFO = Metric(
    "gpu.allocation_info",
    "Always 1: this GPU, or MIG device, is given to that container (resource and device as the kubelet calls them) or "
    "Slurm job. Join it on gpu_uuid. Several have a GPU that is sliced by time; gpu is missing where the device's name "
    "does not tell which one it is. --kubernetes.pod-labels adds labels of the pod, as label_NAME.",
    Kind.GAUGE,
    labels=(
        "gpu",
        "gpu_uuid",
        "mig_uuid",
        "pod",
        "namespace",
        "container",
        "resource",
        "device",
        "slurm_job_id",
    ),
)
SUCCESS = Metric(
    "accel_exporter.allocation.success",
    "1 when the source (kubelet, slurm, or pods: their labels) could be read when it last was, else 0.",
    Kind.GAUGE,
    labels=("source",),
)
STALE = 3
"""What was read counts for so many intervals."""
MOST_SECONDS = 10.0
log = logging.getLogger(__name__)


def configure(values: Mapping[str, Value]) -> Mapping[str, Any] | None:
    """The settings; None when it is switched off. Raises SettingsError."""
    if not values["collector.allocation"]:
        return None
    wanted = values[LABELS]
    names = pods.label_names(wanted if isinstance(wanted, tuple) else ())
    return {
        **values,
        FOLDER: values[FOLDER] or os.environ.get(FOLDER_VARIABLE, ""),
        LABELS: names,
        URL: pods.url_of(str(values[URL]), os.environ) if names else "",
    }


def create(node: Node) -> AllocationCollector:
    return AllocationCollector(node)


def sources(
    settings: Mapping[str, Any], now: Callable[[], float] = time.monotonic
) -> tuple[Source[Given], Source[Mapped], Source[Pod]]:
    """The kubelet, the mapping folder and the list of pods, as configure() gives the settings; none is read yet."""
    interval = float(settings[INTERVAL])
    seconds, keep = min(interval, MOST_SECONDS), STALE * interval
    socket, folder, names = Path(settings[SOCKET]), Path(settings[FOLDER]), settings[LABELS]
    api = Api(settings[URL], _file(settings[TOKEN]), _file(settings[AUTHORITY]), seconds)
    return (
        Source("kubelet", settings[SOCKET], lambda: podresources.given(socket, seconds), keep, now),
        Source("slurm", settings[FOLDER], lambda: slurm.mapped(folder), keep, now),
        Source("pods", settings[URL], lambda: pods.pods(api, names), keep, now),
    )


class AllocationCollector:
    """Reads its sources in the background, so that a kubelet that hangs costs a scrape nothing."""

    name = "allocation"

    def __init__(self, node: Node, now: Callable[[], float] = time.monotonic) -> None:
        self._node, self._interval = node, float(node.settings[INTERVAL])
        self._kubelet, self._slurm, self._pods = self._sources = sources(node.settings, now)
        names = node.settings[LABELS]
        self._info = replace(INFO, labels=(*INFO.labels, *names.values()))
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="allocations", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def read(self) -> None:
        """Asks every source now, which takes MOST_SECONDS for each at most, and tells those who ask by UUID."""
        for source in self._sources:
            if source.read(may_be_absent=source is self._kubelet):
                log.warning("%s", source.failure)
        if not self._closing.is_set():
            self._tell()

    def collect(self) -> Iterator[Sample]:
        """What was read last. Raises Unavailable while there is no kubelet, which may come, and no folder is given."""
        allocations = self._tell()
        if not (self._kubelet.there or self._slurm.there):
            where = " and ".join(source.where for source in (self._kubelet, self._slurm) if source.where)
            reason = (
                f"neither a kubelet nor a Slurm mapping folder: there is no {where}" if where else "it has no source"
            )
            raise Unavailable(reason, f"give --{SOCKET} or --{FOLDER} where GPUs are given to pods or jobs")
        different = {tuple(it.labels.items()): it.labels for it in allocations}
        yield from (self._info.sample(1, labels) for labels in different.values())
        for source in self._sources:
            if source.there and (source.age is not None or source.failure):
                yield SUCCESS.sample(int(source.fresh and not source.failure), {"source": source.name})
                if source.age is not None:
                    yield status.SOURCE_AGE.sample(source.age, {"source": f"allocation_{source.name}"})

    def problems(self) -> Iterator[str]:
        """For the landing page."""
        for source in self._sources:
            if source.there and source.failure:
                yield source.failure

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(1)
        self._node.allocations.tell(())

    def _run(self) -> None:
        while not self._closing.is_set():
            began = time.monotonic()
            self.read()
            self._closing.wait(max(0.0, began + self._interval - time.monotonic()))

    def _tell(self) -> list[Allocation]:
        """Everybody on the node is told, and so is the caller."""
        inventory = Inventory(self._node.gpus.snapshot())
        of_pods = {(pod.namespace, pod.name): pod.labels for pod in self._pods.items()}
        containers = of_containers(self._kubelet.items(), inventory, of_pods)
        found = [*containers, *of_jobs(self._slurm.items(), inventory)]
        self._node.allocations.tell(found)
        return found


def _file(path: str) -> Path | None:
    return Path(path) if path else None
