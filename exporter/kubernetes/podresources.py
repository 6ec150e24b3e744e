"""The devices that the kubelet allocated to containers: its PodResources API, version v1, on a socket of this node.

Field numbers are those of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from exporter.kubernetes.protobuf import messages, text, texts
from exporter.resolve.source import Listed

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
MOST_BYTES = 16 << 20
"""The limit of NVIDIA's dcgm-exporter; the answer of a full node has a few hundred kB."""
MOST_DEVICES = 8192
_LIST = "/v1.PodResourcesLister/List"
_DRIVER = "gpu.nvidia.com"
"""NVIDIA's driver for Dynamic Resource Allocation."""


@dataclass(frozen=True, slots=True)
class ContainerDevice:
    """One device of a container. `resource` as in nvidia.com/gpu, or the driver's name of a claimed device."""

    device: str
    resource: str
    pod: str
    namespace: str
    container: str


def container_devices(path: Path, seconds: float) -> Listed[ContainerDevice]:
    """Return NVIDIA's devices that containers of this node have now, from the kubelet's socket `path`.

    Raises OSError when the kubelet does not answer within `seconds`, ValueError when its answer is malformed.
    """
    from exporter.kubernetes.grpc import call  # 2 MB, for nodes that have a kubelet

    return parse(call(path, _LIST, b"", seconds, MOST_BYTES))


def parse(answer: memoryview) -> Listed[ContainerDevice]:
    """Return NVIDIA's devices in a ListPodResourcesResponse, without those of pods that are malformed or have invalid
    names.

    Raises ValueError when the message is malformed, or has too many devices.
    """
    found = Listed[ContainerDevice]()
    for pod in messages(answer, 1):
        try:
            found += list(_of_pod(pod))
        except ValueError as error:
            found.leave_out(f"{_name(pod)}: {error}")
        if len(found) > MOST_DEVICES:
            raise ValueError(f"the kubelet reports more than {MOST_DEVICES} GPUs")
    return found


def _of_pod(pod: memoryview) -> Iterator[ContainerDevice]:
    pod_name, namespace = text(pod, 1), text(pod, 2)
    for container in messages(pod, 3):
        devices = [*_of_plugins(container), *_of_claims(container)]
        if devices:
            name = text(container, 1)
            yield from (ContainerDevice(device, resource, pod_name, namespace, name) for device, resource in devices)


def _name(pod: memoryview) -> str:
    """Return the name of an invalid pod for the log, or "a pod" if it has none."""
    try:
        return f"pod {text(pod, 1)!r}"
    except ValueError:
        return "a pod"


def _of_plugins(container: memoryview) -> Iterator[tuple[str, str]]:
    for devices in messages(container, 2):
        resource = text(devices, 1)
        if resource.startswith("nvidia.com/"):
            yield from ((device, resource) for device in texts(devices, 2))


def _of_claims(container: memoryview) -> Iterator[tuple[str, str]]:
    for dynamic in messages(container, 5):
        for claim in messages(dynamic, 4):
            driver = text(claim, 2)
            if driver == _DRIVER:
                yield text(claim, 4), driver
