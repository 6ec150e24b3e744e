"""The /dev of processes that arranged their root themselves, in mount namespaces of their own."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporter.resolve import devices
from exporter.resolve.process_gpus import nodes

ROOT = Path(__file__).parents[3]
PROC = Path("/proc")
CLONE_NEWNS = 0x20000
Start = Callable[[str], int]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace takes root to make")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process with the root folder `root`, after commands in its own mount namespace; returns its pid."""
    started: list[int] = []

    def start(commands: str) -> int:
        ready, result = os.pipe()
        child = os.fork()
        if not child:
            try:
                if ctypes.CDLL(None).unshare(CLONE_NEWNS):
                    os.write(result, b"no mount namespace")
                    os._exit(1)
                script = f"mount --make-rprivate / && mkdir root && mount --bind root root && {commands}"
                done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True)
                if done.returncode:
                    os.write(result, done.stderr.encode() or b"failed")
                    os._exit(1)
                os.chroot(tmp_path / "root")
                os.write(result, b"ready")
                signal.pause()
            finally:
                os._exit(1)
        started.append(child)
        outcome = os.read(ready, 4096)
        os.close(ready)
        os.close(result)
        if outcome != b"ready":
            pytest.skip(f"not to be arranged here: {outcome.decode()}")
        return child

    yield start
    for child in started:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_device_nodes(start: Start) -> None:
    """A container's /dev, which is a tmpfs, and the host's are listed."""
    pid = start(
        "mkdir root/dev && mount -t tmpfs tmpfs root/dev && cd root/dev && touch nvidia0 nvidia3 nvidiactl null"
    )

    assert {0, 3} == nodes(PROC, pid)
    assert "null" in devices.names(PROC, os.getpid())


@pytest.mark.parametrize("link", ["{host}", "/../../../../{host}", "..{host}", "/proc/self/root{host}"])
def test_link_out_of_the_root(start: Start, tmp_path: Path, link: str) -> None:
    """A /dev that is a link shows no folder of the host, and none of the container either."""
    (tmp_path / "hostsecret").mkdir()
    for name in ("nvidia42", "nvidia7"):
        (tmp_path / "hostsecret" / name).touch()
    pid = start(f"mkdir root/proc && ln -s {shlex.quote(link.format(host=tmp_path / 'hostsecret'))} root/dev")

    assert nodes(PROC, pid) is None


def test_folder_on_a_disk(start: Start) -> None:
    """A /dev that is no file system in memory is not listed: a disk may be slow, a network gone."""
    pid = start("mkdir root/dev && touch root/dev/nvidia5")
    if devices.file_system(PROC, pid, os.open(f"/proc/{pid}/root", os.O_PATH)) in ("tmpfs", "devtmpfs"):
        pytest.skip("temporary files are in memory here")

    assert nodes(PROC, pid) is None


def test_many_entries(start: Start) -> None:
    """A /dev of more entries than any has is left alone."""
    pid = start(
        "mkdir root/dev && mount -t tmpfs tmpfs root/dev && cd root/dev && seq -f nvidia%g 0 20000 | xargs touch"
    )

    assert nodes(PROC, pid) is None


@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="there is no FUSE here")
def test_file_system_that_never_answers(start: Start) -> None:
    """A /dev on FUSE that answers nothing keeps nobody waiting."""
    mount = "exec 9<>/dev/fuse; mount -t fuse -o fd=9,rootmode=40000,user_id=0,group_id=0,allow_other x root/dev"
    pid = start(f"mkdir root/dev && {mount} && (sleep 60 >/dev/null 2>&1 &)")
    program = (
        f"from exporter.resolve.process_gpus import nodes; from pathlib import Path; print(nodes(Path('/proc'), {pid}))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=30)

    assert "None\n" == done.stdout, done.stderr


def test_ended_process() -> None:
    """Of a process that is gone nothing is known."""
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)

    assert nodes(PROC, child) is None
