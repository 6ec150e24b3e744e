"""Which devices the kubelet gave to which container: its PodResources API, version v1, on a socket of this node.

Field numbers are those of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from exporter.kubernetes.protobuf import messages, text, texts

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
MOST_BYTES = 16 << 20
"""As much as NVIDIA's dcgm-exporter takes; a full node tells a few hundred kB."""
MOST_DEVICES = 8192
_LIST = "/v1.PodResourcesLister/List"
_DRIVER = "gpu.nvidia.com"
"""NVIDIA's driver for Dynamic Resource Allocation."""


@dataclass(frozen=True, slots=True)
class Given:
    """One device of a container. `resource` as in nvidia.com/gpu, or the driver's name of a claimed device."""

    device: str
    resource: str
    pod: str
    namespace: str
    container: str


def given(path: Path, seconds: float) -> list[Given]:
    """NVIDIA's devices that containers of this node have now.

    Raises OSError when the kubelet does not answer within `seconds`, ValueError when its answer cannot be understood.
    """
    from exporter.kubernetes.grpc import call  # 2 MB, for nodes that have a kubelet

    found: list[Given] = []
    for device in parse(call(path, _LIST, b"", seconds, MOST_BYTES)):
        found.append(device)
        if len(found) > MOST_DEVICES:
            raise ValueError(f"the kubelet tells of more than {MOST_DEVICES} GPUs")
    return found


def parse(answer: memoryview) -> Iterator[Given]:
    """NVIDIA's devices out of a ListPodResourcesResponse. Raises ValueError when it is none."""
    for pod in messages(answer, 1):
        pod_name, namespace = text(pod, 1), text(pod, 2)
        for container in messages(pod, 3):
            devices = [*_of_plugins(container), *_of_claims(container)]
            if devices:
                name = text(container, 1)
                yield from (Given(device, resource, pod_name, namespace, name) for device, resource in devices)


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
