"""The processes that use libraries, and the interests that get their ends."""

from __future__ import annotations

import os
import select
import struct
import subprocess
import time
from collections.abc import Collection, Iterator

import pytest

from exporter import descriptors
from exporter.bpf.attached import Attached
from exporter.bpf.file_worker import OpenFile
from exporter.bpf.hints import Hints
from exporter.bpf.library import Library
from exporter.bpf.mappings import MappedFile
from exporter.bpf.users import BATCH_MOST, BATCH_SECONDS, LibraryUsers
from exporter.bpf.watch import Exec


class Interest:
    symbols = frozenset({"wanted"})

    def __init__(self) -> None:
        self.started: list[tuple[int, bool]] = []
        self.ended: list[int] = []
        self.replaced: list[int] = []
        self.called: set[int] = set()
        self.batches = 0

    def attach(self, library: Library) -> Interest:
        return self

    def close(self) -> None: ...

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None:
        self.started.append((pid, from_first_call))

    def processes_ended(self, pids: Collection[int]) -> None:
        self.ended += pids
        self.batches += 1

    def processes_replaced(self, pids: Collection[int]) -> Collection[int]:
        self.replaced += pids
        return self.called.intersection(pids)


@pytest.fixture
def users() -> Iterator[LibraryUsers]:
    with select.epoll() as poll:
        made = LibraryUsers(poll)
        yield made
        made.close()


def attached(*interests: Interest, number: int = 1) -> Attached:
    library = Library((0, number), "/a/lib.so", "lib.so", 62, "", {})
    return Attached(library, MappedFile(0, number, 0, 0, 0, 0), OpenFile(-1, 0), 0, [(it, it) for it in interests], 0)


def test_a_library_that_is_overwritten_again_and_again(users: LibraryUsers) -> None:
    """Of the detached libraries of a process only so many are kept that every interest that got it gets its end."""
    one, two, pid = Interest(), Interest(), os.getpid()
    for number in range(100):
        it = attached(one if number % 2 else two)
        users.use(pid, 1, it, 0)
        it.detached = True
    kept, last = attached(one), attached(one)
    users.use(pid, 1, kept, 0)
    users.use(pid, 1, last, 0)

    assert {kept, last} < users.processes[pid].libraries.keys()
    assert 3 == len(users.processes[pid].libraries)
    users.queue_ends([pid])
    users.deliver_ends([])
    assert ([pid], [pid]) == (one.ended, two.ended)


def test_processes_leave_the_reserve_of_descriptors(users: LibraryUsers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process is known also where there is no descriptor for its end, which is found at the next listing then."""
    monkeypatch.setattr(descriptors, "ceiling", lambda: 3)
    interest, before = Interest(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    users.use(os.getpid(), 1, attached(interest), 0)

    assert ([os.getpid()], before) == (users.without_pidfd(), len(os.listdir("/proc/self/fd")))  # noqa: PTH208
    assert [(os.getpid(), True)] == interest.started


def test_an_interest_that_is_attached_later(users: LibraryUsers) -> None:
    """A late interest gets the processes that use the library, once, and not as if seen from their first calls."""
    early, late, pid = Interest(), Interest(), os.getpid()
    library = attached(early)
    assert users.use(pid, 1, library, 1)
    library.links.append((late, late))
    library.complete_ns = 2
    assert [False, False] == [users.use(pid, 1, library, 1) for _ in range(2)]

    assert ([(pid, True)], [(pid, False)]) == (early.started, late.started)
    users.queue_ends([pid])
    users.deliver_ends([])
    assert ([pid], [pid]) == (early.ended, late.ended)


def test_ends_come_in_batches(users: LibraryUsers) -> None:
    """Interests get many ends at once, of users of their libraries and of unlisted processes, within a known time."""
    mine, others = attached(one := Interest()), attached(another := Interest())
    pid = os.getpid()
    users.use(pid, 1, mine, 0)
    assert users.next_due == float("inf")

    before = time.monotonic()
    users.queue_ends([pid])
    first = users.next_due
    users.queue_ends([], [70001, 70002, pid])  # the last is known, so it was listed
    assert first == users.next_due <= time.monotonic() + BATCH_SECONDS
    assert before + BATCH_SECONDS <= first
    assert not one.ended
    assert users.any_queued([70001]) and users.any_queued([pid]) and not users.any_queued([70003])

    users.deliver_ends([mine, others])

    assert ([pid, 70001, 70002], [70001, 70002]) == (sorted(one.ended), sorted(another.ended))
    assert (1, 1) == (one.batches, another.batches)
    assert users.next_due == float("inf") and not users.any_queued([70001, pid]) and pid not in users


def test_many_ends_do_not_wait(users: LibraryUsers) -> None:
    """Rows of ended processes take places of others, so the number of queued ends is limited."""
    users.queue_ends([], range(1, BATCH_MOST + 2))
    assert users.next_due <= time.monotonic()


def test_an_end_wakes_up_once() -> None:
    """The end of a process that waits for others is no reason to be awake."""
    with select.epoll() as poll:
        users = LibraryUsers(poll)
        process = subprocess.Popen(["sleep", "60"])
        users.use(process.pid, 1, attached(Interest()), 0)
        process.kill()
        process.wait()
        assert [process.pid] == [users.pid_of(descriptor) for descriptor, _ in poll.poll(10)]
        assert not poll.poll(0)
        users.close()


def test_exec_is_known_at_once(users: LibraryUsers) -> None:
    """A library that was mapped before the exec was noticed may have been called: not every call of it was seen."""
    interest, pid = Interest(), os.getpid()
    library = attached(interest)
    interest.called.add(pid)
    users.use(pid, 1, library, 1)
    users.replace([Exec(5, pid)], [library], Hints())
    assert [pid] == interest.replaced and pid not in users

    users.listed_ns = 10, 10
    users.use(pid, 2, library, 6)
    users.replace([Exec(5, pid)], [library], Hints())  # an old record
    assert [pid] == interest.replaced
    users.replace([Exec(11, pid)], [library], Hints())
    users.use(pid, 3, library, 12, time.monotonic_ns())
    assert [(pid, True), (pid, False), (pid, True)] == interest.started


def test_exec_of_a_program_without_calls(users: LibraryUsers) -> None:
    """A child that soon runs another program, as after vfork, made no call that could be one of the new program."""
    interest, pid = Interest(), os.getpid()
    library = attached(interest)
    users.use(pid, 1, library, 1)
    users.replace([Exec(5, pid)], [library], Hints())
    users.use(pid, 2, library, 6)
    assert [(pid, True), (pid, True)] == interest.started


def test_exec_that_an_interest_fails_to_handle(users: LibraryUsers) -> None:
    """A program is not seen from its start if it is unknown whether the program before it made calls."""

    class Failing(Interest):
        def processes_replaced(self, pids: Collection[int]) -> Collection[int]:
            raise RuntimeError

    interest, pid = Failing(), os.getpid()
    library = attached(interest)
    users.use(pid, 1, library, 1)
    users.replace([Exec(5, pid)], [library], Hints())
    users.use(pid, 2, library, 6)
    assert [(pid, True), (pid, False)] == interest.started


def test_exec_while_processes_are_listed(users: LibraryUsers) -> None:
    """The program seen in a listing during exec is unknown: the process is listed again, and its image decides."""
    interest, pid = Interest(), os.getpid()
    library = attached(interest)
    users.listed_ns = 10, 20
    users.use(pid, 1, library, 1)
    assert {pid} == users.replace([Exec(15, pid)], [library], Hints())
    users.check_images([(pid, 1)])
    assert not interest.replaced and pid in users
    users.check_images([(pid, 2)])
    assert [pid] == interest.replaced and pid not in users

    users.use(pid, 2, library, 1)
    assert set() == users.replace([Exec(15, pid), Exec(21, pid)], [library], Hints())
    assert [pid, pid] == interest.replaced


def record_of(number: int, name: bytes) -> bytes:
    """The file of a record as exporter.bpf.watch takes it from the kernel's: from the device to the name."""
    return struct.pack("=IIQQII16s", 0, 1, number, 0, 5, 2, name)


@pytest.mark.parametrize("file", [(1, b"/overlay/lib.so"), (77, b"/another/name"), (77, b"")])
def test_exec_before_the_process_was_looked_at(users: LibraryUsers, file: tuple[int, bytes]) -> None:
    """Counts of a process that had mapped an attached file before exec belong to the earlier program."""
    interest, hints, place = Interest(), Hints(), (1, record_of(*file))
    library = attached(interest, number=77)
    hints.add(7, 3, place=place)
    hints.add(8, 6, place=place)
    users.replace([Exec(5, 7), Exec(5, 8), Exec(5, 9)], [library], hints)
    assert [7] == interest.replaced
    hints.take_due()
    users.replace([Exec(5, 7)], [library], hints)  # exec while it was looked at
    assert [7, 7] == interest.replaced


@pytest.mark.parametrize("file", [record_of(78, b"/usr/bin/nsenter"), record_of(0, b""), b"", b"short"])
def test_a_wrapper_is_not_what_is_counted(users: LibraryUsers, file: bytes) -> None:
    """Calls after a late noticed exec are the new program's if the program before had mapped no attached file."""
    interest, hints = Interest(), Hints()
    hints.add(7, 3, place=(1, file))
    hints.add(7, 6, place=(1, record_of(77, b"lib.so")))
    users.replace([Exec(5, 7)], [attached(interest, number=77)], hints)
    assert not interest.replaced
