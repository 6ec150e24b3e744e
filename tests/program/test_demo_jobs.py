"""The demo's jobs: what a person sees before a download, and where it fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.demo import jobs
from tests.real import releases

RELEASE = releases.TORCH[0]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another folder than that in which releases are."""
    for module in (jobs, releases):
        monkeypatch.setattr(module, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(jobs.soft, "build", lambda: None)
    return tmp_path / "cache"


def install(cache: Path) -> None:
    """Leave what an installed release leaves."""
    (cache / RELEASE.name).mkdir(parents=True)
    (cache / RELEASE.name / "installed").write_text(releases.pinned(RELEASE))


def test_a_download_that_fails(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Sizes and the folder are shown before, pip's own messages while it lasts, and its reason in one sentence."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 10**12))
    expected = r"torch==2\.14\.1 numpy cannot be installed: ERROR: No matching .*`make demo` without --torch needs no"
    with pytest.raises(jobs.NoJob, match=expected):
        jobs.pytorch(tmp_path)
    shown = capfd.readouterr().out
    assert f"about 2.8 GB, 5.5 GB in {tmp_path}/cache/torch-2.14.1." in shown
    assert not releases.installed(RELEASE)


def test_no_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Missing space is known before anything is downloaded."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 7_000_000_000))
    monkeypatch.setattr(releases, "_run", lambda *_: pytest.fail("something was installed"))
    with pytest.raises(jobs.NoJob, match=r"has 7\.0 GB of free space and PyTorch 2\.14\.1 \(CUDA 13\) needs 9\.9 GB"):
        jobs.pytorch(tmp_path)


def test_no_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The soft GPU is compiled on demand."""

    def fails() -> None:
        raise subprocess.CalledProcessError(2, "make")

    install(cache)
    monkeypatch.setattr(jobs.soft, "build", fails)
    with pytest.raises(jobs.NoJob, match="tests/softgpu cannot be compiled .*: `make setup` installs gcc"):
        jobs.pytorch(tmp_path)


def test_installed_before(cache: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Nothing is downloaded a second time, and nothing printed."""
    install(cache)
    made = jobs.pytorch(tmp_path)
    assert ("", "") == tuple(capfd.readouterr())
    assert [str(cache / "torch-2.14.1/bin/python"), str(tmp_path / "status")] == [made.command[0], made.command[-1]]
    assert str(tmp_path / "counts") == made.environment["SOFTGPU_COUNTS"] == str(made.gpu["softgpu"])


def test_what_pytorch_counts(cache: Path, tmp_path: Path) -> None:
    """Beside the exporter's lines; the synthetic job counts nothing, and what is not there yet is a dash."""
    install(cache)
    made = jobs.pytorch(tmp_path)
    assert {"PyTorch": "-"} == made.facts()
    counted = {"steps_per_second": 41.6, "memory_reserved": 65 << 20, "out_of_memory": 2}
    (tmp_path / "status").write_text(json.dumps(counted))
    assert {"PyTorch": "42 steps/s · memory_reserved() 65.0 MiB · OutOfMemoryError 2"} == made.facts()
    assert {} == jobs.synthetic().facts()


def test_the_late_rank() -> None:
    """One of four ranks begins its calls later than the others."""
    assert ["0", "0", "0.035", "0"] == [command[-1] for command in jobs.ranks()]
    assert {sys.executable} == {command[0] for command in jobs.ranks()}
