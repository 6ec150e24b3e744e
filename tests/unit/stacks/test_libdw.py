"""Machines without elfutils' libdw."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from exporter.checks import node
from exporter.checks.finding import Status
from exporter.stacks import libdw


def settings(wanted: bool) -> Any:
    return SimpleNamespace(web=SimpleNamespace(enable_profiles=wanted))


def test_doctor_has_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert node.stacks(settings(False))[0] is Status.INFO
    monkeypatch.setattr(libdw, "libraries", lambda: libdw.ctypes.CDLL("libdw-that-is-not-there.so"))
    status, text, remedy = node.stacks(settings(True))  # type: ignore[misc]
    assert status is Status.WARN
    assert text.startswith("stacks have no native frames (libdw-that-is-not-there.so")
    assert "package libdw1" in remedy
