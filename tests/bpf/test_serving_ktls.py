"""Requests of LLM servers with TLS in the kernel: OpenSSL hands the encryption to the socket, and each counts once."""

from __future__ import annotations

import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bpf.serving_node import ROUTE, Client, Server, Since, request
from tests.bpf.test_serving_tls import certificate, observing, start, wait_until_probed

__all__ = ["certificate"]
pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed"),
    pytest.mark.evidence(feature="LLM requests", on="real software"),
]
TCP_ULP = 31
CONFIGURATION = """
openssl_conf = all
[all]
ssl_conf = servers
[servers]
system_default = default
[default]
Options = KTLS
MaxProtocol = {}
"""
"""Of OpenSSL (config(5)): TLS in the kernel where the kernel has it. OpenSSL 3.0 receives so with TLS 1.2 only."""


@pytest.fixture(scope="module", autouse=True)
def kernel() -> None:
    """Skips where a socket cannot be one of TLS; the kernel loads its module for the first."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        try:
            client.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
        except OSError as error:
            pytest.skip(f"the kernel has no TLS (CONFIG_TLS): {error.strerror}")


def in_kernel() -> dict[str, int]:
    """Return how many connections have sent and received so, of all processes."""
    text = Path("/proc/net/tls_stat").read_text()
    return {name: int(re.findall(rf"^Tls{name}Sw\s+(\d+)$", text, re.MULTILINE)[0]) for name in ("Tx", "Rx")}


@contextmanager
def gunicorn(protocol: str, certificate: Path, path: Path, patch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that gives OpenSSL its sockets. Skips where OpenSSL leaves the kernel's TLS alone."""
    path.write_text(CONFIGURATION.format(protocol))
    patch.setenv("OPENSSL_CONF", str(path))
    before = in_kernel()["Tx"]
    with start("gunicorn", certificate) as running:
        if in_kernel()["Tx"] == before:
            pytest.skip("this OpenSSL does not use TLS in the kernel (enable-ktls)")
        yield running


@pytest.mark.parametrize("protocol", ["TLSv1.2", "TLSv1.3"])
def test_each_counts_once(protocol: str, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """23 streams, 23 whole answers and a client that goes: each is one, read from OpenSSL's calls."""
    with (
        observing(tls=True) as observed,
        gunicorn(protocol, certificate, tmp_path / "openssl.cnf", monkeypatch) as server,
    ):
        wait_until_probed(observed, server, workers=True)
        since = Since(observed, server)
        exchange(server)
        answers = since.answers(47)

    assert {(ROUTE, "200", 5)} == {(it.route, it.status, it.tokens["output"]) for it in answers[:46]}
    assert [""] * 46 + ["client_gone"] == [it.aborted for it in answers]
    assert [True] * 23 + [False] * 23 == [bool(it.time_to_first_token) for it in answers[:46]]


@pytest.mark.parametrize(("protocol", "count"), [("TLSv1.2", 47), ("TLSv1.3", 0)])
def test_without_probes_of_openssl(
    protocol: str, count: int, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the kernel decrypts received data, the sockets have the text of requests; otherwise nothing is read."""
    with (
        observing(tls=False) as observed,
        gunicorn(protocol, certificate, tmp_path / "openssl.cnf", monkeypatch) as server,
    ):
        since, before = Since(observed, server), in_kernel()
        exchange(server)
        received = in_kernel()["Rx"] - before["Rx"]
        if bool(count) is not bool(received):
            pytest.skip(f"OpenSSL received on {received} connections of {protocol} by the kernel")
        answers = since.answers(count)

    assert {(ROUTE, "200")} >= {(it.route, it.status) for it in answers}
    assert {5} >= {it.tokens["output"] for it in answers[:46]}
    assert {"client_gone"} >= {it.aborted for it in answers[46:]}


def exchange(server: Server) -> None:
    with Client(server) as client:
        for _ in range(23):
            first, _, _ = client.stream(tokens=5, gap=0.01)
            assert first
        for _ in range(23):
            client.whole(tokens=5)
    with Client(server) as client:
        client.send(request(stream=True, tokens=400, gap=0.01))
        client.socket.recv(1)
    time.sleep(0.5)
