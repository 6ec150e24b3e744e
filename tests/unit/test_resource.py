"""The exporter as a resource: named after the node, whatever the pod or container is called."""

from __future__ import annotations

import os
import platform

import pytest
from opentelemetry.semconv.schemas import Schemas

from exporter import resource


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)


def test_pod_is_named_after_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pods, one after the other on a node, are one instance on one host, and that node in Kubernetes' words."""
    monkeypatch.setenv("NODE_NAME", "node-7")
    found = []
    for pod in ("accel-exporter-x7k2p", "accel-exporter-9qz4m"):
        monkeypatch.setattr(platform, "node", lambda pod=pod: pod)
        found.append(dict(resource.own().attributes))

    assert found[0] == found[1]
    names = ("service.name", "service.instance.id", "host.name", "k8s.node.name")
    assert ["accel-exporter", "node-7", "node-7", "node-7"] == [found[0][name] for name in names]


def test_outside_kubernetes_the_host_has_its_own_name() -> None:
    """Without NODE_NAME it is the host's name, and no node of Kubernetes."""
    found = resource.own().attributes

    assert (platform.node(), platform.node()) == (found["service.instance.id"], found["host.name"])
    assert "k8s.node.name" not in found


def test_a_node_name_that_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NODE_NAME that is not UTF-8 is ignored: OTLP's texts are UTF-8, and without host.name no node is named."""
    monkeypatch.setitem(os.environb, b"NODE_NAME", b"node-\xff")
    found = resource.own().attributes

    assert (platform.node(), platform.node()) == (found["service.instance.id"], found["host.name"])
    assert "k8s.node.name" not in found


def test_variables_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME are over what was found."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "host.name=h,service.instance.id=i,team=infra")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "s")
    found = resource.own().attributes

    assert ["s", "i", "h", "infra"] == [
        found[name] for name in ("service.name", "service.instance.id", "host.name", "team")
    ]


def test_schema_is_a_published_one() -> None:
    """The release of the conventions is one that the SDK's package knows."""
    assert resource.SCHEMA_URL in {schema.value for schema in Schemas}
    assert resource.SCHEMA_URL == resource.own().schema_url


def test_only_what_is_of_the_node_is_passed_on() -> None:
    """Nothing of the exporter, its pod, container or process goes to the processes that it observes."""
    of_the_node = {
        "host.name": "n1",
        "host.id": "h",
        "k8s.node.name": "n1",
        "k8s.node.uid": "u",
        "k8s.cluster.name": "c",
        "cloud.region": "r",
        "os.type": "linux",
        "deployment.environment.name": "prod",
    }
    of_the_exporter = {
        "service.name": "accel-exporter",
        "service.namespace": "monitoring",
        "k8s.pod.name": "accel-exporter-x7k2p",
        "k8s.pod.uid": "uid-of-exporter",
        "k8s.namespace.name": "monitoring",
        "k8s.daemonset.name": "accel-exporter",
        "k8s.container.name": "accel-exporter",
        "container.id": "c0ffee",
        "process.pid": 1,
        "team": "infra",
    }

    assert of_the_node == resource.of_the_node({**of_the_node, **of_the_exporter})
