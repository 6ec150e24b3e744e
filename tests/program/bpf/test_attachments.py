"""Attachments: once for each file, within the limits of places, time and descriptors."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from exporter import descriptors
from exporter.bpf import attachments, multi, shares, verdicts
from exporter.bpf.attached import Attached
from exporter.bpf.attachments import Attachments
from exporter.bpf.elf import TakesLonger
from exporter.bpf.file_worker import ChildError, Stuck, TooLong
from exporter.bpf.library import Wait
from exporter.bpf.mappings import Mapping
from exporter.bpf.shares import NOBODY
from tests.unit.bpf.mapped import PID, CallerRecorder, Proc, Recorder, failing


def test_an_interest_in_importers(proc: Proc, built: Path, calling: Path) -> None:
    """A library is attached to for the interest in its function, and its caller for the interest in importers."""
    definers, importers = Recorder(), CallerRecorder()
    kept = Attachments([definers, importers], proc.root, grace=0)
    for path in (built, calling):
        assert kept.of(proc.map(path))
    assert [str(built)] == [library.path for library in definers.attached]
    assert [str(calling)] == [library.path for library in importers.attached]
    kept.close()


def test_an_attachment_is_made_once(proc: Proc, built: Path) -> None:
    """However often a file is mapped, it is examined and attached to once."""
    interest = Recorder()
    kept = Attachments([interest], proc.root, grace=0)
    first = kept.of(proc.map(built))
    second = kept.of(proc.map(built, 0x1000, 0x2000))
    assert first is second
    assert (1, 1) == (kept.verdicts.examined, len(interest.attached))
    kept.close()
    assert 1 == interest.closed


def test_a_touched_library_stays_attached(proc: Proc, built: Path, tmp_path: Path) -> None:
    """A new time stamp on the same code is no new library."""
    interest = Recorder()
    kept = Attachments([interest], proc.root, grace=0)
    path = Path(shutil.copy(built, tmp_path / "lib.so"))
    before = kept.of(proc.map(path))
    os.utime(path, ns=(5, 5))
    assert before is kept.of(proc.map(path))
    assert (1, 0) == (len(interest.attached), interest.closed)
    kept.close()


def test_an_overwritten_library_is_attached_to_again(proc: Proc, built: Path, other: Path, tmp_path: Path) -> None:
    """New code in the same file ends the old attachment before the new one is made."""
    interest = Recorder()
    kept = Attachments([interest], proc.root, grace=0)
    path = Path(shutil.copy(built, tmp_path / "lib.so"))
    kept.of(proc.map(path))
    path.write_bytes(other.read_bytes())
    os.utime(path, ns=(5, 5))
    assert kept.of(proc.map(path))
    assert (2, 1) == (len(interest.attached), interest.closed)
    path.write_bytes(b"no library any more")
    assert kept.of(proc.map(path)) is None
    assert (2, 2, 0) == (len(interest.attached), interest.closed, len(kept))


def test_a_library_is_left_when_it_is_written_to(proc: Proc, built: Path, tmp_path: Path) -> None:
    """Probes go at once, whoever maps it; its users are to be looked at, and it is attached to again."""
    interest = Recorder()
    kept = Attachments([interest], proc.root, grace=0)
    path = Path(shutil.copy(built, tmp_path / "lib.so"))
    attached = kept.of(proc.map(path))
    assert attached
    attached.users.add(23)
    assert not kept.leave_overwritten()
    path.write_bytes(built.read_bytes())
    assert {23} == kept.leave_overwritten()
    assert (1, 1, 0) == (len(interest.attached), interest.closed, len(kept))
    os.utime(path, ns=(5, 5))
    again = kept.of(proc.map(path))
    assert again and again is not attached
    assert attached.detached
    kept.close()


def test_failing_to_attach_is_counted_and_tried_again(proc: Proc, built: Path) -> None:
    """If every interest fails no descriptor stays open, and another try is made after `retry`."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    kept = Attachments([Recorder(OSError(22, "refused"))], proc.root, grace=0)
    mapping = proc.map(built)
    for _ in range(2):
        assert kept.of(mapping) is None
        kept.verdicts.retry()
    assert (2, 2) == (kept.verdicts.examined, kept.failed)
    kept.close()
    assert before == len(list(Path("/proc/self/fd").iterdir()))


def test_one_that_fails_to_attach_is_tried_again(proc: Proc, built: Path) -> None:
    """A failed interest is attached later; others that are attached to the same library stay."""
    steady, flaky = Recorder(), Recorder(OSError(12, "no memory"))
    kept = Attachments([steady, flaky], proc.root, grace=0)
    mapping = proc.map(built)
    found = kept.of(mapping)
    flaky._error = None
    kept.verdicts.retry()
    assert found is kept.of(mapping)
    assert found
    assert ([steady, flaky], 1) == ([interest for interest, _ in found.links], len(steady.attached))
    kept.close()
    assert (1, 1) == (steady.closed, flaky.closed)


@pytest.mark.parametrize("error", [OSError(116, "Stale file handle"), ChildError("died"), Stuck("no answer")])
def test_a_library_that_cannot_be_read_again_stays_attached(
    proc: Proc, built: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """An unchanged file is what it was."""
    interest = Recorder()
    kept = Attachments([interest], proc.root, grace=0)
    mapping = proc.map(built)
    before = kept.of(mapping)
    kept.verdicts.doubt(mapping.file)
    kept.verdicts.retry()
    monkeypatch.setattr(verdicts, "examine", failing(error))
    assert before is kept.of(mapping)
    assert 0 == interest.closed
    kept.close()


@pytest.mark.parametrize("error", [OSError(116, "Stale file handle"), ChildError("died"), Stuck("no answer")])
def test_a_changed_library_that_cannot_be_read_is_detached(
    proc: Proc, built: Path, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """Probes at offsets of other code would break it; once it can be read, it is attached to again."""
    interest, examine = Recorder(), verdicts.examine
    kept = Attachments([interest], proc.root, grace=0)
    path = Path(shutil.copy(built, tmp_path / "lib.so"))
    assert kept.of(proc.map(path))
    monkeypatch.setattr(verdicts, "examine", failing(error))
    path.write_bytes(other.read_bytes())
    os.utime(path, ns=(5, 5))
    assert kept.of(proc.map(path)) is None
    assert 1 == interest.closed
    monkeypatch.setattr(verdicts, "examine", examine)
    kept.verdicts.retry()
    assert kept.of(proc.map(path))
    assert (2, 1, 1) == (len(interest.attached), interest.closed, len(kept))
    kept.close()


def test_libraries_are_limited(proc: Proc, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit libraries are refused and counted."""
    monkeypatch.setattr(attachments, "MAX_LIBRARIES", 2)
    kept = Attachments([Recorder()], proc.root, grace=0)
    found = [kept.of(proc.map(Path(shutil.copy(built, tmp_path / f"{i}.so")))) for i in range(4)]
    assert [True, True, False, False] == [attached is not None for attached in found]
    assert (2, {"limit": 2}) == (len(kept), kept.refused)
    kept.close()


def test_libraries_leave_the_reserve_of_descriptors(
    proc: Proc, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room for another library's links it is refused and counted, and attached to once there is room."""
    room = attachments.LINKS - 1
    monkeypatch.setattr(multi, "supported", lambda: True)
    monkeypatch.setattr(descriptors, "room", lambda: room)
    interest = Recorder()
    kept = Attachments([interest], proc.root, grace=0)
    mapping = proc.map(Path(shutil.copy(built, tmp_path / "lib.so")))
    before = open_files()
    assert kept.of(mapping) is None
    assert (0, {"descriptors": 1}, []) == (len(kept), kept.refused, interest.attached)
    assert before == open_files()
    room += 1
    kept.verdicts.retry()
    assert kept.of(mapping)
    assert ({"descriptors": 1}, 1) == (kept.refused, len(interest.attached))
    kept.close()


def test_a_library_of_many_functions_takes_more_without_multi_links(
    proc: Proc, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each point is two descriptors then: call and return of one function take four."""
    monkeypatch.setattr(multi, "supported", lambda: False)
    kept = Attachments([Recorder()], proc.root, grace=0)
    monkeypatch.setattr(descriptors, "room", lambda: 3)
    assert kept.of(proc.map(built)) is None
    monkeypatch.setattr(descriptors, "room", lambda: 4)
    kept.verdicts.retry()
    assert kept.of(proc.map(built))
    kept.close()


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def test_users_have_a_share_of_the_places(
    proc: Proc, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One user's files leave places for others', and a place that is free again can be taken."""
    monkeypatch.setattr(shares, "PLACES", 2)
    kept = Attachments([Recorder()], proc.root, grace=0)
    user = 1000
    monkeypatch.setattr(kept.shares, "user", lambda pid: user)

    def attach(name: str) -> bool:
        with kept.on_account_of(PID):
            return kept.of(proc.map(Path(shutil.copy(built, tmp_path / name)))) is not None

    assert [True, True, False, False] == [attach(f"{number}.so") for number in range(4)]
    assert {"share": 2} == kept.refused
    user = 1001
    assert attach("other.so")
    kept.release_idle()
    user = 1000
    assert attach("later.so")
    kept.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files to others takes root")
def test_the_last_places_are_for_files_of_root(
    proc: Proc, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many files users have, a library of the system or of an image finds a place."""
    monkeypatch.setattr(attachments, "MAX_LIBRARIES", 4)
    monkeypatch.setattr(attachments, "FOR_ROOT", 2)
    kept = Attachments([Recorder()], proc.root, grace=0)
    found = []
    for number, owner in enumerate((1000, 1001, 1002, 0, 0, 0)):
        path = Path(shutil.copy(built, tmp_path / f"{number}.so"))
        os.chown(path, owner, owner)
        found.append(kept.of(proc.map(path)) is not None)
    assert [True, True, False, True, True, False] == found
    kept.close()


def test_files_of_a_user_beyond_its_share_wait(proc: Proc, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's next file is not read before some time has come back; the file is not forgotten."""
    monkeypatch.setattr(shares, "REFILL", 0.0)
    kept = Attachments([Recorder()], proc.root, grace=0)
    kept.shares.spend(NOBODY, 1e3)
    mapping = proc.map(built)
    for _ in range(2):
        with pytest.raises(Wait), kept.on_account_of(PID):
            kept.of(mapping)
    assert (0, {"share": 2}) == (kept.verdicts.examined, kept.verdicts.unsearched)
    kept.shares = shares.Shares(proc.root)
    with kept.on_account_of(PID):
        assert kept.of(mapping)
    assert kept.shares._credit(NOBODY).left < shares.CREDIT  # reading it has been counted
    kept.close()


def test_a_round_ends_and_newcomers_are_first_in_the_next(
    proc: Proc, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that take long, of however many users, delay a file of another user by the rest of a round."""
    spent = [0.0]
    examine = verdicts.examine

    def take_long(*arguments: Any) -> Any:
        spent[0] += 2.0
        return examine(*arguments)

    monkeypatch.setattr(verdicts, "examine", take_long)
    monkeypatch.setattr(attachments.WORKER, "spent", lambda: spent[0])
    kept = Attachments([Recorder()], proc.root, grace=0)
    monkeypatch.setattr(kept.shares, "user", lambda pid: pid)
    waiting = {pid: [Path(shutil.copy(built, tmp_path / f"{pid}-{n}.so")) for n in range(3)] for pid in range(1, 9)}
    looked: list[int] = []

    def look() -> None:
        for pid in kept.begin_round(waiting):
            for path in list(waiting[pid]):
                with suppress(Wait), kept.on_account_of(pid):
                    assert kept.of(proc.map(path))
                    waiting[pid].remove(path)
                    looked.append(pid)

    for _ in range(8):
        look()
    assert [*range(1, 9)] == looked
    waiting[99] = [Path(shutil.copy(built, tmp_path / "newcomer.so"))]
    look()
    assert [*range(1, 9), 99] == looked
    kept.close()


def test_files_that_take_long_wait_for_all_others(
    proc: Proc, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many users have files that take long, a newcomer's is searched as soon as each had a slice of time."""
    spent, given_up, examine = [0.0], list[int](), verdicts.examine

    def take_time(root: Path, mapping: Mapping, *rest: Any) -> Any:
        within = rest[-1]
        if mapping.size == newcomer.stat().st_size:
            return examine(root, mapping, *rest[:-1], None)
        spent[0] += within or 2.3
        if within is None:
            given_up.append(mapping.number)
            raise TooLong("it takes long")
        raise TakesLonger("it takes longer")

    monkeypatch.setattr(verdicts, "SLICE", 0.01)
    monkeypatch.setattr(verdicts, "examine", take_time)
    monkeypatch.setattr(attachments.WORKER, "spent", lambda: spent[0])
    kept = Attachments([Recorder()], proc.root, grace=0)
    monkeypatch.setattr(kept.shares, "user", lambda pid: pid)
    newcomer = built
    waiting = {pid: tmp_path / f"{pid}.so" for pid in range(1, 81)}
    for pid, path in waiting.items():
        path.write_bytes(b"%d" % pid)
    waiting[99] = newcomer

    def look() -> None:
        for pid in kept.begin_round(waiting):
            with suppress(Wait), kept.on_account_of(pid):
                found[pid] = kept.of(proc.map(waiting[pid]))

    found: dict[int, Attached | None] = {}
    while 99 not in found:
        look()
    assert found[99]
    assert spent[0] < 81 * verdicts.SLICE + attachments.ROUND_SECONDS + 2.3
    while len(found) < 81:
        look()
    assert (80, 80) == (len(given_up), kept.verdicts.unsearched["too_long"])
    assert (81, False) == (kept.verdicts.examined, kept.contended)
    kept.close()


def test_release_waits_for_the_grace_period(proc: Proc, built: Path) -> None:
    """A library without users is kept for the grace period; one with users for ever."""
    interest = Recorder()
    kept = Attachments([interest], proc.root, grace=100)
    attached = kept.of(proc.map(built))
    assert attached
    assert attached.idle_since + 100 == kept.release_idle()
    attached.users.add(PID)
    attached.idle_since -= 200
    assert float("inf") == kept.release_idle()
    attached.users.clear()
    kept.release_idle()
    assert (1, 0) == (interest.closed, len(kept))
