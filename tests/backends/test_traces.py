"""Arize Phoenix and MLflow take the spans: what each keeps of them is what was sent."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.backends.busy import COLLECTIVES, SECONDS, SERVICE, Busy, busy
from tests.backends.servers import MLflow, Phoenix
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(1500),
    pytest.mark.evidence(feature="OTLP spans", on="real software"),
]

OF_A_RANK = {"Init": 1, "AllReduce": COLLECTIVES + 2, "GroupEnd": 1, "cuMemAlloc_v2": 1}
"""Spans of one rank's work, by name."""


@dataclass(frozen=True)
class Kept:
    """A span as a backend has it; `links` and `service` where it keeps them."""

    name: str
    trace: str
    id: str
    parent: str
    failed: bool
    attributes: Mapping[str, Any]
    links: frozenset[tuple[str, str]] = frozenset()
    service: str = ""


def kept_by_phoenix(server: Phoenix) -> list[Kept]:
    return [
        Kept(
            it["name"],
            it["context"]["trace_id"],
            it["context"]["span_id"],
            it["parent_id"] or "",
            it["status_code"] == "ERROR",
            it["attributes"],
        )
        for it in server.spans()
    ]


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory: pytest.TempPathFactory, bpf_refusal: str) -> Iterator[Phoenix]:
    if bpf_refusal:
        pytest.skip(bpf_refusal)
    with Phoenix(tmp_path_factory.mktemp("phoenix")) as server:
        yield server


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_phoenix_has_every_span(phoenix: Phoenix, protocol: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every span arrives once, with its ids, parent, status and attributes; by HTTP and by gRPC."""
    endpoint = phoenix.grpc if protocol == "grpc" else phoenix.address
    with pushing(tmp_path_factory, endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=protocol) as node:
        node.work()
        until(lambda: complete(kept_by_phoenix(phoenix), node), "Phoenix has every span", SECONDS)
        compare(kept_by_phoenix(phoenix), node)
        assert 'accel_exporter_otlp_exports_failed_total{signal="traces"} 0\n' in node.exporter.get("/metrics")[1]


def pushing(tmp_path_factory: pytest.TempPathFactory, endpoint: str, **variables: str) -> Any:
    given = {"OTEL_METRICS_EXPORTER": "none", "OTEL_BSP_SCHEDULE_DELAY": "200", "OTEL_EXPORTER_OTLP_TIMEOUT": "60"}
    return busy(tmp_path_factory.mktemp("node"), OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, **given, **variables)


def of_the_job(spans: list[Kept], node: Busy) -> list[Kept]:
    return [it for it in spans if it.attributes.get("process.pid") in node.pids]


def complete(spans: list[Kept], node: Busy) -> bool:
    wanted = len(node.pids) * sum(OF_A_RANK.values())
    return len(of_the_job(spans, node)) >= wanted and any(it.name == "gpu.xid" for it in spans)


def compare(spans: list[Kept], node: Busy) -> None:
    """Compare the kept spans of the job with the job's actions."""
    job = of_the_job(spans, node)
    by_rank = [[it for it in job if it.attributes["process.pid"] == rank.pid] for rank in node.ranks]
    assert [OF_A_RANK] * 2 == [dict(Counter(it.name for it in spans)) for spans in by_rank]
    assert len(job) == len({it.id for it in job})
    assert {"cuMemAlloc_v2"} == {it.name for it in job if it.failed}

    roots, others = ([it for it in of_rank if it.name == "AllReduce"] for of_rank in by_rank)
    assert {""} == {it.parent for it in roots}
    assert {(it.trace, it.id) for it in roots} == {(it.trace, it.parent) for it in others}
    assert {1} == set(Counter(it.trace for it in roots).values())


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory, bpf_refusal: str) -> Iterator[MLflow]:
    if bpf_refusal:
        pytest.skip(bpf_refusal)
    with MLflow(tmp_path_factory.mktemp("mlflow")) as server:
        yield server


def kept_by_mlflow(server: MLflow) -> list[Kept]:
    """Ids are in base64 in spans and in hex in links; attributes are JSON."""
    return [
        Kept(
            it["name"],
            _hex(it["trace_id"]),
            _hex(it["span_id"]),
            _hex(it["parent_span_id"] or ""),
            it["status"]["code"] == "STATUS_CODE_ERROR",
            {key: json.loads(value) for key, value in it["attributes"].items()},
            frozenset((link["trace_id"].removeprefix("tr-"), link["span_id"]) for link in it["links"]),
            trace["tags"].get("service.name", ""),
        )
        for it, trace in server.spans()
    ]


def _hex(text: str) -> str:
    return base64.b64decode(text).hex()


def test_mlflow_has_every_span(mlflow: MLflow, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every span arrives once, with its ids, parent, links, status and attributes, in a trace of the job's service."""
    with pushing(tmp_path_factory, mlflow.address, OTEL_EXPORTER_OTLP_HEADERS=mlflow.headers) as node:
        node.work()
        until(lambda: complete(kept_by_mlflow(mlflow), node), "MLflow has every span", SECONDS)
        spans = kept_by_mlflow(mlflow)

    compare(spans, node)
    job = of_the_job(spans, node)
    assert {SERVICE} == {it.service for it in job}
    assert {"accel-exporter"} == {it.service for it in spans if it.name == "gpu.xid"}
    assert {"AllReduce": 4} == dict(Counter(it.name for it in job if it.links))
    groups = {(it.trace, it.id) for it in job if it.name == "GroupEnd"}
    assert groups == {link for it in job for link in it.links}
