"""The jobs that a Slurm prolog wrote down, as dcgm-exporter has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exporter.resolve.slurm import JobGpu, job_gpus


def test_files(tmp_path: Path) -> None:
    """A file is a GPU, or a GPU instance of it, and each of its lines a job."""
    for name, text in {
        "0": "1001\n1002\n",
        "1": "1003",
        "7.2": " 1004 \n\n",
        "2": "",
        "3": "array_1005[1]\r\n",
    }.items():
        (tmp_path / name).write_text(text)
    assert [
        JobGpu(0, None, "1001"),
        JobGpu(0, None, "1002"),
        JobGpu(1, None, "1003"),
        JobGpu(3, None, "array_1005[1]"),
        JobGpu(7, 2, "1004"),
    ] == job_gpus(tmp_path)


@pytest.mark.parametrize("name", ["gpu0", "0.1.2", "-1", "12345", "0.", ".0", " 0", "0~", "٣", "0.tmp"])
def test_other_files(tmp_path: Path, name: str) -> None:
    """A file of another name is passed over."""
    (tmp_path / name).write_text("1001")
    assert [] == job_gpus(tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"x" * 129, []),
        (b"a\0b\n17", ["17"]),
        (b"\xff\n17", ["\ufffd", "17"]),
        (b"\xe2\x80\xae1\n17", ["17"]),
        (b"".join(b"%d\n" % job for job in range(100)), [str(job) for job in range(64)]),
        (b"1\n" * 100_000, ["1"] * 64),
    ],
)
def test_lines_that_are_no_jobs(tmp_path: Path, content: bytes, expected: list[str]) -> None:
    """A line that is not printable or is long is no job, and the lines and bytes of a file are bounded."""
    (tmp_path / "0").write_bytes(content)
    assert expected == [it.job for it in job_gpus(tmp_path)]


def test_no_files(tmp_path: Path) -> None:
    """Folders, pipes and links to nowhere by a GPU's name are passed over without waiting."""
    (tmp_path / "0").mkdir()
    os.mkfifo(tmp_path / "1")
    (tmp_path / "2").symlink_to(tmp_path / "nowhere")
    (tmp_path / "3").symlink_to("/dev/zero")
    assert [] == job_gpus(tmp_path)


def test_too_many_jobs(tmp_path: Path) -> None:
    """More jobs than a node can run are refused, not read on."""
    for gpu in range(100):
        (tmp_path / str(gpu)).write_text("\n".join(map(str, range(64))))
    with pytest.raises(ValueError, match="more than 4096 jobs"):
        job_gpus(tmp_path)


def test_no_folder(tmp_path: Path) -> None:
    """A missing folder is an error, because it was configured."""
    with pytest.raises(FileNotFoundError):
        job_gpus(tmp_path / "nowhere")
