"""The kubelet's log folders: which listing is still that of the folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.resolve.podlogs import ContainerNames, PodLogs

A, B = (f"{it}0000000-0000-4000-8000-000000000000" for it in "ab")


@pytest.fixture
def add(tmp_path: Path) -> Callable[[str, int], None]:
    """Has the kubelet make a pod's folder at a time, in nanoseconds."""

    def made(uid: str, at: int) -> None:
        (tmp_path / f"pods/train_job-{uid[0]}_{uid}").mkdir(parents=True)
        os.utime(tmp_path / "pods", ns=(at, at))

    return made


def test_pods_of_one_tick(tmp_path: Path, add: Callable[[str, int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that is made in the same tick of the kernel's clock as the one before the listing is found."""
    logs, now = PodLogs(tmp_path), time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now)
    add(A, now)
    assert ContainerNames("job-a", "train") == logs.names("", A)
    add(B, now)
    assert ContainerNames("job-b", "train") == logs.names("", B)


def test_a_folder_without_change_is_not_listed_again(
    tmp_path: Path, add: Callable[[str, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is absent from the listing of a folder without changes for a second is not searched for."""
    logs = PodLogs(tmp_path)
    add(A, time.time_ns() - 10_000_000_000)
    assert logs.names("", A)
    monkeypatch.delattr(os, "scandir")
    assert ContainerNames() == logs.names("", B)
