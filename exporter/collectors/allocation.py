"""Allocation of GPUs: the kubelet's device allocations, and the jobs that a Slurm prolog wrote into a folder."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from exporter.background.poller import Poller
from exporter.bpf import status
from exporter.kubernetes import podresources, pods
from exporter.kubernetes.api import ACCOUNT, Api
from exporter.kubernetes.podresources import ContainerDevice
from exporter.kubernetes.pods import Pod
from exporter.model import Kind, Metric, Sample, Unavailable
from exporter.node import Node
from exporter.options import Option, Value
from exporter.resolve import pod_workload, slurm
from exporter.resolve.allocations import Allocation, of_containers, of_jobs
from exporter.resolve.gpu import Inventory
from exporter.resolve.slurm import JobGpu
from exporter.resolve.source import Source

SOCKET, INTERVAL, FOLDER = "kubernetes.pod-resources-socket", "kubernetes.interval", "slurm.mapping-dir"
LABELS, URL = "kubernetes.pod-labels", "kubernetes.pods-url"
WORKLOADS = "kubernetes.workloads"
TOKEN, AUTHORITY = "kubernetes.token-file", "kubernetes.ca-file"
FOLDER_VARIABLE = "DCGM_HPC_JOB_MAPPING_DIR"
OPTIONS = (
    Option(
        "collector.allocation",
        True,
        "Enable the allocation collector. Allocation of GPUs to pods and Slurm jobs.",
        "allocation",
    ),
    Option(
        SOCKET,
        str(podresources.SOCKET),
        "Socket of the kubelet's PodResources API. Empty: none.",
        "allocation",
        metavar="PATH",
    ),
    Option(
        INTERVAL,
        30.0,
        "Interval between readings of the kubelet and of --slurm.mapping-dir.",
        "allocation",
        duration=True,
        least=1,
        most=86_400,
    ),
    Option(
        LABELS,
        (),
        "Labels of pods that gpu_allocation_info gets as label_NAME. Empty: pods are not listed for labels.",
        "allocation",
        metavar="NAME,NAME",
    ),
    Option(
        WORKLOADS,
        False,
        "Add each pod's workload, its kind and its queue to the info metrics of GPUs and processes. Lists pods.",
        "allocation",
    ),
    Option(
        URL,
        "",
        "URL of this node's pods, of the kubelet (/pods) or the API server. Empty: the API server by a pod's "
        "variables.",
        "allocation",
        metavar="URL",
    ),
    Option(
        TOKEN,
        str(ACCOUNT / "token"),
        "File with the token for --kubernetes.pods-url, sent over https only. Empty: none.",
        "allocation",
        metavar="FILE",
    ),
    Option(
        AUTHORITY,
        str(ACCOUNT / "ca.crt"),
        "File with the certificate authorities for --kubernetes.pods-url. Empty: the system's.",
        "allocation",
        metavar="FILE",
    ),
    Option(
        FOLDER,
        "",
        f"Folder of dcgm-exporter's HPC mapping: a file of jobs for each GPU. Empty: {FOLDER_VARIABLE}, or none.",
        "allocation",
        metavar="DIR",
    ),
)
INFO = Metric(
    "gpu.allocation_info",
    "Always 1: allocation of a GPU, or of a MIG device, to a container (resource and device as the kubelet names "
    "them) or to a Slurm job. Join it on gpu_uuid. A time-sliced GPU has several series; gpu is absent where the "
    "device's name does not identify the GPU. --kubernetes.pod-labels adds labels of the pod as label_NAME, "
    "--kubernetes.workloads adds the pod's workload.",
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
        *pod_workload.NAMES,
    ),
)
SUCCESS = Metric(
    "accel_exporter.allocation.success",
    "1 when the last reading of the source (kubelet, slurm, or pods: labels and workloads of pods) succeeded, else 0.",
    Kind.GAUGE,
    labels=("source",),
)
INVALID = Metric(
    "accel_exporter.allocation.invalid",
    "Number of pods that the last reading of the source (kubelet or pods) omitted because of an invalid name or label. "
    "The log names each pod once.",
    Kind.GAUGE,
    labels=("source",),
)
STALE = 3
"""Intervals for which a reading counts."""
MOST_SECONDS = 10.0
log = logging.getLogger(__name__)


def configure(values: Mapping[str, Value]) -> Mapping[str, Any] | None:
    """Return the settings, or None when the collector is switched off. Raises SettingsError."""
    if not values["collector.allocation"]:
        return None
    wanted = values[LABELS]
    names = pods.label_names(wanted if isinstance(wanted, tuple) else ())
    return {
        **values,
        FOLDER: values[FOLDER] or os.environ.get(FOLDER_VARIABLE, ""),
        LABELS: names,
        URL: pods.url_of(str(values[URL]), os.environ) if names or values[WORKLOADS] else "",
    }


def create(node: Node) -> AllocationCollector:
    return AllocationCollector(node)


def sources(
    settings: Mapping[str, Any], now: Callable[[], float] = time.monotonic
) -> tuple[Source[ContainerDevice], Source[JobGpu], Source[Pod]]:
    """Return the kubelet, the mapping folder and the list of pods as unread sources; `settings` are configure()'s."""
    interval = float(settings[INTERVAL])
    seconds, keep = min(interval, MOST_SECONDS), STALE * interval
    socket, folder, names = Path(settings[SOCKET]), Path(settings[FOLDER]), settings[LABELS]
    workloads = bool(settings[WORKLOADS])
    api = Api(settings[URL], _file(settings[TOKEN]), _file(settings[AUTHORITY]), seconds)
    return (
        Source("kubelet", settings[SOCKET], lambda: podresources.container_devices(socket, seconds), keep, now),
        Source("slurm", settings[FOLDER], lambda: slurm.job_gpus(folder), keep, now),
        Source("pods", settings[URL], lambda: pods.pods(api, names, workloads), keep, now),
    )


class AllocationCollector:
    """Reads the sources of allocations in the background, so that no scrape waits for a hanging kubelet."""

    name = "allocation"

    def __init__(self, node: Node, now: Callable[[], float] = time.monotonic) -> None:
        self.node = node
        self._kubelet, self._slurm, self._pods = self._sources = sources(node.settings, now)
        names = node.settings[LABELS]
        self._info = replace(INFO, labels=(*INFO.labels, *names.values()))
        self._poller = Poller("allocations", self.read, float(node.settings[INTERVAL]), steady=True)

    def start(self) -> None:
        self._poller.start()

    def read(self) -> None:
        """Read every source now, each within MOST_SECONDS, and publish the allocations to the other collectors."""
        for source in self._sources:
            before = source.reasons
            if source.read(may_be_absent=source is self._kubelet):
                log.warning("%s", source.failure)
            for reason in source.reasons:
                if reason not in before:
                    log.warning("%s: left out %s", source.location, reason)
        if not self._poller.closing.is_set():
            self._publish()

    def collect(self) -> Iterator[Sample]:
        """Yield the allocations of the last readings. Raises Unavailable while there is no kubelet and no folder."""
        allocations = self._publish()
        if not (self._kubelet.exists or self._slurm.exists):
            paths = " and ".join(source.location for source in (self._kubelet, self._slurm) if source.location)
            reason = (
                f"neither a kubelet nor a Slurm mapping folder: there is no {paths}"
                if paths
                else "no source is configured"
            )
            raise Unavailable(reason, f"give --{SOCKET} or --{FOLDER} where GPUs are allocated to pods or jobs")
        different = {tuple(allocation.labels.items()): allocation.labels for allocation in allocations}
        yield from (self._info.sample(1, labels) for labels in different.values())
        for source in self._sources:
            if source.exists and (source.age is not None or source.failure):
                yield SUCCESS.sample(int(source.fresh and not source.failure), {"source": source.name})
                if source is not self._slurm:
                    yield INVALID.sample(source.invalid, {"source": source.name})
                if source.age is not None:
                    yield status.SOURCE_AGE.sample(source.age, {"source": f"allocation_{source.name}"})

    def problems(self) -> Iterator[str]:
        """Yield the failures of the sources, for the landing page."""
        for source in self._sources:
            if source.exists and source.failure:
                yield source.failure
            yield from (f"{source.location}: left out {reason}" for reason in source.reasons)

    def close(self) -> None:
        self._poller.close(1.0)
        self.node.allocations.replace(())
        self.node.workloads.replace({})

    def _publish(self) -> list[Allocation]:
        """Publish the allocations to the other collectors and return them."""
        inventory = Inventory(self.node.gpus.snapshot())
        listed = {(pod.namespace, pod.name): pod for pod in self._pods.items()}
        workloads = {of: pod.workload for of, pod in listed.items() if pod.workload}
        self.node.workloads.replace(workloads)
        labels = {of: pod.labels for of, pod in listed.items()}
        containers = of_containers(self._kubelet.items(), inventory, labels, workloads)
        found = [*containers, *of_jobs(self._slurm.items(), inventory)]
        self.node.allocations.replace(found)
        return found


def _file(path: str) -> Path | None:
    return Path(path) if path else None
