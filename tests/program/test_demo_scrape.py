"""Scrapes of the demo."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from deploy.demo.__main__ import Demo


class Handler(BaseHTTPRequestHandler):
    """One sample, named as the last part of the path that was requested."""

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        self.send_response(200)
        self.end_headers()
        name = "seen_by_a_proxy" if self.path.startswith("http:") else self.path[1:]
        self.wfile.write(f"{name} 7\n".encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_no_proxy_is_between(address: str, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """The exporter is scraped directly though the environment names a proxy."""
    for name in ("no_proxy", "NO_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, f"http://{address}")
    with tempfile.TemporaryFile() as log:
        assert 7 == Demo(f"http://{address}/", log).scrape("/metric").total("metric")
