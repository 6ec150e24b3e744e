"""Trust in the name that a process shows of a file, for all processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.bpf.trust import may_name

PID, USER = 4711, 1000


@pytest.fixture
def process(tmp_path: Path) -> Path:
    """/proc/PID of a process of USER in a user namespace of its own."""
    folder = tmp_path / str(PID)
    (folder / "ns").mkdir(parents=True)
    (folder / "ns/user").touch()
    (folder / "status").write_text(f"Name:\tjob\nUid:\t0\t{USER}\t0\t0\n")
    return folder


@pytest.mark.parametrize(("owner", "believed"), [(0, False), (USER, True), (1001, False), (-1, False)])
def test_a_process_in_a_user_namespace_of_its_own(process: Path, owner: int, believed: bool) -> None:
    """The process counts for files of its effective user only, whoever else that user claims to be."""
    assert believed == may_name(process.parent, PID, owner)


@pytest.mark.parametrize("owner", [0, USER, 1001])
def test_a_process_in_the_exporters_user_namespace(process: Path, owner: int) -> None:
    """The process counts: mounting takes root there."""
    (process / "ns/user").unlink()
    (process / "ns/user").symlink_to("/proc/self/ns/user")
    assert may_name(process.parent, PID, owner)


def test_roots_process_in_another_namespace(process: Path) -> None:
    """Root's own process in a namespace of its own may have been mapped there by anyone: it does not count."""
    (process / "status").write_text("Uid:\t0\t0\t0\t0\n")
    assert not may_name(process.parent, PID, 0)


def test_a_process_that_has_ended(tmp_path: Path) -> None:
    """Nothing is believed of it."""
    assert not may_name(tmp_path, PID, USER)
