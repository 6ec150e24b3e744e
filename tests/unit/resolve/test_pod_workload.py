"""Workloads of pods, by the metadata that their controllers write."""

from __future__ import annotations

from typing import Any

import pytest

from exporter.resolve.pod_workload import PodWorkloads, workload_of

JOB = {"batch.kubernetes.io/job-name": "pretrain-workers-0", "job-name": "pretrain-workers-0"}
KUEUE = {"kueue.x-k8s.io/cluster-queue-name": "gpus", "kueue.x-k8s.io/local-queue-name": "vision"}
TRAINING = "training.kubeflow.org"


def owner(kind: str, name: str, controller: bool = True) -> list[dict[str, Any]]:
    return [{"apiVersion": "v1", "kind": kind, "name": name, "uid": "1", "controller": controller}]


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ({**JOB, "jobset.sigs.k8s.io/jobset-name": "pretrain", "jobset.sigs.k8s.io/job-index": "0"}, "jobset"),
        ({f"{TRAINING}/job-name": "pretrain", f"{TRAINING}/operator-name": "pytorchjob-controller"}, "pytorchjob"),
        ({f"{TRAINING}/job-name": "pretrain", f"{TRAINING}/operator-name": "mpi-operator"}, "mpijob"),
        ({**JOB, f"{TRAINING}/job-name": "pretrain", f"{TRAINING}/operator-name": "mpijob-controller"}, "mpijob"),
        ({f"{TRAINING}/job-name": "pretrain"}, None),
        ({"ray.io/cluster": "pretrain", "ray.io/node-type": "worker"}, "raycluster"),
        (
            {
                "ray.io/cluster": "pretrain-x7k2p",
                "ray.io/originated-from-cr-name": "pretrain",
                "ray.io/originated-from-crd": "RayJob",
            },
            "rayjob",
        ),
        (
            {"leaderworkerset.sigs.k8s.io/name": "pretrain", "leaderworkerset.sigs.k8s.io/worker-index": "1"},
            "leaderworkerset",
        ),
        ({"volcano.sh/job-name": "pretrain", "volcano.sh/task-spec": "worker"}, "volcanojob"),
        ({"batch.kubernetes.io/job-name": "pretrain"}, "job"),
        ({"job-name": "pretrain"}, "job"),
        ({"kueue.x-k8s.io/pod-group-name": "pretrain", "kueue.x-k8s.io/managed": "true"}, "podgroup"),
    ],
)
def test_workload_by_labels(labels: dict[str, str], kind: str | None) -> None:
    """The outermost controller names the workload; a kind that is not known is absent."""
    expected = {"workload": "pretrain"} | ({"workload_kind": kind} if kind else {})
    assert expected == workload_of({"labels": labels, "ownerReferences": owner("Job", "pretrain-workers-0")})


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"ownerReferences": owner("StatefulSet", "vllm")}, {"workload": "vllm", "workload_kind": "statefulset"}),
        (
            {"labels": {"pod-template-hash": "6d4"}, "ownerReferences": owner("ReplicaSet", "vllm-6d4")},
            {"workload": "vllm", "workload_kind": "deployment"},
        ),
        ({"ownerReferences": owner("ReplicaSet", "vllm-6d4")}, {"workload": "vllm-6d4", "workload_kind": "replicaset"}),
        ({"ownerReferences": owner("Node", "n1")}, {}),
        ({"ownerReferences": owner("StatefulSet", "vllm", controller=False)}, {}),
        ({"ownerReferences": None, "labels": None}, {}),
        ({"ownerReferences": ["x"], "labels": {"app": "x"}}, {}),
        ({}, {}),
    ],
)
def test_workload_by_owner(metadata: dict[str, Any], expected: dict[str, str]) -> None:
    """The pod's controller, where no label names a workload; a Deployment by the hash of the pod's template."""
    assert expected == workload_of(metadata)


@pytest.mark.parametrize(
    ("metadata", "queue"),
    [
        ({"labels": KUEUE}, "vision"),
        ({"labels": {"kueue.x-k8s.io/queue-name": "nlp"}}, "nlp"),
        ({"labels": {"volcano.sh/queue-name": "default"}}, "default"),
        ({"annotations": {"scheduling.volcano.sh/queue-name": "batch"}}, "batch"),
    ],
)
def test_queue(metadata: dict[str, Any], queue: str) -> None:
    """The queue of Kueue or Volcano, also of a pod without a known workload."""
    assert {"queue": queue} == workload_of(metadata)


@pytest.mark.parametrize("value", [3, None, "", "a" * 254, "a\nb", "a\0", {"a": "b"}, "-a", "ä"])
def test_what_is_no_name(value: Any) -> None:
    """A value that Kubernetes would not take as a name is unknown, whoever wrote it."""
    assert {} == workload_of({"labels": {"ray.io/cluster": value, "volcano.sh/queue-name": value}})
    assert {} == workload_of({"ownerReferences": [{"controller": True, "kind": "Job", "name": value}]})


def test_workloads_of_the_node() -> None:
    """A pod's workload is known by namespace and name until the pods are listed again without it."""
    workloads = PodWorkloads()
    assert {} == workloads.of("ml", "a")
    workloads.replace({("ml", "a"): {"workload": "x"}})
    assert ({"workload": "x"}, {}) == (workloads.of("ml", "a"), workloads.of("prod", "a"))
    workloads.replace({})
    assert {} == workloads.of("ml", "a")
