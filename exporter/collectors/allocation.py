"""Whom GPUs are given to: the kubelet's device allocations, and the jobs that a Slurm prolog wrote down."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from exporter.bpf import status
from exporter.kubernetes import podresources
from exporter.kubernetes.podresources import Given
from exporter.model import Kind, Metric, Sample, Unavailable
from exporter.node import Node
from exporter.options import Option, SettingsError, Value
from exporter.resolve import slurm
from exporter.resolve.allocations import Allocation, of_containers, of_jobs
from exporter.resolve.gpu import Inventory
from exporter.resolve.slurm import Mapped

SOCKET, INTERVAL, FOLDER = "kubernetes.pod-resources-socket", "kubernetes.interval", "slurm.mapping-dir"
FOLDER_VARIABLE = "DCGM_HPC_JOB_MAPPING_DIR"
OPTIONS = (
    Option("collector.allocation", True, "whom GPUs are given to, by the kubelet and by Slurm", "allocation"),
    Option(
        SOCKET, str(podresources.SOCKET), "the kubelet's PodResources API; empty: none", "allocation", metavar="PATH"
    ),
    Option(INTERVAL, 30.0, "between two questions to the kubelet, or looks at the folder", "allocation", duration=True),
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
    "does not tell which one it is.",
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
    "1 when the source (kubelet, slurm) of allocations could be read when it last was, else 0.",
    Kind.GAUGE,
    labels=("source",),
)
STALE = 3
"""What was read counts for so many intervals."""
MOST_SECONDS = 10.0
log = logging.getLogger(__name__)
T = TypeVar("T")


def configure(values: Mapping[str, Value]) -> Mapping[str, Any] | None:
    """The settings; None when it is switched off. Raises SettingsError."""
    if not values["collector.allocation"]:
        return None
    if float(str(values[INTERVAL])) < 1:
        raise SettingsError(f"{INTERVAL}: 1s is the least")
    return {**values, FOLDER: values[FOLDER] or os.environ.get(FOLDER_VARIABLE, "")}


def create(node: Node) -> AllocationCollector:
    return AllocationCollector(node)


class AllocationCollector:
    """Reads both sources in the background, so that a kubelet that hangs costs a scrape nothing."""

    name = "allocation"

    def __init__(self, node: Node, now: Callable[[], float] = time.monotonic) -> None:
        self._node, self._interval = node, float(node.settings[INTERVAL])
        seconds = min(self._interval, MOST_SECONDS)
        keep = STALE * self._interval
        self._kubelet = Source[Given](
            "kubelet", str(node.settings[SOCKET]), lambda path: podresources.given(path, seconds), keep, now
        )
        self._slurm = Source[Mapped]("slurm", str(node.settings[FOLDER]), slurm.mapped, keep, now)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="allocations", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def collect(self) -> Iterator[Sample]:
        """What was read last. Raises Unavailable while there is no kubelet, which may come, and no folder is given."""
        self._tell()
        sources = [source for source in (self._kubelet, self._slurm) if source.there]
        if not sources:
            where = " and ".join(str(source.path) for source in (self._kubelet, self._slurm) if source.path)
            reason = (
                f"neither a kubelet nor a Slurm mapping folder: there is no {where}" if where else "it has no source"
            )
            raise Unavailable(reason, f"give --{SOCKET} or --{FOLDER} where GPUs are given to pods or jobs")
        allocations = {tuple(it.labels.items()): it.labels for it in self._allocations()}
        yield from (INFO.sample(1, labels) for labels in allocations.values())
        for source in sources:
            yield from source.samples()

    def problems(self) -> Iterator[str]:
        """For the landing page."""
        for source in (self._kubelet, self._slurm):
            if source.there and source.failure:
                yield source.failure

    def close(self) -> None:
        self._closing.set()
        self._node.allocations.tell(())
        self._thread.join(1)

    def _run(self) -> None:
        while not self._closing.is_set():
            began = time.monotonic()
            self._kubelet.read(may_be_absent=True)
            self._slurm.read()
            if not self._closing.is_set():
                self._tell()
            self._closing.wait(max(0.0, began + self._interval - time.monotonic()))

    def _tell(self) -> None:
        self._node.allocations.tell(self._allocations())

    def _allocations(self) -> list[Allocation]:
        inventory = Inventory(self._node.gpus.snapshot())
        return [*of_containers(self._kubelet.items(), inventory), *of_jobs(self._slurm.items(), inventory)]


class Source(Generic[T]):
    """Something at a path that is read now and then; what was read counts for `keep` seconds."""

    def __init__(
        self,
        name: str,
        path: str,
        read: Callable[[Path], list[T]],
        keep: float,
        now: Callable[[], float],
    ) -> None:
        self.path = Path(path) if path else None
        self._name, self._read, self._keep, self._now = name, read, keep, now
        self.there = self.path is not None
        """Whether there is anything to read, even if it cannot be."""
        self.failure = f"{self.path} has not been read yet"
        """Why it could not be read when it last was; empty when it could."""
        self._last: tuple[float, list[T]] | None = None

    def read(self, may_be_absent: bool = False) -> None:
        """Reads it now. A failure is logged once while it stays the same."""
        if self.path is None:
            return
        said = self.failure
        try:
            items = self._read(self.path)
        except (OSError, ValueError) as error:
            # What was there a moment ago is about to come back: the kubelet makes its socket anew when it starts.
            self.there = not (may_be_absent and isinstance(error, FileNotFoundError)) or bool(self.items())
            self.failure = self._sentence(error)
            if self.there and self.failure != said:
                log.warning("%s", self.failure)
        else:
            self._last, self.there, self.failure = (self._now(), items), True, ""

    def items(self) -> list[T]:
        """What was read, unless that is too long ago."""
        last = self._last
        return last[1] if last and self._now() - last[0] <= self._keep else []

    def samples(self) -> Iterator[Sample]:
        yield SUCCESS.sample(int(not self.failure), {"source": self._name})
        last = self._last
        if last:
            yield status.SOURCE_AGE.sample(self._now() - last[0], {"source": f"allocation_{self._name}"})

    def _sentence(self, error: Exception) -> str:
        if isinstance(error, PermissionError):
            return f"{self.path} may not be used by this user: run as root, or grant access to it"
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return f"allocations of {self._name} are not known, {self.path}: {reason}"
