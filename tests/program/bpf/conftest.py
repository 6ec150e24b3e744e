"""A /proc of one process, and libraries for it to map."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.bpf import verdicts
from tests.unit.bpf.mapped import Proc


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "SLICE", 30.0)  # a machine may stand still for longer than the usual slice


@pytest.fixture(scope="module")
def built(compile_library: Callable[[str, str], Path]) -> Path:
    return compile_library("libwanted.so", "int wanted(int a) { return a + 1; }")


@pytest.fixture(scope="module")
def other(compile_library: Callable[[str, str], Path]) -> Path:
    return compile_library("libother.so", "int first(int a) { return a; }\nint wanted(int a) { return a ^ 1; }")


@pytest.fixture(scope="module")
def calling(compile_library: Callable[[str, str], Path]) -> Path:
    return compile_library("libcalling.so", "int wanted(int a);\nint caller(int a) { return wanted(a) + 1; }")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path / "proc")
