"""Fixtures of several files of tests with probes."""

from __future__ import annotations

import threading

import pytest

from exporter.bpf.watch import Batch, Watch
from tests.support import PATIENCE


@pytest.fixture
def noticing(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is not set the kernel's records of mappings and exec are not read."""
    noticing, drain = threading.Event(), Watch.drain

    def late(watch: Watch) -> Batch:
        assert noticing.wait(PATIENCE)
        return drain(watch)

    monkeypatch.setattr(Watch, "drain", late)
    noticing.set()
    return noticing
