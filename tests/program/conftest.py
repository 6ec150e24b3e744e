"""Fixtures of tests with the server in this process."""

from __future__ import annotations

import pytest

from exporter.resolve.sockets import ip
from exporter.web import connections


@pytest.fixture
def peers_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes each address of the loopback a peer, as each address of the network is one."""
    monkeypatch.setattr(connections, "peer", lambda _near, far: str(ip(far) or ""))
