"""Fixtures of several files of tests with probes."""

from __future__ import annotations

import threading

import pytest

from exporter.bpf.targets import Targets
from tests.support import PATIENCE


@pytest.fixture(autouse=True)
def whole_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages and profiles wait for what reads records and unwinds stacks, however long that has no turn."""
    monkeypatch.setattr("exporter.bpf.events._FLUSH_SECONDS", PATIENCE)
    monkeypatch.setattr("exporter.stacks.profiles.UNWIND_SECONDS", PATIENCE)
    monkeypatch.setattr("exporter.stacks.capture.UNWIND_SECONDS", PATIENCE)


class Noticing(threading.Event):
    """Held while the search takes a step: none is under way once it is cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.step = threading.Lock()

    def clear(self) -> None:
        with self.step:
            super().clear()


@pytest.fixture
def noticing(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is not set the kernel's records of mappings and exec are not read, and no process is looked at."""
    noticing, step = Noticing(), Targets._step

    def late(targets: Targets) -> None:
        while True:
            assert noticing.wait(PATIENCE)
            with noticing.step:
                if noticing.is_set():
                    return step(targets)

    monkeypatch.setattr(Targets, "_step", late)
    noticing.set()
    return noticing
