"""The workload of a pod, by what its controllers write into the pod's metadata.

Labels: JobSet https://jobset.sigs.k8s.io/docs/ (also TrainJob's, which has a JobSet of its name), Kubeflow's training
operator (common labels in pkg/apis/kubeflow.org/v1), KubeRay (ray-operator/controllers/ray/utils/constant.go),
LeaderWorkerSet, Volcano, Kueue (pkg/controller/constants; a group of plain pods has a name), and Job
https://kubernetes.io/docs/reference/labels-annotations-taints/.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from exporter.model import Labels

NAMES = ("workload", "workload_kind", "queue")
_ORIGIN, _ORIGIN_KIND = "ray.io/originated-from-cr-name", "ray.io/originated-from-crd"
_TRAINING, _OPERATOR = "training.kubeflow.org/job-name", "training.kubeflow.org/operator-name"
_BY_LABEL = (
    ("raycluster", "ray.io/cluster"),
    ("leaderworkerset", "leaderworkerset.sigs.k8s.io/name"),
    ("jobset", "jobset.sigs.k8s.io/jobset-name"),
    ("volcanojob", "volcano.sh/job-name"),
    ("job", "batch.kubernetes.io/job-name"),
    ("job", "job-name"),
    ("podgroup", "kueue.x-k8s.io/pod-group-name"),
)
"""Kinds by the label with the workload's name, outer ones first: a JobSet's pods are those of its Jobs too."""
_QUEUES = ("kueue.x-k8s.io/local-queue-name", "kueue.x-k8s.io/queue-name", "volcano.sh/queue-name")
_QUEUE_ANNOTATION = "scheduling.volcano.sh/queue-name"
_TEXT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)
_HASH = "pod-template-hash"


def workload_of(metadata: Mapping[str, Any]) -> Labels:
    """Return workload, workload_kind and queue of a pod from its metadata, without those that are not known.

    The first controller of the list that names its workload counts, else the pod's owner; a ReplicaSet that has the
    name of a Deployment and the hash of the pod's template is that Deployment's. Values that are no names are unknown.
    """
    labels, annotations = _texts(metadata.get("labels")), _texts(metadata.get("annotations"))
    name, kind = _named(labels) or _owner(metadata.get("ownerReferences"), labels.get(_HASH, ""))
    queue = next((labels[it] for it in _QUEUES if it in labels), annotations.get(_QUEUE_ANNOTATION, ""))
    found = zip(NAMES, (name, kind if name else "", queue), strict=True)
    return {label: value for label, value in found if value}


def _named(labels: Labels) -> tuple[str, str] | None:
    """Return name and kind of the workload that labels name, None where they name none."""
    if _ORIGIN in labels and _ORIGIN_KIND in labels:
        return labels[_ORIGIN], labels[_ORIGIN_KIND].lower()
    if _TRAINING in labels:
        operator = labels.get(_OPERATOR, "")
        kind = operator.removesuffix("-controller")
        return labels[_TRAINING], kind.removesuffix("-operator") + "job" if kind.endswith("-operator") else kind
    return next(((labels[label], kind) for kind, label in _BY_LABEL if label in labels), None)


def _owner(references: Any, template: str) -> tuple[str, str]:
    """Return name and kind of the pod's controller, empty without one; the node is none."""
    for owner in references if isinstance(references, list) else ():
        if isinstance(owner, dict) and owner.get("controller") is True:
            texts = _texts(owner)
            name, kind = texts.get("name", ""), texts.get("kind", "").lower()
            if kind == "replicaset" and template and name.endswith(f"-{template}"):
                return name.removesuffix(f"-{template}"), "deployment"
            return ("", "") if kind == "node" else (name, kind)
    return "", ""


def _texts(entries: Any) -> dict[str, str]:
    """Return the entries with a value that is a name."""
    if not isinstance(entries, dict):
        return {}
    return {key: text for key, text in entries.items() if isinstance(text, str) and _TEXT.fullmatch(text)}


class PodWorkloads:
    """The workloads of this node's pods: written by the allocation collector, read by others. Safe from any thread."""

    def __init__(self) -> None:
        self._by_pod: Mapping[tuple[str, str], Labels] = {}

    def replace(self, by_pod: Mapping[tuple[str, str], Labels]) -> None:
        """Replace all workloads by the current ones, which are by namespace and name of the pod."""
        self._by_pod = dict(by_pod)

    def of(self, namespace: str, pod: str) -> Labels:
        """Return the labels of a pod's workload, empty where it is not known."""
        return self._by_pod.get((namespace, pod), {})
