"""The kernel's records of mapped files, forks, exec and loss."""

from __future__ import annotations

import struct

import pytest

from exporter.bpf import watch
from exporter.bpf.watch import Batch, Exec, Fork, Mapped
from tests.unit.bpf.mapped import END, PID, START


def record(kind: int, body: bytes, misc: int = 0) -> bytes:
    return struct.pack("=IHH", kind, misc, 8 + len(body)) + body


def mapped_record(major: int, number: int, name: bytes) -> bytes:
    file = struct.pack("=IIQQII", major, 1, number, 7, 5, 2) + name
    return record(10, struct.pack("=IIQQQ", PID, PID, START, END - START, 0) + file + struct.pack("=Q", 99))


def test_records_of_mapped_files_have_process_place_and_time() -> None:
    """A record of a file is kept with all that names the file; one of anonymous memory is not."""
    batch = Batch()
    anonymous = mapped_record(0, 0, b"//anon\0\0")
    watch.parse(mapped_record(8, 5, b"/lib.so\0") + anonymous[:40] + bytes(24) + anonymous[64:], batch)
    [mapped] = batch.mapped
    assert Mapped(PID, START, mapped.file, 99) == mapped
    assert b"/lib.so" in mapped.file


def test_records_of_forks_are_processes_not_threads() -> None:
    """A new thread has its parent's pid and is no fork."""
    batch = Batch()
    watch.parse(record(7, struct.pack("=IIIIQQ", 12, 11, 12, 11, 55, 55)), batch)
    watch.parse(record(7, struct.pack("=IIIIQQ", 11, 11, 13, 11, 56, 56)), batch)
    assert [Fork(55, 12, 11)] == batch.forks


def test_records_of_exec_are_names_that_came_with_it() -> None:
    """A process that changes its name, or that of a thread, runs the same program."""
    batch = Batch()
    for misc in (1 << 13, 0):
        watch.parse(record(3, struct.pack("=II8sQ", PID, PID, b"name", 77), misc), batch)
    assert [Exec(77, PID)] == batch.execs


@pytest.mark.parametrize(("cpus", "size"), [(0, 1 << 18), (2, 1 << 18), (32, 1 << 18), (100, 1 << 16), (512, 1 << 16)])
def test_rings_are_smaller_where_there_are_many(cpus: int, size: int) -> None:
    """Each is a power of two, as the kernel demands, and no more than it lets a user lock."""
    assert size == watch.ring_bytes(cpus)


def test_records_of_loss_are_added_up() -> None:
    """The kernel's records of lost records are added up."""
    batch = Batch()
    watch.parse(b"".join(record(2, struct.pack("=QQQ", 1, count, 0)) for count in (3, 4)), batch)
    assert 7 == batch.lost


@pytest.mark.parametrize(("text", "cpus"), [("0\n", [0]), ("0-3,8\n", [0, 1, 2, 3, 8]), ("\n", [])])
def test_lists_of_cpus(text: str, cpus: list[int]) -> None:
    """The kernel's lists of numbers and ranges are read."""
    assert cpus == watch.cpus_of(text)
