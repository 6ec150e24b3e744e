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

    def connect(answer: bytes) -> None:
        client, server = socket.socketpair()
        client.send(POST)
        server.recv(65_536)
        server.send(answer)
        server.close()
        client.close()

    def ended() -> Counter[tuple[str, str]]:
        return Counter((it.status, it.aborted) for it in observed.of({os.getpid()}))

    for number in range(40):
        connect(JSON[: -1 if number % 2 else None])
    until(lambda: ended()["200", ""] == 20, lambda: f"20 whole answers; there are {ended()}")
    # The address of the last ones is not used again yet, nor are those of another processor.
    until(lambda: ended()["200", "unterminated"] >= 15 or connect(JSON), lambda: f"15 more; there are {ended()}")
    found = ended()
    assert {("200", ""), ("200", "unterminated")} == found.keys()
    assert found["200", "unterminated"] <= 20
