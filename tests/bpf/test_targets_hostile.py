"""The search for libraries beside files that are made to stop it: endless tables, file systems that do not answer."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from exporter.bpf import search
from exporter.bpf.mappings import IteratorLister
from exporter.bpf.native import BpfError
from exporter.bpf.targets import Targets
from tests.bpf.test_targets import (
    Counter,
    Job,
    build_library,
    counter,
    counter_object,
    library,
    program,
    start_job,
    start_targets,
)
from tests.program.bpf.test_elf import sparse
from tests.support import PATIENCE, until
from tests.unit.bpf import fuse
from tests.unit.bpf.fuse import hung

__all__ = ["build_library", "counter", "counter_object", "hung", "library", "program", "start_job", "start_targets"]

pytestmark = [pytest.mark.needs_bpf, pytest.mark.timeout(300)]

MAPS = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
held = mmap.mmap(file, mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
print("mapped", flush=True)
sys.stdin.read()
"""
MAPS_AS_USERS = """
import mmap, os, sys
for number, name in enumerate(sorted(os.listdir(sys.argv[1]))):
    file = os.open(os.path.join(sys.argv[1], name), os.O_RDONLY)
    end, started = os.pipe()
    if not os.fork():
        os.setresuid(20000 + number, 20000 + number, 20000 + number)
        held = mmap.mmap(file, mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
        os.write(started, b"x")
        sys.stdin.read()
        os._exit(0)
    os.read(end, 1)
print("mapped", flush=True)
sys.stdin.read()
"""
NO_OTHER_LOOK = 3600.0
"""Seconds until the search looks at everything again: what is found is not found by that."""
MANY = 16


@contextmanager
def mapping(path: Path, script: str = MAPS) -> Iterator[subprocess.Popen[str]]:
    """A process that has a page of a file mapped as code, which it never reads."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout and process.stdout.readline() == "mapped\n"
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    """Kills a process, which does not end while its file hangs."""
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    for stream in (process.stdin, process.stdout):
        assert stream
        stream.close()


def reads(pid: int) -> bool:
    """Return whether a descendant of this process waits for the file: for the answer, or with others for a page."""
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(OSError):  # it has ended meanwhile
            place = Path(f"/proc/{child.pid}/wchan").read_text()
            if "request_wait" in place or "folio" in place:
                return True
    return False


def test_sparse_file(
    library: Path,
    tmp_path: Path,
    start_job: Callable[..., Job],
    start_targets: Callable[..., Targets],
    counter: Counter,
) -> None:
    """Four KiB that claim millions of symbols delay others' libraries by a moment, touched again and again or not."""
    path = sparse(tmp_path / "sparse.so")
    searched = start_targets(resync=NO_OTHER_LOOK)
    with mapping(path):
        for _ in range(3):
            os.utime(path)
            with mapping(path):
                time.sleep(0.3)
        job = start_job().open(library)
        assert counter.hears("started", job.pid, False)
        job.do("call 23")
        assert 23 == counter.hits(job.pid)
    until(lambda: searched.status.unsearched.get("too_long", 0) >= 1, "the refusal counted")


@pytest.mark.skipif(os.geteuid() != 0, reason="processes of other users are started by root")
def test_sparse_files_of_many_users(
    library: Path,
    tmp_path: Path,
    start_job: Callable[..., Job],
    start_targets: Callable[..., Targets],
    counter: Counter,
) -> None:
    """However many users have such files, a library is found before more than a few of these were given up."""
    (folder := tmp_path / "sparse").mkdir()
    for number in range(MANY):
        sparse(folder / f"{number}.so")
    searched = start_targets(resync=NO_OTHER_LOOK)
    with mapping(folder, MAPS_AS_USERS):
        before = searched.status.unsearched.get("too_long", 0)
        job = start_job().open(library)
        assert counter.hears("started", job.pid, False)
        assert searched.status.unsearched.get("too_long", 0) - before < MANY / 2
        job.do("call 23")
        assert 23 == counter.hits(job.pid)


@pytest.mark.parametrize("resync", [NO_OTHER_LOOK, 1.0])
def test_hung_file(
    library: Path,
    hung: fuse.Hung,
    start_job: Callable[..., Job],
    start_targets: Callable[..., Targets],
    counter: Counter,
    resync: float,
) -> None:
    """A mapped file on a mount that never answers keeps no library from being found, nor the end from coming.

    Each look at all processes has the file once more, one that lost records cause too, but one child waits for it.
    """
    searched = start_targets(resync=resync)
    with mapping(hung.path):
        until(lambda: reads(os.getpid()), "the file read")
        job = start_job().open(library)
        assert counter.hears("started", job.pid, False)
        job.do("call 23")
        assert 23 == counter.hits(job.pid)
        looks = 1 if resync == NO_OTHER_LOOK else 3
        until(lambda: searched.status.unsearched.get("stuck", 0) >= looks, lambda: f"given up: {searched.status}")
        assert 1 == searched.status.abandoned, searched.status
        assert searched.close()
        hung.end()


def test_the_exporter_ends_beside_a_hung_file(hung: fuse.Hung) -> None:
    """SIGTERM ends it, while it waits for the file and after."""
    command = Path(sys.executable).parent / "accel-exporter"
    flags = ["--web.listen-address=127.0.0.1:0", "--collector.disable-defaults", "--collector.cuda"]
    with mapping(hung.path):
        exporter = subprocess.Popen([command, *flags], stderr=subprocess.PIPE, text=True)
        try:
            until(lambda: reads(exporter.pid), "the file read")
            exporter.send_signal(signal.SIGTERM)
            _, log = exporter.communicate(timeout=PATIENCE)
        finally:
            exporter.kill()
            exporter.wait()
            assert exporter.stderr
            exporter.stderr.close()
        hung.end()
    assert 0 == exporter.returncode, log
    assert "everything is detached" in log


def test_listing_everything_is_bounded(
    library: Path,
    tmp_path: Path,
    start_targets: Callable[..., Targets],
    counter: Counter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a kernel that cannot list one process (before Linux 6.1), a process that maps files without end causes
    listings of all processes that take a tenth of a processor, not half of one.
    """
    spent = []
    everything = IteratorLister.everything
    create = IteratorLister.create_link

    def refuse(self: IteratorLister, pid: int = 0) -> int:
        if pid:
            raise BpfError(22, "no such thing")
        return create(self)

    def costly(self: IteratorLister) -> object:
        began = time.thread_time()
        while time.thread_time() - began < 0.05:
            pass
        found = everything(self)
        spent.append(time.thread_time() - began)
        return found

    monkeypatch.setattr(IteratorLister, "create_link", refuse)
    monkeypatch.setattr(IteratorLister, "everything", costly)
    start_targets()
    del spent[:]
    began = time.monotonic()
    script = MAPS.replace("file = ", "for path in sys.argv[1:]:\n  file = ").replace("\nheld", "\n  held")
    for number in range(40):
        shutil.copy(sys.executable, tmp_path / f"lib{number}.so")
    process = subprocess.Popen(
        [sys.executable, "-c", "import time\n" + script.replace("PROT_EXEC)", "PROT_EXEC); time.sleep(0.1)"),
         *sorted(tmp_path.glob("lib*.so"))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout and process.stdout.readline() == "mapped\n"
        until(lambda: spent, "everything listed")
        assert sum(spent) < 2 * search.SHARE * (time.monotonic() - began)
    finally:
        end(process)
