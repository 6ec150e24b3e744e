"""The user of a process, by its cgroup, its user namespace and its uid."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from exporter.bpf.process_user import NOBODY, User, user_of
from tests.support import until

FIRST, SECOND = "1" * 64, "2" * 64
POD = "01234567-89ab-cdef-0123-456789abcdef"
SYSTEMD_POD = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}"
PROC = Path("/proc")


def process(proc: Path, pid: int, uid: int, group: str) -> None:
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "cgroup").write_text(group + "\n")
    (folder / "status").write_text(f"Name:\tUid:\nUid:\t{uid}\t0\t0\t0\n")


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (f"0::/system.slice/docker-{FIRST}.scope", f"/system.slice/docker-{FIRST}"),
        (f"0::/docker/{FIRST}/kubepods/pod{POD}/{SECOND}", f"/docker/{FIRST}"),
        (f"0::/../../system.slice/docker-{FIRST}.scope/{SECOND}", f"/../../system.slice/docker-{FIRST}"),
        (f"0::{SYSTEMD_POD}.slice/cri-containerd-{FIRST}.scope/{SECOND}", SYSTEMD_POD),
        (f"0::/kubepods/besteffort/pod{POD}/{FIRST}", f"/kubepods/besteffort/pod{POD}"),
        (f"0::/containerd.service/x:cri-containerd:{FIRST}/a", f"/containerd.service/x:cri-containerd:{FIRST}"),
        (f"5:cpu:/\n4:memory:/docker/{FIRST}/mine", f"/docker/{FIRST}"),
        ("0::/lxc.payload.one/user.slice/user-7.slice/x", "/lxc.payload.one"),
        ("0::/machine.slice/libpod-a.scope/container", "/machine.slice/libpod-a.scope"),
    ],
)
def test_processes_of_a_container_are_one_user(tmp_path: Path, group: str, expected: str) -> None:
    """Under whatever uid they run, and in whatever cgroups below the container's."""
    for pid, uid in ((1, 0), (2, 1000), (3, 20000)):
        process(tmp_path, pid, uid, group)
    assert {expected.encode()} == {user_of(tmp_path, pid) for pid in (1, 2, 3)}


@pytest.mark.parametrize(
    ("uid", "group", "expected"),
    [
        (0, f"0::/user.slice/user-1000.slice/user@1000.service/{FIRST}", 1000),
        (100005, "0::/../../user.slice/user-1000.slice/session-3.scope", 1000),
        (1001, "0::/a.service/user.slice/user-1000.slice/b", 1001),
        (1001, "0::/user.slice/user-0.slice/session-1.scope", 1001),
        (1001, "0::/system.slice/slurmstepd.scope/job_1/step_0", 1001),
        (0, "0::/a", b"0::/a\n"),
        (0, "0::/user.slice/user-0.slice/session-1.scope", b"0::/user.slice/user-0.slice/session-1.scope\n"),
    ],
)
def test_other_processes(tmp_path: Path, uid: int, group: str, expected: User) -> None:
    """A login session is its user's, of which no cgroup made elsewhere claims to be one; root's are known by cgroup."""
    process(tmp_path, 1, uid, group)
    assert expected == user_of(tmp_path, 1)


def test_a_process_that_has_ended(tmp_path: Path) -> None:
    """A process that has ended is nobody's."""
    assert NOBODY == user_of(tmp_path, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="other users' namespaces are made by root")
@pytest.mark.parametrize("depth", [1, 2])
def test_user_namespaces(tmp_path: Path, depth: int) -> None:
    """A process in a user namespace counts to who made the outermost one, whatever its uid is."""
    command = ["setpriv", "--reuid=5000", "--regid=5000", "--clear-groups", *["unshare", "-U", "-r"] * depth]
    made = subprocess.Popen([*command, "sleep", "600"])
    try:
        until(lambda: (PROC / str(made.pid) / "comm").read_text() == "sleep\n", "the namespaces made")
        process(tmp_path, made.pid, 20000, "0::/a")
        (tmp_path / str(made.pid) / "ns").symlink_to(PROC / str(made.pid) / "ns")
        assert 5000 == user_of(tmp_path, made.pid)
    finally:
        made.kill()
        made.wait()
