"""A stand-in of the API server or the kubelet that lists pods: an HTTPS server that requires a token."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOKEN = "eyJhbGciOi.eyJpc3Mi.c2ln-_"


def pod(name: str, namespace: str = "ml", **labels: str) -> dict[str, object]:
    """As the kubelet lists it, less what nobody here reads."""
    return {"metadata": {"name": name, "namespace": namespace, "uid": "1", "labels": labels}, "spec": {}, "status": {}}


def listing(*pods: dict[str, object]) -> bytes:
    return json.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}).encode()


class Api:
    """A stand-in of the server with a replaceable answer; `requests` are the requests' paths and headers."""

    def __init__(self, folder: Path, tls: bool) -> None:
        self.answer: bytes | None = listing()
        self.status, self.token, self.location = 200, TOKEN, ""
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.ended = threading.Event()
        self.ca, self.token_file = folder / "ca.crt", folder / "token"
        self.token_file.write_text(TOKEN + "\n")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate(folder))
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._server.server_port}/pods"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.requests.append((self.path, dict(self.headers)))
                if api.answer is None:
                    api.ended.wait(30)
                    return
                allowed = not api.token or self.headers.get("Authorization") == f"Bearer {api.token}"
                self.send_response(api.status if allowed else 401)
                if api.location:
                    self.send_header("Location", api.location)
                self.end_headers()
                if allowed:
                    self.wfile.write(api.answer)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate and its key."""
    made, key = folder / "ca.crt", folder / "ca.key"
    command = "openssl req -x509 -days 2 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=api"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(made)]
    subprocess.run([*command.split(), *names], check=True, capture_output=True, timeout=60)
    return made, key


@contextmanager
def api(folder: Path, *pods: dict[str, object], tls: bool = True) -> Iterator[Api]:
    """A server that lists these pods."""
    running = Api(folder, tls)
    running.answer = listing(*pods)
    try:
        yield running
    finally:
        running.close()
