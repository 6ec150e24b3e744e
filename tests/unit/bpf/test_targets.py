"""The parts of the search for libraries, on files and records made by hand."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from exporter import descriptors
from exporter.bpf import attachments, library, multi, shares, watch
from exporter.bpf import hints as hints_module
from exporter.bpf.attachments import Attachments
from exporter.bpf.file_worker import ChildError, Stuck, TooLong
from exporter.bpf.hints import Hints
from exporter.bpf.library import Library, Vanished, Wait
from exporter.bpf.mappings import File, Mapping, ProcLister
from exporter.bpf.shares import NOBODY
from exporter.bpf.status import LIBRARIES, PROCESSES, Status
from exporter.bpf.watch import Batch, Exec, Fork, Mapped

PID = 4711
START, END = 0x7F0000001000, 0x7F0000003000
STAT = b"4711 (a) b) c) S 1 " + b" ".join(b"%d" % n for n in range(5, 53))


@pytest.fixture(scope="module")
def built(compile_library: Callable[[str, str], Path]) -> Path:
    return compile_library("libwanted.so", "int wanted(int a) { return a + 1; }")


@pytest.fixture(scope="module")
def other(compile_library: Callable[[str, str], Path]) -> Path:
    return compile_library("libother.so", "int first(int a) { return a; }\nint wanted(int a) { return a ^ 1; }")


@pytest.fixture(scope="module")
def calling(compile_library: Callable[[str, str], Path]) -> Path:
    return compile_library("libcalling.so", "int wanted(int a);\nint caller(int a) { return wanted(a) + 1; }")


class Proc:
    """A /proc of one process, with its mapped files as symbolic links as there."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / str(PID)
        (self.folder / "map_files").mkdir(parents=True)
        (self.folder / "stat").write_bytes(STAT)
        (self.folder / "mountinfo").write_bytes(
            b"22 1 0:39 / /merged rw - overlay none rw\n23 1 8:1 / / rw - ext4 x rw\n"
        )
        (self.folder / "maps").write_bytes(b"")

    def map(self, target: Path, start: int = START, end: int = END) -> Mapping:
        """Maps a file, and gives the mapping as the iterator would."""
        link = self.folder / "map_files" / f"{start:x}-{end:x}"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        found = target.stat()
        device = os.major(found.st_dev) << 20 | os.minor(found.st_dev)
        file = File(1, found.st_ino, found.st_size, found.st_mtime_ns, device, 0)
        return Mapping(1, 1, start, end, *file, PID, 0)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path / "proc")


class Recorder:
    """An interest that keeps what it attached to."""

    symbols = frozenset({"wanted"})

    def __init__(self, error: Exception | None = None) -> None:
        self.attached: list[Library] = []
        self.closed = 0
        self._error = error

    def attach(self, library: Library) -> Recorder:
        if self._error:
            raise self._error
        self.attached.append(library)
        return self

    def close(self) -> None:
        self.closed += 1

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None: ...

    def processes_ended(self, pids: Collection[int]) -> None: ...

    def processes_replaced(self, pids: Collection[int]) -> None: ...


class CallerRecorder(Recorder):
    """One that wants who calls the function, not who has it."""

    symbols: frozenset[str] = frozenset()
    imports = frozenset({"wanted"})


def test_examining_finds_wanted_functions_and_keeps_the_file(proc: Proc, built: Path, tmp_path: Path) -> None:
    """A library has its file and functions, and can be opened after its name is gone."""
    path = Path(shutil.copy(built, tmp_path / "lib.so"))
    found = library.examine(proc.root, proc.map(path), {"wanted", "unknown"})
    assert found
    examined = found.library
    identity = (path.stat().st_dev, path.stat().st_ino)
    path.unlink()
    assert (identity, str(path), {"wanted"}) == (examined.identity, examined.path, set(examined.functions))
    assert built.read_bytes() == Path(examined.open_path).read_bytes()
    os.close(found.held.descriptor)


def test_examining_separates_importers_from_definers(proc: Proc, built: Path, calling: Path) -> None:
    """A file that imports a function is found by a search for importers, and by no other."""
    assert library.examine(proc.root, proc.map(calling), {"wanted"}) is None
    assert library.examine(proc.root, proc.map(built), {"other"}, {"wanted"}) is None
    found = library.examine(proc.root, proc.map(calling), {"other"}, {"wanted", "caller"})
    assert found
    os.close(found.held.descriptor)
    assert ({}, {"wanted"}) == (found.library.functions, found.library.imports)


def test_an_interest_gets_the_importers_it_wants(proc: Proc, built: Path, calling: Path) -> None:
    """Of a library and the one that calls it, each is attached to for who wants it."""
    definers, importers = Recorder(), CallerRecorder()
    kept = Attachments([definers, importers], proc.root, grace=0)
    for path in (built, calling):
        assert kept.of(proc.map(path))
    assert [str(built)] == [library.path for library in definers.attached]
    assert [str(calling)] == [library.path for library in importers.attached]
    kept.close()


def test_examining_refuses_another_file_in_the_same_place(proc: Proc, built: Path, other: Path) -> None:
    """Where a mapping vanished, or shows another file by now, its file is not examined."""
    mapping = proc.map(built)
    proc.map(other)
    with pytest.raises(Vanished):
        library.examine(proc.root, mapping, {"wanted"})
    with pytest.raises(Vanished):
        library.examine(proc.root, mapping._replace(end=END + 1), {"wanted"})


def test_an_attachment_is_made_once(proc: Proc, built: Path) -> None:
    """However often a file is mapped, it is examined and attached to once."""
    interest = Recorder()
    kept = Attachments([interest], proc.root, grace=0)
    first = kept.of(proc.map(built))
    second = kept.of(proc.map(built, 0x1000, 0x2000))
    assert first is second
    assert (1, 1) == (kept.examined, len(interest.attached))
    kept.close()
    assert 1 == interest.closed


def test_dull_files_are_examined_once(proc: Proc) -> None:
    """A file without wanted functions, or no ELF file at all, is remembered as dull."""
    kept = Attachments([Recorder()], proc.root, grace=0)
    mapping = proc.map(Path(__file__))
    assert [None, None] == [kept.of(mapping), kept.of(mapping)]
    assert (1, True) == (kept.examined, kept.is_dull(mapping.file))


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


def test_an_overwritten_library_is_attached_to_anew(proc: Proc, built: Path, other: Path, tmp_path: Path) -> None:
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


def test_what_cannot_be_read_is_counted_and_tried_again(proc: Proc, built: Path) -> None:
    """An unreadable file is not dull: it is examined again after `retry`."""
    kept = Attachments([Recorder()], proc.root, grace=0)
    mapping = proc.map(built)
    link = proc.folder / "map_files" / f"{START:x}-{END:x}"
    link.unlink()
    link.symlink_to(link)  # a loop: the one error that root gets, too
    assert kept.of(mapping) is None
    assert (1, False) == (kept.unreadable, kept.is_dull(mapping.file))
    proc.map(built)
    kept.retry()
    assert kept.of(mapping)
    kept.close()


def test_failing_to_attach_is_counted_and_tried_again(proc: Proc, built: Path) -> None:
    """When every interest fails nothing is kept open, and `retry` allows another try."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    kept = Attachments([Recorder(OSError(22, "refused"))], proc.root, grace=0)
    mapping = proc.map(built)
    for _ in range(2):
        assert kept.of(mapping) is None
        kept.retry()
    assert (2, 2) == (kept.examined, kept.failed)
    assert before == len(list(Path("/proc/self/fd").iterdir()))


def test_one_that_fails_to_attach_is_tried_again(proc: Proc, built: Path) -> None:
    """Where others are attached to the same library they stay, and the one that failed is attached later."""
    steady, flaky = Recorder(), Recorder(OSError(12, "no memory"))
    kept = Attachments([steady, flaky], proc.root, grace=0)
    mapping = proc.map(built)
    found = kept.of(mapping)
    flaky._error = None
    kept.retry()
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
    kept._doubtful.add(mapping.file)
    kept.retry()
    monkeypatch.setattr(attachments, "examine", failing(error))
    assert before is kept.of(mapping)
    assert 0 == interest.closed
    kept.close()


@pytest.mark.parametrize("error", [OSError(116, "Stale file handle"), ChildError("died"), Stuck("no answer")])
def test_a_changed_library_that_cannot_be_read_is_detached(
    proc: Proc, built: Path, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """Probes at offsets of other code would break it; once it can be read, it is attached to again."""
    interest, examine = Recorder(), attachments.examine
    kept = Attachments([interest], proc.root, grace=0)
    path = Path(shutil.copy(built, tmp_path / "lib.so"))
    assert kept.of(proc.map(path))
    monkeypatch.setattr(attachments, "examine", failing(error))
    path.write_bytes(other.read_bytes())
    os.utime(path, ns=(5, 5))
    assert kept.of(proc.map(path)) is None
    assert 1 == interest.closed
    monkeypatch.setattr(attachments, "examine", examine)
    kept.retry()
    assert kept.of(proc.map(path))
    assert (2, 1, 1) == (len(interest.attached), interest.closed, len(kept))
    kept.close()


def failing(error: OSError) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


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
    monkeypatch.setattr(attachments, "examine", failing(error))
    assert Attachments([Recorder()], proc.root, grace=0).of(proc.map(built)) is None
    assert expected in caplog.text
    assert isinstance(error, PermissionError) == ("CAP_" in caplog.text)


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
    kept.retry()
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
    kept.retry()
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
    monkeypatch.setattr(kept._shares, "user", lambda pid: user)

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


def test_a_file_that_takes_too_long_is_remembered(
    proc: Proc, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is read once: not again when it was touched, nor when it is mapped elsewhere."""
    reads = []

    def take_long(*_: object) -> None:
        reads.append(1)
        raise TooLong("too long")

    monkeypatch.setattr(attachments, "examine", take_long)
    kept = Attachments([Recorder()], proc.root, grace=0)
    path = Path(shutil.copy(built, tmp_path / "lib.so"))
    for number in range(5):
        os.utime(path, ns=(number, number))
        assert kept.of(proc.map(path)) is None
        kept.retry()
    assert (1, {"too_long": 5}) == (len(reads), kept.unsearched)


def test_files_of_a_user_beyond_its_share_wait(proc: Proc, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's next file is not read before some time has come back; the file is not forgotten."""
    kept = Attachments([Recorder()], proc.root, grace=0)
    kept._shares.spend(NOBODY, 1e3)
    mapping = proc.map(built)
    for _ in range(2):
        with pytest.raises(Wait), kept.on_account_of(PID):
            kept.of(mapping)
    assert (0, {"share": 2}) == (kept.examined, kept.unsearched)
    kept._shares = shares.Shares(proc.root)
    with kept.on_account_of(PID):
        assert kept.of(mapping)
    assert kept._shares._credit(NOBODY).left < shares.CREDIT  # reading it has been counted
    kept.close()


def test_a_round_ends_and_newcomers_are_first_in_the_next(
    proc: Proc, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that take long, of however many users, delay a file of another user by the rest of a round."""
    spent = [0.0]
    examine = attachments.examine

    def take_long(*arguments: Any) -> Any:
        spent[0] += 2.0
        return examine(*arguments)

    monkeypatch.setattr(attachments, "examine", take_long)
    monkeypatch.setattr(attachments.WORKER, "spent", lambda: spent[0])
    kept = Attachments([Recorder()], proc.root, grace=0)
    monkeypatch.setattr(kept._shares, "user", lambda pid: pid)
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


def test_files_of_a_hung_device_are_tried_again(proc: Proc, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such files are counted, and not forgotten."""
    examine = attachments.examine

    def hang(*_: object) -> None:
        raise Stuck("its file system does not answer")

    monkeypatch.setattr(attachments, "examine", hang)
    kept = Attachments([Recorder()], proc.root, grace=0)
    mapping = proc.map(built)
    assert kept.of(mapping) is None
    assert ({"stuck": 1}, 0) == (kept.unsearched, kept.unreadable)
    monkeypatch.setattr(attachments, "examine", examine)
    kept.retry()
    assert kept.of(mapping)
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


def test_proc_lists_executable_files(proc: Proc, built: Path) -> None:
    """Of /proc/PID/maps the executable file mappings are listed, whatever the names in it hold."""
    proc.map(built)
    number = built.stat().st_ino
    lines = [
        b"7f0000001000-7f0000003000 r-xp 00001000 08:01 %d /a name\\012 r-xp with (deleted)" % number,
        b"7f0000003000-7f0000004000 r--p 00003000 08:01 %d /a name" % number,
        b"7f0000005000-7f0000006000 r-xp 00000000 00:00 0 [vdso]",
        b"7f0000007000-7f0000008000 r-xp 00000000 08:01 99 /gone meanwhile",
    ]
    (proc.folder / "maps").write_bytes(b"\n".join(lines) + b"\n")
    [mapping] = ProcLister(proc.root).everything()
    found = built.stat()
    assert (PID, START, END) == (mapping.pid, mapping.start, mapping.end)
    assert File(0, number, found.st_size, found.st_mtime_ns, 8 << 20 | 1, 0) == mapping.file


def test_proc_takes_overlays_of_one_layer_for_one_file(proc: Proc, built: Path) -> None:
    """On an overlay the device identifies no file, so it is left out of a file's identity."""
    proc.map(built)
    (proc.folder / "maps").write_bytes(b"7f0000001000-7f0000003000 r-xp 00001000 00:27 5 /merged/lib.so\n")
    [mapping] = ProcLister(proc.root).of([PID])
    assert (0, 5) == (mapping.device, mapping.number)


def test_proc_knows_another_program_by_its_addresses(proc: Proc, built: Path) -> None:
    """The image changes when code, stack and heap start elsewhere, and only then."""
    proc.map(built)
    (proc.folder / "maps").write_bytes(b"7f0000001000-7f0000003000 r-xp 00001000 08:01 5 /lib.so\n")
    lister = ProcLister(proc.root)
    images = [lister.of([PID])[0].image]
    (proc.folder / "stat").write_bytes(STAT.replace(b" S 1 ", b" R 1 "))
    images.append(lister.of([PID])[0].image)
    (proc.folder / "stat").write_bytes(STAT.replace(b" 26 ", b" 626 "))
    images.append(lister.of([PID])[0].image)
    assert images[0] == images[1] != images[2]


@pytest.mark.parametrize("content", [b"", b"x", b"1-2 r-xp\n", b"z-y r-xp 0 0:0 7 /a\n", b"\xff\n\0\n"])
def test_proc_skips_what_makes_no_sense(proc: Proc, content: bytes) -> None:
    """A process that is gone, or has files that are cut short, is left out."""
    (proc.folder / "maps").write_bytes(content)
    assert [] == ProcLister(proc.root).of([PID, PID + 1])
    (proc.folder / "stat").write_bytes(content)
    assert [] == ProcLister(proc.root).of([PID])


def record(kind: int, body: bytes, misc: int = 0) -> bytes:
    return struct.pack("=IHH", kind, misc, 8 + len(body)) + body


def mapped_record(major: int, number: int, name: bytes) -> bytes:
    file = struct.pack("=IIQQII", major, 1, number, 7, 5, 2) + name
    return record(10, struct.pack("=IIQQQ", PID, PID, START, END - START, 0) + file + struct.pack("=Q", 99))


def test_records_of_mapped_files_have_process_place_and_time() -> None:
    """A record of a file is kept with all that names the file; one of anonymous memory is not."""
    batch = Batch()
    anonymous = mapped_record(0, 0, b"//anon\0\0")
    watch._parse(mapped_record(8, 5, b"/lib.so\0") + anonymous[:40] + bytes(24) + anonymous[64:], batch)
    [mapped] = batch.mapped
    assert Mapped(PID, START, mapped.file, 99) == mapped
    assert b"/lib.so" in mapped.file


def test_records_of_forks_are_processes_not_threads() -> None:
    """A new thread has its parent's pid and is no fork."""
    batch = Batch()
    watch._parse(record(7, struct.pack("=IIIIQQ", 12, 11, 12, 11, 55, 55)), batch)
    watch._parse(record(7, struct.pack("=IIIIQQ", 11, 11, 13, 11, 56, 56)), batch)
    assert [Fork(55, 12, 11)] == batch.forks


def test_records_of_exec_are_names_that_came_with_it() -> None:
    """A process that changes its name, or that of a thread, runs the same program."""
    batch = Batch()
    for misc in (1 << 13, 0):
        watch._parse(record(3, struct.pack("=II8sQ", PID, PID, b"name", 77), misc), batch)
    assert [Exec(77, PID)] == batch.execs


def test_when_a_file_was_mapped(proc: Proc, built: Path) -> None:
    """The time is the first of all records of the file, or of the hint where no record fits."""
    hints = Hints()
    for since, place in ((20, (1, b"b")), (30, (2, b"a")), (40, (START, b"a"))):
        hints.add(PID, since, place=place)
    hint = hints.take_all()[PID]
    assert (30, 20) == (hint.mapped_ns(proc.map(built)), hint.mapped_ns(proc.map(built, 0x10, 0x20)))


@pytest.mark.parametrize(("cpus", "size"), [(0, 1 << 18), (2, 1 << 18), (32, 1 << 18), (100, 1 << 16), (512, 1 << 16)])
def test_rings_are_smaller_where_there_are_many(cpus: int, size: int) -> None:
    """Each is a power of two, as the kernel demands, and no more than it lets a user lock."""
    assert size == watch.ring_bytes(cpus)


def test_records_of_loss_are_added_up() -> None:
    """The kernel's records of lost records are added up."""
    batch = Batch()
    watch._parse(b"".join(record(2, struct.pack("=QQQ", 1, count, 0)) for count in (3, 4)), batch)
    assert 7 == batch.lost


@pytest.mark.parametrize(("text", "cpus"), [("0\n", [0]), ("0-3,8\n", [0, 1, 2, 3, 8]), ("\n", [])])
def test_lists_of_cpus(text: str, cpus: list[int]) -> None:
    """The kernel's lists of numbers and ranges are read."""
    assert cpus == watch._cpus(text)


def test_libraries_of_one_name_are_one_series() -> None:
    """Files of one name add up, so that no two samples are the same series."""
    status = Status("iterator", libraries=(("/a/libx.so", 2), ("/b/libx.so", 3), ("/b/liby.so", 0)))
    found = {
        (sample.metric.name, sample.labels["library"]): sample.value
        for sample in status.samples()
        if sample.metric in (LIBRARIES, PROCESSES)
    }
    assert {
        (LIBRARIES.name, "libx.so"): 2,
        (LIBRARIES.name, "liby.so"): 1,
        (PROCESSES.name, "libx.so"): 5,
        (PROCESSES.name, "liby.so"): 0,
    } == found


def test_hints_on_one_process_join() -> None:
    """Two hints are one look: at the earlier time, since the earlier moment, with all places."""
    hints = Hints()
    assert hints.add(PID, 20, delay=100, place=(1, b"a"))
    assert hints.next_due() > 0
    assert {} == hints.take_due()
    assert hints.add(PID, 30, place=(2, b"b"))
    [(pid, hint)] = hints.take_due().items()
    assert (PID, 20, [(1, b"a"), (2, b"b")]) == (pid, hint.since_ns, hint.places)
    assert PID not in hints


def test_a_resting_process_waits() -> None:
    """A resting process is not due before its rest is over, whatever it maps meanwhile."""
    hints = Hints()
    hints.rest(PID, 100)
    hints.add(PID, 1)
    hints.add(PID + 1, 1)
    assert [PID + 1] == list(hints.take_due())
    assert [PID] == list(hints.take_all())


def test_hints_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for so many processes and so many places of each; `add` returns False without room."""
    monkeypatch.setattr(hints_module, "MAX_HINTS", 2)
    monkeypatch.setattr(hints_module, "MAX_PLACES", 3)
    hints = Hints()
    assert [True, True, False] == [hints.add(pid, 1) for pid in (1, 2, 3)]
    for place in range(5):
        assert hints.add(1, 1, place=(place, b""))
    assert 3 == len(hints.take_all()[1].places)
