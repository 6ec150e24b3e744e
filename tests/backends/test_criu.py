"""Checkpoint and restore of a probed process by CRIU: docs/faq.md has the results."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from tests.backends import fetch
from tests.bpf.cuda_node import BUILD, observe
from tests.bpf.observed import Observed
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.timeout(600)]

JOB = """
#include <unistd.h>
int cuInit(unsigned), cuStreamSynchronize(void *);
int cuLaunchKernel(const void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
	void *, void **, void **);
int main(int argc, char **argv)
{
	(void)argv;
	for (cuInit(0);; usleep(20000)) {
		cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
		if (argc > 1)
			cuStreamSynchronize(0);
	}
}
"""
"""Launches until it is killed, and with an argument waits after each launch."""


class Checkpoint:
    """A job, and its image."""

    def __init__(self, criu: list[str], folder: Path, waits: bool) -> None:
        self._criu, self._image, self.library = criu, folder / "image", folder / "libcuda.so.1"
        self._image.mkdir()
        shutil.copy(BUILD / "libcuda.so.1", folder)
        command = ["gcc", "-x", "c", "-", "-o", folder / "job", f"-L{BUILD}", "-l:libcuda.so.1"]
        subprocess.run(command, input=JOB, text=True, check=True)
        self.process = subprocess.Popen(
            [folder / "job", *["waits"][: int(waits)]],
            env=os.environ | {"LD_LIBRARY_PATH": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dump(self) -> str:
        """Ends the job; what CRIU objects to instead, empty otherwise."""
        return self._run("dump", "-t", str(self.process.pid))

    def restore(self) -> str:
        """Starts the job again under its old pid, as our child; or as `dump`."""
        self.process.wait(20)
        return self._run("restore", "-d", "--restore-sibling")

    def _run(self, action: str, *arguments: str) -> str:
        log = self._image / f"{action}.log"
        done = subprocess.run([*self._criu, action, "-D", self._image, "-v2", "-o", log.name, *arguments], check=False)
        errors = [line for line in log.read_text().splitlines() if "Error" in line] if log.exists() else []
        return "\n".join(errors) or f"criu {action}: status {done.returncode}" if done.returncode else ""


@contextmanager
def checkpoint(criu: list[str], folder: Path, waits: bool = False) -> Iterator[Checkpoint]:
    folder.mkdir()
    job = Checkpoint(criu, folder, waits)
    try:
        yield job
    finally:
        job.process.kill()
        job.process.wait(20)


@pytest.fixture
def criu(tmp_path: Path) -> list[str]:
    """The command, where it can dump and restore a process that is not probed."""
    command = fetch.criu()
    with checkpoint(command, tmp_path / "unprobed") as job:
        problem = job.dump() or job.restore()
        if problem:
            pytest.skip(f"CRIU cannot dump and restore a process here, also one that is not probed: {problem}")
        assert _end(job.process.pid) == 0
    return command


def _end(pid: int) -> int:
    """The signal that ended a restored child within a second; 0 if it ran on, which it does not afterwards."""
    ended: list[int] = []

    def has_ended() -> bool:
        ended.extend(status for found, status in [os.waitpid(pid, os.WNOHANG)] if found)
        return bool(ended)

    try:
        until(has_ended, "the end of the restored process", 1.0)
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return 0
    return os.WTERMSIG(ended[0])


def _launches(observed: Observed, job: Checkpoint) -> int:
    calls: int | None = observed.value("gpu_cuda_api_calls_total", job.process.pid, api="cuLaunchKernel")
    return calls or 0


def _is_probed(job: Checkpoint) -> bool:
    """Return whether a new process's code of the library differs from the code in the file."""
    environment = os.environ | {"LD_LIBRARY_PATH": str(job.library.parent)}
    with subprocess.Popen([job.library.parent / "job"], env=environment) as process:
        time.sleep(1)
        folder = Path(f"/proc/{process.pid}")
        [line] = [it for it in (folder / "maps").read_text().splitlines() if str(job.library) in it and " r-xp " in it]
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        with (folder / "mem").open("rb") as memory:
            memory.seek(start)
            code = memory.read(end - start)
        process.kill()
    offset = int(line.split()[2], 16)
    return code.rstrip(b"\0") != job.library.read_bytes()[offset : offset + end - start].rstrip(b"\0")


@contextmanager
def probed(job: Checkpoint, has: Callable[[str], bool]) -> Iterator[None]:
    """With an exporter that observes the job until its mappings are as they are to be."""
    with observe() as observed:
        until(lambda: _launches(observed, job) > 0, "a probed call")
        before = _launches(observed, job)
        until(lambda: _launches(observed, job) > before, "another one")
        until(lambda: has(Path(f"/proc/{job.process.pid}/maps").read_text()), "the mappings of a probed process")
        yield


def test_entry_probes(criu: list[str], tmp_path: Path) -> None:
    """The image has the breakpoints in it: without an exporter the restored job dies at the first probed call."""
    with checkpoint(criu, tmp_path / "job") as job:
        with probed(job, lambda maps: "[uprobes]" not in maps):
            assert not job.dump()
        assert not job.restore()
        end = _end(job.process.pid)
        if not end and _is_probed(job):
            pytest.skip("another exporter on this machine probes the same library")
        assert end == signal.SIGTRAP


def test_return_probes(criu: list[str], tmp_path: Path) -> None:
    """A job that has run a return probe is refused, with and without an exporter, and lives on."""
    with checkpoint(criu, tmp_path / "job", waits=True) as job:
        for around in (probed(job, lambda maps: "[uprobes]" in maps), nullcontext()):
            with around:
                assert "Unsupported mapping" in job.dump()
        assert job.process.poll() is None
