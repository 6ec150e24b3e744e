"""Requests of LLM servers over Unix sockets that the server closes: the next one may be at the same address."""

from __future__ import annotations

import os
import socket
from collections import Counter

import pytest

from tests.bpf.fixtures import once
from tests.bpf.serving_node import Observed, observe
from tests.bpf.test_serving_bytes import JSON, POST
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="LLM requests", on="stand-in")]


observed = once(observe)


def test_addresses_that_are_used_again(observed: Observed) -> None:
    """40 connections, of which each second one is closed in the middle of its answer, and read by nobody after that."""
    for number in range(40):
        client, server = socket.socketpair()
        client.send(POST)
        server.recv(65_536)
        server.send(JSON[: -1 if number % 2 else None])
        server.close()
        client.close()

    def ended() -> Counter[tuple[str, str]]:
        return Counter((it.status, it.aborted) for it in observed.of({os.getpid()}))

    until(lambda: ended()["200", ""] == 20, lambda: f"20 whole answers; there are {ended()}", 5)
    found = ended()
    assert {("200", ""), ("200", "unterminated")} == found.keys()
    assert 15 <= found["200", "unterminated"] <= 20  # the address of the last ones is not used again yet
