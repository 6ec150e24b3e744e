"""The labels of this node's pods: a list of pods in JSON, by the API server or by the kubelet's /pods.

https://kubernetes.io/docs/reference/using-api/api-concepts/ describes the request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from exporter import urls
from exporter.kubernetes.api import Api, fetch, server_of
from exporter.model import Labels
from exporter.nodename import node_name
from exporter.options import SettingsError
from exporter.resolve.pod_workload import workload_of
from exporter.resolve.source import Listed

MOST_PODS = 4096
MOST_NAMES = 8
"""So that no series has more than 20 label names."""
_LONGEST = 63
"""Length of a label's value in Kubernetes."""
_NAME = re.compile(r"(?:[a-z0-9.-]{1,253}/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_ACCEPT = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1, application/json"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod with its configured labels, by their names as labels of a metric, and those of its workload."""

    namespace: str
    name: str
    labels: Labels
    workload: Labels = field(default_factory=dict)


def label_names(wanted: Collection[str]) -> dict[str, str]:
    """Return the label names of metrics by the label names of pods: label_ and the sanitized name.

    Raises SettingsError for invalid names, for too many, and for two with the same sanitized name.
    """
    if len(wanted) > MOST_NAMES:
        raise SettingsError(f"kubernetes.pod-labels: {MOST_NAMES} labels at most; leave some out")
    names: dict[str, str] = {}
    for name in wanted:
        if not _NAME.fullmatch(name):
            raise SettingsError(f"kubernetes.pod-labels: {name!r} is no name of a label, such as app or team.org/name")
        made = "label_" + re.sub("[^A-Za-z0-9_]", "_", name)
        if made in names.values():
            raise SettingsError(f"kubernetes.pod-labels: two labels would both be called {made}; leave one out")
        names[name] = made
    return names


def url_of(given: str, environ: Mapping[str, str]) -> str:
    """Return the configured URL, else the API server's for this node from a pod's variables. Raises SettingsError."""
    if given:
        return urls.checked("kubernetes.pods-url", given, "https://localhost:10250/pods")
    server = server_of(environ)
    if not server:
        raise SettingsError(
            "kubernetes.pod-labels and kubernetes.workloads need kubernetes.pods-url outside a pod, such as https://localhost:10250/pods"
        )
    node = node_name(environ)
    # Version 0 is answered from the server's memory, without a query to etcd.
    query = urlencode({"fieldSelector": f"spec.nodeName={node}", "resourceVersion": "0"})
    return f"{server}/api/v1/pods?{query}"


def pods(api: Api, names: Mapping[str, str], workloads: bool = False) -> Listed[Pod]:
    """Return the pods that have any of the labels in `names`, a mapping made by label_names(), or a known workload.

    Raises OSError when there is no answer within `api.seconds` or access is refused, ValueError when the answer is not
    a list of pods.
    """
    return parse(fetch(api, _ACCEPT, "list pods"), names, workloads)


def parse(answer: bytes, names: Mapping[str, str], workloads: bool = False) -> Listed[Pod]:
    """Return the pods of a PodList or PartialObjectMetadataList that have any of these labels, or a known workload.

    Omits pods with invalid names or labels. Raises ValueError if the answer is not a list of pods.
    """
    found = Listed[Pod]()
    try:
        items = json.loads(answer)["items"] or []
        if not isinstance(items, list):
            raise TypeError
        if len(items) > MOST_PODS:
            raise ValueError(f"more than {MOST_PODS} pods: the list is of more than one node")
        for item in items:
            try:
                found += _pod(item, names, workloads)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                found.leave_out(f"{_name(item)}: {error if isinstance(error, ValueError) else 'it is not a pod'}")
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("the answer is no list of pods") from error
    return found


def _pod(item: Any, names: Mapping[str, str], workloads: bool) -> Iterator[Pod]:
    metadata = item["metadata"]
    labels = metadata.get("labels") or {}
    known = {made: _value(labels[name]) for name, made in names.items() if labels.get(name)}
    workload = workload_of(metadata) if workloads else {}
    if known or workload:
        yield Pod(_value(metadata["namespace"], 253), _value(metadata["name"], 253), known, workload)


def _name(item: Any) -> str:
    """Return the name of an invalid pod for the log, "None" if it has none."""
    metadata = item.get("metadata") if isinstance(item, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"pod {str(name)[:80]!r}"


def _value(text: Any, most: int = _LONGEST) -> str:
    if not isinstance(text, str) or len(text) > most or not text.isprintable():
        raise ValueError(f"{str(text)[:80]!r} is no name or label of a pod")
    return text
