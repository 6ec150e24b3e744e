"""The place of a node by its labels in Kubernetes: those of Kubernetes itself, of NVIDIA, and of clouds.

- https://kubernetes.io/docs/reference/labels-annotations-taints/ (zone and region; AKS has these only)
- https://docs.nvidia.com/topograph/reference/node-labels-and-annotations: network.topology.nvidia.com/…, of switches
  by name or as tier-N, from 1.0 on fabric.topograph.run/tier-N and accelerator.topograph.run/domain
- the GPU operator: nvidia.com/gpu.clique
- EKS: topology.k8s.aws/network-node-layer-N, of which the highest N is next to the node, and ultraserver-id of HyperPod
- GKE: cloud.google.com/gce-topology-block and -subblock
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote

from exporter import urls
from exporter.kubernetes.api import Api, fetch, server_of
from exporter.model import Labels
from exporter.nodename import node_name
from exporter.options import SettingsError
from exporter.topology.place import NAMES, OF_A_DEVICE, Place, is_text

KNOWN: Mapping[str, tuple[str, ...]] = {
    "region": ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"),
    "zone": ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
    "rack": ("topology.kubernetes.io/rack",),
    "leaf": (
        "fabric.topograph.run/tier-0",
        "network.topology.nvidia.com/tier-0",
        "network.topology.nvidia.com/leaf",
        "network.topology.nvidia.com/block",
        "cloud.google.com/gce-topology-subblock",
    ),
    "spine": (
        "fabric.topograph.run/tier-1",
        "network.topology.nvidia.com/tier-1",
        "network.topology.nvidia.com/spine",
        "cloud.google.com/gce-topology-block",
    ),
    "core": (
        "fabric.topograph.run/tier-2",
        "network.topology.nvidia.com/tier-2",
        "network.topology.nvidia.com/core",
        "network.topology.nvidia.com/datacenter",
    ),
    "nvlink_domain": (
        "nvidia.com/gpu.clique",
        "accelerator.topograph.run/domain",
        "topology.k8s.aws/ultraserver-id",
        "network.topology.nvidia.com/accelerator",
    ),
}
"""Labels of nodes by name of a place; the first that a node has counts."""
_ACCEPT = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json"
_LAYER = re.compile(r"topology\.k8s\.aws/network-node-layer-([1-9])", re.ASCII)
_LABEL = re.compile(r"(?:[a-z0-9.-]{1,253}/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)


def own_labels(given: Collection[str]) -> dict[str, str]:
    """Return the site's labels of nodes by NAMES, from texts as rack=example.com/rack. Raises SettingsError."""
    found: dict[str, str] = {}
    for text in given:
        name, _, label = text.partition("=")
        if name not in NAMES or not _LABEL.fullmatch(label):
            raise SettingsError(
                f"collector.topology.labels: {text!r} is none of {', '.join(NAMES)} with = and the name of a label, "
                "such as rack=example.com/rack"
            )
        found[name] = label
    return found


def url_of(given: str, environ: Mapping[str, str]) -> str:
    """Return the configured URL, else the API server's of this node from a pod's variables. Raises SettingsError."""
    example = "https://api:6443/api/v1/nodes/NAME"
    if given:
        return urls.checked("collector.topology.node-url", given, example)
    server = server_of(environ)
    if not server:
        raise SettingsError(
            f"collector.topology.node-labels needs collector.topology.node-url outside a pod, such as {example}"
        )
    return f"{server}/api/v1/nodes/{quote(node_name(environ), safe='')}?resourceVersion=0"


def place(api: Api, own: Mapping[str, str]) -> Place:
    """Return the place of the node at the URL; `own` are labels that come before KNOWN.

    Raises OSError without an answer, and ValueError when the answer is not a node.
    """
    return Place(labels_of(fetch(api, _ACCEPT, "get nodes"), own))


def labels_of(answer: bytes, own: Mapping[str, str]) -> Labels:
    """Return the place that a Node, or its PartialObjectMetadata, has in its labels. Raises ValueError."""
    try:
        labels: Mapping[str, Any] = json.loads(answer)["metadata"].get("labels") or {}
        texts = {name: value for name, value in labels.items() if is_text(value)}
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("the answer is no node") from error
    layers = [value for _, value in sorted(((found[1], value) for found, value in _layers(texts)), reverse=True)]
    found = dict(zip(OF_A_DEVICE, layers, strict=False))
    for name in NAMES:
        wanted = (own.get(name, ""), *KNOWN.get(name, ()))
        if value := next((texts[label] for label in wanted if label in texts), ""):
            found[name] = value
    return found


def _layers(texts: Mapping[str, str]) -> list[tuple[re.Match[str], str]]:
    return [(found, value) for name, value in texts.items() if (found := _LAYER.fullmatch(name))]
