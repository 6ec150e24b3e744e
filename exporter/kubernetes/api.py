"""A request to the API server or the kubelet, with a pod's token and authorities.

https://kubernetes.io/docs/reference/using-api/api-concepts/ describes requests.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import http.client

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MOST_BYTES = 8 << 20
"""The kubelet lists whole pods, 10 to 20 kB each; the API server returns the requested metadata only."""
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/=:-]+")
_LONGEST_TOKEN = 16_384


@dataclass(frozen=True, slots=True)
class Api:
    """An API. `token` and `ca` are files; None: no token, and the system's authorities. `seconds` bound an answer.

    `options` begins the names of the flags that give the two files.
    """

    url: str
    token: Path | None
    ca: Path | None
    seconds: float
    options: str = "kubernetes"


def server_of(environ: Mapping[str, str]) -> str:
    """Return the API server's address by a pod's variables, as https://HOST:PORT; empty outside a pod."""
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT_HTTPS") or environ.get("KUBERNETES_SERVICE_PORT") or "443"
    return f"https://{f'[{host}]' if ':' in host else host}:{port}" if host else ""


def fetch(api: Api, accept: str, right: str) -> bytes:
    """Return the body of the answer. `right` names what the token has to allow, such as "list pods".

    The token is sent over https to a verified server only, and never to a redirect. Raises OSError when there is no
    answer in time or access is refused, ValueError when the answer is too large or no HTTP.
    """
    import http.client  # on nodes of Kubernetes only

    parts = urlsplit(api.url)
    headers = {"Accept": accept, "User-Agent": "accel-exporter"}
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context(
            cafile=None if api.ca is None else _existing(api.ca, f"{api.options}.ca-file")
        )
        connection = http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=api.seconds, context=context)
        if api.token is not None:
            headers["Authorization"] = f"Bearer {_token(api.token, f'{api.options}.token-file')}"
    else:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=api.seconds)
    deadline = time.monotonic() + api.seconds
    try:
        connection.request("GET", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), headers=headers)
        answer = connection.getresponse()
        if answer.status != HTTPStatus.OK:
            raise OSError(_refusal(answer.status, f"{api.options}.token-file", right))
        return _body(answer, deadline, api.seconds)
    except http.client.HTTPException as error:
        raise ValueError(f"no HTTP answer: {str(error)[:80] or type(error).__name__}") from error
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


def _token(path: Path, option: str) -> str:
    with Path(_existing(path, option)).open("rb") as file:
        token = file.read(_LONGEST_TOKEN).strip()
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"{path} holds no token")
    return token.decode("ascii")


def _existing(path: Path, option: str) -> str:
    if not path.is_file():
        raise OSError(f"there is no {path}; give --{option}")
    return str(path)


def _refusal(status: int, option: str, right: str) -> str:
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return f"HTTP status {status}: the token in --{option} does not allow to {right}"
    return f"HTTP status {status}"
