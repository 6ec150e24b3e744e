"""Workers of pytest do not see each other: a job on the files of another one is not observed, though it is there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from exporter.bpf import verdicts
from tests import workers
from tests.bpf.cuda_node import BUILD, Job, build_standins, observe, started


@pytest.mark.needs_bpf
def test_jobs_of_others_are_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two jobs with the same library in two folders the one in the worker's own folder counts, 23 launches."""
    build_standins()
    own, others = (tmp_path / "build/workers" / name for name in ("gw7", "gw8"))
    for folder in (own, others):
        folder.mkdir(parents=True)
        for name in ("libcuda.so.1", "libcudart.so.12"):
            shutil.copy(BUILD / name, folder)
    monkeypatch.setattr(verdicts, "examine", verdicts.examine)  # as before, after this test
    monkeypatch.setenv(workers.VARIABLE, str(own))
    workers.see_own_files()
    arguments = ("--launches", "23", "--gate", "--hold")
    with Job(*arguments, libraries=others) as another, observe() as observed, Job(*arguments, libraries=own) as job:
        for it in (another, started(observed, job)):
            it.go()
            it.report()
        assert [23] == list(observed.values("gpu_cuda_api_calls_total", job.pid, api="cuLaunchKernel").values())
        assert {} == observed.values("gpu_cuda_api_calls_total", another.pid)
        assert another.pid not in observed.collector.ledger


@pytest.mark.parametrize(
    ("path", "anothers"),
    [
        ("/scratch/pytest-7/popen-gw1/test_it0/libcuda.so.1", False),
        ("/scratch/pytest-7/popen-gw2/test_it0/libcuda.so.1", True),
        ("/scratch/pytest-7/popen-gw10/test_it0/libcuda.so.1", True),
        ("/tmp/pytest-of-root/pytest-8/test_it0/libcuda.so.1", True),
        ("/source/build/workers/gw1/libcuda.so.1", False),
        ("/other/build/workers/gw1/libcuda.so.1", True),
        ("/source/tests/standins/build/cet/libcuda.so.1", True),
        ("/usr/lib/x86_64-linux-gnu/libibverbs.so.1", False),
    ],
)
def test_whose_a_file_is(monkeypatch: pytest.MonkeyPatch, path: str, anothers: bool) -> None:
    """Files of the system are everyone's, files of tests are those of one worker, or of a run without workers."""
    monkeypatch.setenv(workers.VARIABLE, "/scratch/pytest-7/popen-gw1:/source/build/workers/gw1")
    assert anothers == workers.is_anothers(path)


def test_stand_ins_are_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's stand-ins are files of their own, each as old as what it was copied from, and copied once."""
    build_standins()
    monkeypatch.setenv(workers.VARIABLE, f"/anywhere:{tmp_path}/own")
    workers.take_standins()
    shared, own = (folder / "cet/libcuda.so.1" for folder in (workers.STANDINS / "build", workers.standins()))
    first = own.stat()
    assert os.access(workers.standins() / "workload", os.X_OK)
    assert (shared.stat().st_mtime_ns, shared.read_bytes()) == (first.st_mtime_ns, own.read_bytes())
    assert shared.stat().st_ino != first.st_ino
    workers.take_standins()
    assert first.st_ino == own.stat().st_ino
