"""The OpenTelemetry resource of an observed process, to which its spans belong in a tracing backend.

https://opentelemetry.io/docs/specs/otel/resource/sdk/#specifying-resource-information-via-an-environment-variable
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from exporter.model import Labels
from exporter.resolve.environment import variable

_NAME = variable("OTEL_SERVICE_NAME", r"[^\0]{1,255}")
_ATTRIBUTES = variable("OTEL_RESOURCE_ATTRIBUTES", r"[^\0]{1,8192}")
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}", re.ASCII)
_MOST = 32
_LONGEST = 255


def resource(labels: Labels, environ: bytes) -> Labels:
    """Return resource attributes of a process, from its labels and its /proc/PID/environ block, without empty values.

    service.name is that of the process (OTEL_SERVICE_NAME, then OTEL_RESOURCE_ATTRIBUTES), else its pod, its Slurm job
    or its executable. Attributes from the environment are bounded; labels from the kernel or the kubelet win over them
    (views/otlp.py).
    """
    attributes = dict(_attributes(environ))
    if found := _NAME.search(environ):
        attributes["service.name"] = _text(found[1])
    if not attributes.get("service.name"):
        job = labels.get("slurm_job_id", "")
        attributes["service.name"] = labels.get("pod", "") or (f"slurm-{job}" if job else labels.get("comm", ""))
    return {key: value for key, value in attributes.items() if value}


def _attributes(environ: bytes) -> list[tuple[str, str]]:
    """Return the valid pairs of OTEL_RESOURCE_ATTRIBUTES."""
    found = _ATTRIBUTES.search(environ)
    if not found:
        return []
    pairs = (pair.partition("=") for pair in _text(found[1]).split(","))
    good = [
        (key.strip(), printable)
        for key, equals, value in pairs
        if equals and _KEY.fullmatch(key.strip()) and (printable := unquote(value.strip()))[:_LONGEST].isprintable()
    ]
    return [(key, value[:_LONGEST]) for key, value in good[:_MOST]]


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
