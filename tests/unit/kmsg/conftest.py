"""Fixtures shared by tests of the kernel log."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capabilities count, also where the tests run in a user namespace."""
    monkeypatch.setattr("exporter.bpf.privileges.in_user_namespace", lambda: False)
