"""Verdicts on files: what is examined once, and what is examined again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from exporter.bpf import verdicts
from exporter.bpf.attachments import Attachments
from exporter.bpf.elf import TakesLonger
from exporter.bpf.file_worker import ChildError, Stuck, TooLong
from exporter.bpf.library import Wait
from tests.unit.bpf.mapped import END, START, Proc, Recorder, failing


def test_uninteresting_files_are_examined_once(proc: Proc) -> None:
    """A file without wanted functions, or no ELF file at all, is remembered as uninteresting."""
    kept = Attachments([Recorder()], proc.root, grace=0)
    mapping = proc.map(Path(__file__))
    assert [None, None] == [kept.of(mapping), kept.of(mapping)]
    assert (1, True) == (kept.verdicts.examined, kept.verdicts.is_uninteresting(mapping.file))


def test_what_cannot_be_read_is_counted_and_tried_again(proc: Proc, built: Path) -> None:
    """An unreadable file is not uninteresting: it is examined again after `retry`."""
    kept = Attachments([Recorder()], proc.root, grace=0)
    mapping = proc.map(built)
    link = proc.folder / "map_files" / f"{START:x}-{END:x}"
    link.unlink()
    link.symlink_to(link)  # a loop: the one error that root gets, too
    assert kept.of(mapping) is None
    assert (1, False) == (kept.verdicts.unreadable, kept.verdicts.is_uninteresting(mapping.file))
    proc.map(built)
    kept.verdicts.retry()
    assert kept.of(mapping)
    kept.close()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermissionError(13, "Permission denied"), "Permission denied; CAP_CHECKPOINT_RESTORE, "),
        (OSError(116, "Stale file handle"), "Stale file handle; the file is read again"),
        (ChildError("the process that reads files died"), "reads files died; the file is read again"),
        (ChildError(11, "the process that reads files cannot be started: x"), "cannot be started: x; the limits on"),
    ],
)
def test_why_a_file_is_not_read(
    proc: Proc,
    built: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: OSError,
    expected: str,
) -> None:
    """The log has what happened, and names capabilities only where rights are missing."""
    monkeypatch.setattr(verdicts, "examine", failing(error))
    assert Attachments([Recorder()], proc.root, grace=0).of(proc.map(built)) is None
    assert expected in caplog.text
    assert isinstance(error, PermissionError) == ("CAP_" in caplog.text)


def test_a_file_that_takes_too_long_is_remembered(
    proc: Proc, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is read once: not again when it was touched, nor when it is mapped elsewhere."""
    reads = []

    def take_long(*_: object) -> None:
        reads.append(1)
        raise TooLong("too long")

    monkeypatch.setattr(verdicts, "examine", take_long)
    kept = Attachments([Recorder()], proc.root, grace=0)
    path = Path(shutil.copy(built, tmp_path / "lib.so"))
    for number in range(5):
        os.utime(path, ns=(number, number))
        assert kept.of(proc.map(path)) is None
        kept.verdicts.retry()
    assert (1, {"too_long": 5}) == (len(reads), kept.verdicts.unsearched)


def test_files_of_a_hung_device_are_tried_again(proc: Proc, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files without an answer are counted, and not forgotten."""
    examine = verdicts.examine

    def hang(*_: object) -> None:
        raise Stuck("its file system does not answer")

    monkeypatch.setattr(verdicts, "examine", hang)
    kept = Attachments([Recorder()], proc.root, grace=0)
    mapping = proc.map(built)
    assert kept.of(mapping) is None
    assert ({"stuck": 1}, 0) == (kept.verdicts.unsearched, kept.verdicts.unreadable)
    monkeypatch.setattr(verdicts, "examine", examine)
    kept.verdicts.retry()
    assert kept.of(mapping)
    kept.close()


def test_an_endless_file_has_two_tries(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in a slice of time and one more, also where the process that reads claims that this was too short too."""
    monkeypatch.setattr(verdicts, "examine", failing(TakesLonger("it takes longer")))
    kept = Attachments([Recorder()], proc.root, grace=0)
    mapping = proc.map(Path(__file__))
    with pytest.raises(Wait):
        kept.of(mapping)
    kept.begin_round([])
    assert kept.of(mapping) is None
    assert (1, True) == (kept.verdicts.examined, kept.verdicts.is_uninteresting(mapping.file))
