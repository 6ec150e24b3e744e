"""Detection of uprobe sessions, and the fallback of probes to two links."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from exporter.bpf import libbpf, multi, sessions
from exporter.bpf.native import BpfError

FOUND = {
    **{"task_utask": 2896, "utask_instances": 8, "instance_stack": 24, "instance_next": 48},
    **{"task_mm": 2336, "mm_area": 1016, "area_address": 40},
}


@pytest.fixture(autouse=True)
def _not_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(multi, "refusal", lambda _: 0)
    sessions.places_in_kernel.cache_clear()
    yield
    sessions.places_in_kernel.cache_clear()


def loads(monkeypatch: pytest.MonkeyPatch, found: Mapping[str, int], failures: Mapping[str, int]) -> list[str]:
    """Objects load, but these with this errno; the names of those that were loaded."""
    loaded: list[str] = []

    def load(path: Path, multi: bool, constants: Mapping[str, int] = found) -> MagicMock:
        name = path.name.partition(".")[0]
        assert not multi
        assert constants == found
        loaded.append(name)
        if name in failures:
            raise BpfError(failures[name], "load")
        one = MagicMock()
        one.__enter__.return_value.globals.return_value = dict(found)
        return one

    monkeypatch.setattr(libbpf, "Object", load)
    return loaded


def test_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The structures found are tried with a program, once."""
    loaded = loads(monkeypatch, FOUND, {})
    assert sessions.places() == FOUND
    assert sessions.places() == FOUND
    assert loaded == ["session", "calibrate"]


def test_a_kernel_without_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loads(monkeypatch, FOUND, {})
    monkeypatch.setattr(multi, "refusal", lambda kind: errno.EINVAL if kind == multi.SESSION else 0)
    assert sessions.places() == {}
    assert loaded == []


@pytest.mark.parametrize(
    ("found", "failures"),
    [
        (FOUND, {"session": errno.ESRCH}),  # no type information
        ({**FOUND, "instance_next": 0}, {}),
        (FOUND, {"calibrate": errno.EACCES}),  # the verifier's refusal
    ],
)
def test_other_structures(
    monkeypatch: pytest.MonkeyPatch, found: Mapping[str, int], failures: Mapping[str, int]
) -> None:
    loads(monkeypatch, found, failures)
    assert sessions.places() == {}


@pytest.mark.parametrize("name", ["session", "calibrate"])
def test_a_shortage_is_no_verdict(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Tries it again."""
    loads(monkeypatch, FOUND, {name: errno.ENOMEM})
    with pytest.raises(BpfError):
        sessions.places()
    loads(monkeypatch, FOUND, {})
    assert sessions.places() == FOUND
