"""The labels of this node's pods: a list of pods in JSON, by the API server or by the kubelet's /pods.

https://kubernetes.io/docs/reference/using-api/api-concepts/ describes the request.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from exporter.model import Labels
from exporter.nodename import node_name
from exporter.options import SettingsError
from exporter.resolve.pod_workload import workload_of

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MOST_BYTES = 8 << 20
"""The kubelet lists whole pods, 10 to 20 kB each; the API server returns the requested metadata only."""
MOST_PODS = 4096
MOST_NAMES = 8
"""So that no series has more than 20 label names."""
_LONGEST = 63
"""Length of a label's value in Kubernetes."""
_NAME = re.compile(r"(?:[a-z0-9.-]{1,253}/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/=:-]+")
_LONGEST_TOKEN = 16_384
_ACCEPT = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1, application/json"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod with its configured labels, by their names as labels of a metric, and those of its workload."""

    namespace: str
    name: str
    labels: Labels
    workload: Labels = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Api:
    """An API that lists pods. `token` and `ca` are files; None: no token, and the system's authorities."""

    url: str
    token: Path | None
    ca: Path | None
    seconds: float


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
        parts = urlsplit(given)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise SettingsError(
                f"kubernetes.pods-url: {given!r} is not a URL without a password, such as https://localhost:10250/pods"
            )
        return given
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    if not host:
        raise SettingsError(
            "kubernetes.pod-labels and kubernetes.workloads need kubernetes.pods-url outside a pod, such as https://localhost:10250/pods"
        )
    port = environ.get("KUBERNETES_SERVICE_PORT_HTTPS") or environ.get("KUBERNETES_SERVICE_PORT") or "443"
    node = node_name(environ)
    # Version 0 is answered from the server's memory, without a query to etcd.
    query = urlencode({"fieldSelector": f"spec.nodeName={node}", "resourceVersion": "0"})
    return f"https://{f'[{host}]' if ':' in host else host}:{port}/api/v1/pods?{query}"


def pods(api: Api, names: Mapping[str, str], workloads: bool = False) -> list[Pod]:
    """Return the pods that have any of the labels in `names`, a mapping made by label_names(), or a known workload.

    Raises OSError when there is no answer within `api.seconds` or access is refused, ValueError when the answer is not
    a list of pods.
    """
    try:
        return list(parse(_fetch(api), names, workloads))
    except http.client.HTTPException as error:
        raise ValueError(f"no HTTP answer: {str(error)[:80] or type(error).__name__}") from error


def parse(answer: bytes, names: Mapping[str, str], workloads: bool = False) -> Iterator[Pod]:
    """Yield the pods of a PodList or PartialObjectMetadataList that have any of these labels, or a known workload.

    Raises ValueError.
    """
    try:
        items = json.loads(answer)["items"] or ()
        if len(items) > MOST_PODS:
            raise ValueError(f"more than {MOST_PODS} pods: the list is of more than one node")
        for item in items:
            metadata = item["metadata"]
            labels = metadata.get("labels") or {}
            known = {made: _value(labels[name]) for name, made in names.items() if labels.get(name)}
            workload = workload_of(metadata) if workloads else {}
            if known or workload:
                yield Pod(_value(metadata["namespace"], 253), _value(metadata["name"], 253), known, workload)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("the answer is no list of pods") from error


def _value(text: Any, most: int = _LONGEST) -> str:
    if not isinstance(text, str) or len(text) > most or not text.isprintable():
        raise ValueError(f"{str(text)[:80]!r} is no name or label of a pod")
    return text


def _fetch(api: Api) -> bytes:
    """Return the body of the list. The token is sent over https to a verified server only, and never to a redirect."""
    parts = urlsplit(api.url)
    headers = {"Accept": _ACCEPT, "User-Agent": "accel-exporter"}
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=None if api.ca is None else _existing(api.ca, "ca"))
        connection = http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=api.seconds, context=context)
        if api.token is not None:
            headers["Authorization"] = f"Bearer {_token(api.token)}"
    else:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=api.seconds)
    deadline = time.monotonic() + api.seconds
    try:
        connection.request("GET", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), headers=headers)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise OSError(_refusal(answer.status))
        return _body(answer, deadline, api.seconds)
    finally:
        connection.close()


def _body(answer: http.client.HTTPResponse, deadline: float, seconds: float) -> bytes:
    body = bytearray()
    while part := answer.read1(1 << 16):
        body += part
        if len(body) > MOST_BYTES:
            raise ValueError(f"the answer is larger than {MOST_BYTES} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the answer was not complete within {seconds:g} s")
    return bytes(body)


def _token(path: Path) -> str:
    with Path(_existing(path, "token")).open("rb") as file:
        token = file.read(_LONGEST_TOKEN).strip()
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"{path} holds no token")
    return token.decode("ascii")


def _existing(path: Path, what: str) -> str:
    if not path.is_file():
        raise OSError(f"there is no {path}; give --kubernetes.{what}-file")
    return str(path)


def _refusal(status: int) -> str:
    if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
        return f"HTTP status {status}: the token in --kubernetes.token-file does not allow to list pods"
    return f"HTTP status {status}"
