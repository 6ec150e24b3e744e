"""Fixtures of which every file of tests with stand-ins has its own: a running collector, and a job that it counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.bpf.cuda_node import Script, build_standins, started


def once(observe: Callable[[], AbstractContextManager[Any]]) -> Any:
    """Return a fixture: the stand-ins are built, and the collector that `observe` runs is the whole module's."""

    @pytest.fixture(scope="module")
    def observed() -> Iterator[Any]:
        build_standins()
        with observe() as running:
            yield running

    return observed


def each(make: Callable[[], Script]) -> Any:
    """Return a fixture: a job for each test, once it is known to the module's fixture `observed`."""

    @pytest.fixture
    def job(observed: Any) -> Iterator[Any]:
        with started(observed, make()) as running:
            yield running

    return job
