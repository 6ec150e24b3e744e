"""OpenTelemetry resource attributes of a process's spans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.resolve.service import resource

POD = {"pid": "7", "comm": "python3", "pod": "train-0", "slurm_job_id": "17"}


@pytest.mark.parametrize(
    ("labels", "environ", "expected"),
    [
        (POD, b"", {"service.name": "train-0"}),
        ({"comm": "python3", "slurm_job_id": "17"}, b"", {"service.name": "slurm-17"}),
        ({"comm": "python3"}, b"", {"service.name": "python3"}),
        ({}, b"", {}),
        (POD, b"A=1\0OTEL_SERVICE_NAME=train\0B=2\0", {"service.name": "train"}),
        (POD, b"XOTEL_SERVICE_NAME=train\0", {"service.name": "train-0"}),
        (POD, b"OTEL_RESOURCE_ATTRIBUTES=service.name=a,team=nlp%20x\0", {"service.name": "a", "team": "nlp x"}),
        (POD, b"OTEL_RESOURCE_ATTRIBUTES=service.name=a\0OTEL_SERVICE_NAME=b\0", {"service.name": "b"}),
        (POD, b"OTEL_RESOURCE_ATTRIBUTES=a,=b,c d=e, f = g ,h=,i=%0a\0", {"service.name": "train-0", "f": "g"}),
        (POD, b"OTEL_RESOURCE_ATTRIBUTES=a=" + b"x" * 9000 + b"\0", {"service.name": "train-0"}),
    ],
)
def test_resource(labels: dict[str, str], environ: bytes, expected: dict[str, str]) -> None:
    """The service name is the process's own, else its pod, job or executable; broken attributes are left out."""
    assert expected == resource(labels, environ)


@given(st.binary(max_size=400))
def test_hostile(value: bytes) -> None:
    """Whatever stands in the variable, the attributes are few, short and printable."""
    found = resource({"comm": "x"}, b"OTEL_RESOURCE_ATTRIBUTES=" + value + b"\0")

    assert len(found) <= 33
    assert all(value.isprintable() and 0 < len(value) <= 255 for value in found.values())
