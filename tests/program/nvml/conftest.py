"""Builds the stand-in libraries once for these tests."""

from __future__ import annotations

import pytest

from tests.standins import nvml


@pytest.fixture(scope="session", autouse=True)
def _libraries() -> None:
    nvml.build()
