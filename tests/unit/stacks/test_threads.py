"""Frames of threads in the kernel, and the order of what a snapshot has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from exporter.stack_profiles.model import Frame
from exporter.stacks.threads import kernel_frames

SHOWN = """[<0>] rdma_wait+0x1f/0x30 [ib_core]
[<0>] do_nanosleep+0x62/0x180
[<ffffffff81000000>] entry_SYSCALL_64_after_hwframe+0x76/0x7e
hostile line
"""


def test_frames_in_the_kernel(tmp_path: Path) -> None:
    """Functions and modules, the leaf first; what is no frame is left out."""
    (tmp_path / "stack").write_text(SHOWN)

    assert (
        Frame("rdma_wait", kind="kernel", module="ib_core"),
        Frame("do_nanosleep", kind="kernel"),
        Frame("entry_SYSCALL_64_after_hwframe", kind="kernel"),
    ) == kernel_frames(tmp_path)


@pytest.mark.parametrize("content", ["", "running\n"])
def test_a_thread_that_runs(tmp_path: Path, content: str) -> None:
    """A thread that runs has no frames in the kernel, nor has one of which they may not be read."""
    (tmp_path / "stack").write_text(content)

    assert () == kernel_frames(tmp_path) == kernel_frames(tmp_path / "missing")


def test_without_the_capability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without permission to read the stack, the function in which a thread waits is known; a running thread has 0."""
    read = Path.read_text

    def refuse(path: Path, *arguments: Any, **names: Any) -> str:
        if path.name == "stack":
            raise PermissionError
        return read(path, *arguments, **names)

    monkeypatch.setattr(Path, "read_text", refuse)
    (tmp_path / "wchan").write_text("futex_do_wait")
    assert (Frame("futex_do_wait", kind="kernel"),) == kernel_frames(tmp_path)
    (tmp_path / "wchan").write_text("0")
    assert () == kernel_frames(tmp_path)
