"""Reads and writes of jobs with GPUDirect Storage are counted exactly, for each process and file system."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from exporter.collectors.cufile import FLAGS, Cufile
from exporter.cufile import codes
from tests import wheels
from tests.bpf.cuda_node import Script, build_standins, started
from tests.bpf.fixtures import each, once
from tests.bpf.jumper import REPLACER, leave, replaced
from tests.bpf.observed import Observed, running
from tests.support import until

pytestmark = [pytest.mark.needs_bpf]
standin = pytest.mark.evidence(feature="GPUDirect Storage", on="stand-in")
real = pytest.mark.evidence(feature="GPUDirect Storage", on="real software")

REQUESTS = "cufile_requests_total"
BYTES = "cufile_io_bytes_total"
SUBMITTED = "cufile_submitted_bytes_total"
DURATION = "cufile_request_duration_seconds"
ERRORS = "cufile_errors_total"
NOWHERE = Path("/nonexistent")

PRELUDE = """
from ctypes import c_int, c_int64, c_uint64
lib.cuFileRead.restype = lib.cuFileWrite.restype = c_int64
class Descriptor(ctypes.Structure): _fields_ = [('type', c_int), ('fd', c_uint64), ('ops', c_void_p)]
class Vector(ctypes.Structure): _fields_ = [('base', c_void_p), ('len', c_size_t)]
class Entry(ctypes.Structure):
    _fields_ = [('mode', c_int), ('base', c_void_p), ('at', c_int64), ('offset', c_int64), ('size', c_size_t),
                ('fh', c_void_p), ('opcode', c_int), ('cookie', c_void_p)]
memory = ctypes.create_string_buffer(1 << 16)
def register(path, type=1):
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 1 << 16)
    handle = c_void_p()
    lib.cuFileHandleRegister(byref(handle), byref(Descriptor(type, fd, None)))
    return handle
def read(handle, bytes): return lib.cuFileRead(handle, memory, size(bytes), c_int64(0), c_int64(0))
def write(handle, bytes): return lib.cuFileWrite(handle, memory, size(bytes), c_int64(0), c_int64(0))
def submit(*entries):
    array = (Entry * len(entries))(*(Entry(1, ctypes.addressof(memory), 0, 0, *it) for it in entries))
    return lib.cuFileBatchIOSubmit(None, len(entries), array, 0)
def later(function, handle, bytes):
    zero, done = c_int64(0), c_int64(0)
    return function(handle, memory, byref(size(bytes)), byref(zero), byref(zero), byref(done), None)
"""


class Storage(Script):
    """A Python process that calls a libcufile through ctypes; `run` executes lines in it and gives their `out`."""

    def __init__(self, library: str | Path = "libcufile.so.0", **arguments: Any) -> None:
        super().__init__(library, **arguments)
        self.run(PRELUDE)


observe = partial(running, Cufile, FLAGS, grace=1.0)


observed = once(observe)
job = each(Storage)


@pytest.fixture
def memory_file() -> Iterator[Path]:
    """A file on a tmpfs."""
    path = Path(f"/dev/shm/cufile-test-{os.getpid()}")
    yield path
    path.unlink(missing_ok=True)


def type_of(path: Path) -> str:
    """The file system of a path, by /proc/self/mountinfo: of the newest mount at the longest of its parents."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    mounts = [(len(line[4]), line[line.index("-") + 1]) for line in lines if path.resolve().is_relative_to(line[4])]
    return max(reversed(mounts), key=lambda mount: mount[0])[1]


def requests(observed: Observed, metric: str, pid: int) -> dict[tuple[str, ...], Any]:
    """Values by operation, function and file system."""
    names = ("operation", "api", "filesystem")
    return {tuple(dict(key)[name] for name in names): value for key, value in observed.values(metric, pid).items()}


def errors(observed: Observed, pid: int) -> dict[tuple[str, ...], int]:
    names = ("api", "code", "error")
    return {tuple(dict(key)[name] for name in names): value for key, value in observed.values(ERRORS, pid).items()}


@standin
def test_23_requests(observed: Observed, tmp_path: Path, memory_file: Path) -> None:
    """23 reads by two threads and 23 writes, in each of two processes, on two file systems: bytes and times of each."""
    on_disk = type_of(tmp_path)
    assert "tmpfs" == type_of(memory_file.parent)
    with started(observed, Storage()) as first, started(observed, Storage()) as second:
        for number, job in enumerate((first, second)):
            job.run(
                f"disk, shm = register({str(tmp_path / str(number))!r}), register({str(memory_file)!r})\n"
                "thread = threading.Thread(target=lambda: [read(shm, 1000) for _ in range(11)])\n"
                "thread.start()\n"
                "for _ in range(12): read(shm, 1000)\n"
                "thread.join()\n"
                "for _ in range(23): write(disk, 4099)"
            )
        for job in (first, second):
            reads, writes = ("read", "cuFileRead", "tmpfs"), ("write", "cuFileWrite", on_disk)
            assert {reads: 23, writes: 23} == requests(observed, REQUESTS, job.pid)
            assert {reads: 23 * 1000, writes: 23 * 4099} == requests(observed, BYTES, job.pid)
            took = requests(observed, DURATION, job.pid)
            assert {reads: 23, writes: 23} == {key: sum(value.counts) for key, value in took.items()}
            assert {} == errors(observed, job.pid) == requests(observed, SUBMITTED, job.pid)


@standin
def test_time_is_that_of_the_call(observed: Observed, job: Storage, memory_file: Path) -> None:
    """A read that takes 50 ms is in that bucket."""
    job.run(f"shm = register({str(memory_file)!r}); lib.standin_stall(c_uint64(50_000_000)); read(shm, 1)")
    took = observed.value(DURATION, job.pid)
    assert 0.05 <= took.sum and 1 == sum(took.counts)
    assert sum(took.counts[: sum(bound <= 0.05 for bound in took.bounds)]) == 0


@standin
def test_bytes_are_those_that_were_moved(observed: Observed, job: Storage, memory_file: Path) -> None:
    """A read beyond the end of a file counts what there was."""
    assert 1 << 16 == job.run(f"shm = register({str(memory_file)!r}); out = read(shm, (1 << 16) + 23)")
    assert 1 << 16 == observed.value(BYTES, job.pid)


@standin
def test_a_call_within_a_call_counts_once(observed: Observed, job: Storage, memory_file: Path) -> None:
    """cuFileReadv, which is made of cuFileRead here, is one request with all its bytes; a hit is each."""
    before = observed.values("accel_exporter_probe_hits_total", probe="cufile", symbol="cuFileRead")
    job.run(
        f"shm = register({str(memory_file)!r})\n"
        "vectors = (Vector * 3)(*((ctypes.addressof(memory), 100) for _ in range(3)))\n"
        "for _ in range(23): lib.cuFileReadv(shm, vectors, size(3), c_int64(0), 0)\n"
        "lib.cuFileWritev(shm, vectors, size(3), c_int64(0), 0)\n"
        "read(shm, 7)"
    )
    expected = {("read", "cuFileReadv"): 6900, ("write", "cuFileWritev"): 300, ("read", "cuFileRead"): 7}
    assert expected == {key[:2]: value for key, value in requests(observed, BYTES, job.pid).items()}
    counts = {("read", "cuFileReadv"): 23, ("write", "cuFileWritev"): 1, ("read", "cuFileRead"): 1}
    assert counts == {key[:2]: value for key, value in requests(observed, REQUESTS, job.pid).items()}
    after = observed.values("accel_exporter_probe_hits_total", probe="cufile", symbol="cuFileRead")
    assert 23 * 3 + 1 == sum(after.values()) - sum(before.values())


@standin
def test_submitted_is_not_moved(observed: Observed, job: Storage, tmp_path: Path, memory_file: Path) -> None:
    """Of asynchronous calls and batches the bytes named count, apart from those that were moved; entry by entry."""
    job.run(
        f"disk, shm = register({str(tmp_path / 'disk')!r}), register({str(memory_file)!r})\n"
        "for _ in range(23): later(lib.cuFileReadAsync, shm, 1000)\n"
        "later(lib.cuFileWriteAsync, disk, 2000)\n"
        "entries = [(10, disk, 0, None), (100, shm, 1, None), (1000, disk, 1, None), (50, disk, 7, None)]\n"
        "for _ in range(23): submit(*entries, *[(1, shm, 0, None)] * 20)"
    )
    on_disk, batch = type_of(tmp_path), "cuFileBatchIOSubmit"
    expected = {
        ("read", "cuFileReadAsync", "tmpfs"): (23, 23_000),
        ("write", "cuFileWriteAsync", on_disk): (1, 2000),
        ("read", batch, on_disk): (23, 230),
        ("write", batch, "tmpfs"): (23, 2300),
        ("write", batch, on_disk): (46, 24_150),  # an opcode that is none is no read
        ("read", batch, "tmpfs"): (460, 460),
    }
    assert {key: count for key, (count, _) in expected.items()} == requests(observed, REQUESTS, job.pid)
    assert {key: size for key, (_, size) in expected.items()} == requests(observed, SUBMITTED, job.pid)
    assert {} == requests(observed, BYTES, job.pid) == requests(observed, DURATION, job.pid)


@standin
def test_errors(observed: Observed, job: Storage, memory_file: Path) -> None:
    """Errors count by function and constant: with errno, as CUfileOpError, of every function; they move no bytes."""
    job.run(
        f"shm = register({str(memory_file)!r})\n"
        "def failing(code, call): lib.standin_fail(code); call()\n"
        "for _ in range(23): failing(-5, lambda: read(shm, 1000))\n"
        "failing(5011, lambda: write(shm, 1000))\n"
        "failing(5999, lambda: write(shm, 1000))\n"
        "failing(5038, lambda: later(lib.cuFileReadAsync, shm, 1000))\n"
        "failing(5037, lambda: submit((1000, shm, 0, None), (1000, shm, 1, None)))\n"
        f"failing(5033, lambda: register({str(memory_file)!r}))\n"
        "read(c_void_p(8), 1)"
    )
    assert {
        ("cuFileRead", "-1", "errno"): 23,
        ("cuFileRead", "5027", "CU_FILE_HANDLE_NOT_REGISTERED"): 1,
        ("cuFileWrite", "5011", "CU_FILE_CUDA_DRIVER_ERROR"): 1,
        ("cuFileWrite", "5999", ""): 1,
        ("cuFileReadAsync", "5038", "CU_FILE_ASYNC_NOT_SUPPORTED"): 1,
        ("cuFileBatchIOSubmit", "5037", "CU_FILE_BATCH_FULL"): 1,
        ("cuFileHandleRegister", "5033", "CU_FILE_NVFS_SETUP_ERROR"): 1,
    } == {(key[0], key[1], key[2]): value for key, value in errors(observed, job.pid).items()}
    assert {
        ("read", "cuFileRead", "tmpfs"): 23,
        ("read", "cuFileRead", "unknown"): 1,
        ("write", "cuFileWrite", "tmpfs"): 2,
        ("read", "cuFileReadAsync", "tmpfs"): 1,
        ("read", "cuFileBatchIOSubmit", "tmpfs"): 1,
        ("write", "cuFileBatchIOSubmit", "tmpfs"): 1,
    } == requests(observed, REQUESTS, job.pid)
    assert {} == requests(observed, BYTES, job.pid) == requests(observed, SUBMITTED, job.pid)


@standin
def test_a_handle_is_of_its_newest_file(observed: Observed, job: Storage, tmp_path: Path, memory_file: Path) -> None:
    """A handle's address that another file gets has that file's system; what is no file of the kernel has none."""
    first, second, third = job.run(
        "def use(path, type=1):\n"
        "    handle = register(path, type); read(handle, 1); lib.cuFileHandleDeregister(handle); read(handle, 1)\n"
        "    return handle.value\n"
        f"out = [use({str(memory_file)!r}), use({str(tmp_path / 'disk')!r}), use({str(memory_file)!r}, 3)]"
    )
    assert first == second == third
    expected = {("read", "cuFileRead", name): 1 for name in ("tmpfs", type_of(tmp_path))}
    assert expected | {("read", "cuFileRead", "unknown"): 4} == requests(observed, REQUESTS, job.pid)
    assert [] == observed.kernel("handles", job.pid)


@standin
def test_lengths_that_nothing_has(observed: Observed, job: Storage, memory_file: Path) -> None:
    """A length beyond memory, as of a caller that does not know it, is no bytes; else the counter would start again."""
    key = ("read", "cuFileReadAsync", "tmpfs")
    job.run(f"shm = register({str(memory_file)!r}); most = (1 << 63) - 1\nlater(lib.cuFileReadAsync, shm, most)")
    assert {} == requests(observed, SUBMITTED, job.pid)
    job.run("for it in [1000] * 23 + [most, most, (1 << 64) - 1]: later(lib.cuFileReadAsync, shm, it)")
    job.run("submit((most, shm, 0), (most, shm, 0), (2000, shm, 0))")
    batch = ("read", "cuFileBatchIOSubmit", "tmpfs")
    assert {key: 27, batch: 3} == requests(observed, REQUESTS, job.pid)
    assert {key: 23_000, batch: 2000} == requests(observed, SUBMITTED, job.pid)


@standin
def test_a_killed_process(observed: Observed, memory_file: Path) -> None:
    """Calls that returned before the end stay counted; the killed call and the handles leave no row in the kernel."""
    with started(observed, Storage()) as job:
        job.run(f"shm = register({str(memory_file)!r})\nfor _ in range(23): read(shm, 1000)")
        job.begin("lib.standin_stall(c_uint64(60_000_000_000)); read(shm, 1000)")
        until(lambda: observed.in_flight(job.pid), "a call in flight")
        job.process.kill()
        job.process.wait()
        until(lambda: not observed.kernel("io", job.pid), "its rows taken")
    key = ("read", "cuFileRead", "tmpfs")
    assert {key: 23} == requests(observed, REQUESTS, job.pid)
    assert {key: 23_000} == requests(observed, BYTES, job.pid)
    assert [] == observed.kernel("in_flight", job.pid) == observed.kernel("handles", job.pid)


@standin
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the library is for the address space of x86-64")
def test_another_program_in_the_middle_of_a_call(
    observed: Observed, compile_library: Callable[[str, str], Path], memory_file: Path
) -> None:
    """Requests of a program that was run in a request are not nested in that one."""
    replacer = compile_library("replacer.so", REPLACER)
    with started(observed, Storage()) as job:
        job.run(f"shm = register({str(memory_file)!r}); read(shm, 1); lib.standin_stall(c_uint64(60_000_000_000))")
        job.begin(replaced(replacer, "lib.cuFileRead"))
        leave(observed, job)
        until(lambda: job.pid not in observed.collector.ledger, "the exec noticed")
        job.run("lib = ctypes.CDLL('libcufile.so.0')")
        job.run(PRELUDE)
        job.run(f"shm = register({str(memory_file)!r})\nfor _ in range(23): read(shm, 1000)")
        assert {("read", "cuFileRead", "tmpfs"): 23} == requests(observed, REQUESTS, job.pid)


@standin
def test_threads_that_are_cancelled_in_calls(monkeypatch: pytest.MonkeyPatch, memory_file: Path) -> None:
    """A thread that never returns from a call leaves nothing; the calls that there is no room for are counted."""
    monkeypatch.setattr(Cufile, "constants", lambda _: {"in_flight_most": 8})
    with observe() as observed, started(observed, Storage()) as job:
        job.run(f"shm = register({str(memory_file)!r})")
        job.run(
            "libc = ctypes.CDLL(None); threads = []\n"
            "def work():\n"
            "    lib.standin_stall(c_uint64(60_000_000_000)); read(shm, 1000)\n"
            "for _ in range(7): threads.append(threading.Thread(target=work, daemon=True)); threads[-1].start()"
        )
        counted = observed.collector.object.globals
        until(lambda: counted()["in_flight_lost"] == 4, "seven calls, three of them in flight")
        assert 3 == len(observed.in_flight(job.pid))
        job.run("for it in threads: assert 0 == libc.pthread_cancel(c_uint64(it.ident))")
        until(lambda: 1 == len(observed.kernel("in_flight", job.pid)), "the ends of the threads noticed")
        job.run("for _ in range(23): read(shm, 1000)")
        assert {("read", "cuFileRead", "tmpfs"): 4 + 23} == requests(observed, REQUESTS, job.pid)
        assert {("read", "cuFileRead", "tmpfs"): 23_000} == requests(observed, BYTES, job.pid)


@standin
def test_ended_processes_that_are_too_many(monkeypatch: pytest.MonkeyPatch, memory_file: Path) -> None:
    """Of three that ended two are folded where one is kept: sums over all series are those of three."""
    monkeypatch.setattr("exporter.ledger.MOST_ENDED", 1)
    with observe() as observed:
        for _ in range(3):
            with started(observed, Storage()) as job:
                job.run(f"shm = register({str(memory_file)!r})\nfor _ in range(7): read(shm, 1000)")
            until(lambda job=job: job.pid not in observed.collector.ledger, "its end")  # type: ignore[misc]
        found = observed.sums(REQUESTS, BYTES, DURATION)
        calls = {False: 7, True: 14}
        assert found == {REQUESTS: calls, BYTES: {False: 7000, True: 14000}, DURATION: calls}


class Narrow(Cufile):
    """With room for few handles."""

    def entries(self) -> dict[str, int]:
        return {"handles": 8}


@standin
def test_a_full_table(memory_file: Path) -> None:
    """A handle that the table has no room for is counted, and its requests are of an unknown file system."""
    build_standins()
    with running(Narrow, FLAGS, grace=1.0) as observed, started(observed, Storage()) as job:
        job.run(
            f"handles = [register({str(memory_file)!r}) for _ in range(67)]\nfor handle in handles: read(handle, 1)"
        )
        kept = len(observed.kernel("handles", job.pid))
        assert 8 <= kept < 67
        found = requests(observed, REQUESTS, job.pid)
        assert {("read", "cuFileRead", "tmpfs"): kept, ("read", "cuFileRead", "unknown"): 67 - kept} == found
        assert 67 - kept == observed.value("accel_exporter_map_full_total", map="cufile_handles")


class Shared(Cufile):
    """With few rows to share."""

    def entries(self) -> dict[str, int]:
        return {"io": 16, "handles": 64}

    def constants(self) -> dict[str, int]:
        return {"io_most": 16, "handles_most": 64}


@standin
def test_a_process_with_any_number_of_file_systems_and_handles(tmp_path: Path, memory_file: Path) -> None:
    """One that fills the tables takes half of each, again after its end; another's requests count by file system."""
    build_standins()
    with running(Shared, FLAGS, grace=1.0) as observed, started(observed, Storage()) as job:
        key = ("read", "cuFileRead", type_of(tmp_path))
        job.run(f"handle = register({str(tmp_path / 'job')!r}); read(handle, 10)")
        for round_ in range(1, 3):
            with started(observed, Storage()) as hostile:
                hostile.run(
                    f"all = [register({str(memory_file)!r}) for _ in range(100)]\n"
                    f"for it in (all[0], register({str(tmp_path / 'hostile')!r}), c_void_p(8)):\n"
                    "    read(it, 1); write(it, 1)\n"
                    "    for function in (lib.cuFileReadAsync, lib.cuFileWriteAsync): later(function, it, 1)\n"
                    "    submit((1, it, 0), (1, it, 1))"
                )
                for table, rows in (("io", 8), ("handles", 32)):
                    assert rows == len([*observed.collector.object.maps[table].items()])
                job.run(f"handle = register({str(tmp_path / 'job')!r}); read(handle, 10)")
                assert {key: 10 + 10 * round_} == requests(observed, BYTES, job.pid)
            until(lambda pid=hostile.pid: not observed.kernel("shares", pid), "its end")  # type: ignore[misc]
            job.run("lib.cuFileHandleDeregister(handle)")


@standin
def test_a_job_from_before(memory_file: Path) -> None:
    """Of a job that was there first, requests count from now on; a handle that it has already is of an unknown file."""
    build_standins()
    with Storage() as job:
        job.run(f"old = register({str(memory_file)!r})\nfor _ in range(5): read(old, 1)")
        with observe() as observed:
            started(observed, job)
            job.run(f"new = register({str(memory_file)!r})\nfor _ in range(23): read(old, 10); read(new, 100)")
            expected = {("read", "cuFileRead", "unknown"): 230, ("read", "cuFileRead", "tmpfs"): 2300}
            assert expected == requests(observed, BYTES, job.pid)


@standin
def test_without_return_probes(monkeypatch: pytest.MonkeyPatch, memory_file: Path) -> None:
    """Requests count where return probes may not be used; bytes, times, errors and file systems are not known."""
    monkeypatch.setattr("exporter.bpf.trial.Trial.returns_allowed", lambda *_: (False, "this is a test"))
    build_standins()
    with observe() as observed, Storage() as job:
        until(lambda: job.pid in observed.collector.ledger, "known")
        job.run(
            f"shm = register({str(memory_file)!r})\n"
            "for _ in range(23): read(shm, 1); later(lib.cuFileWriteAsync, shm, 1)\n"
            "submit(*[(1, shm, 1, None)] * 3)\n"
            "read(None, 1)"
        )
        assert {
            ("read", "cuFileRead", "unknown"): 24,
            ("write", "cuFileWriteAsync", "unknown"): 23,
            ("write", "cuFileBatchIOSubmit", "unknown"): 3,
        } == requests(observed, REQUESTS, job.pid)
        for metric in (BYTES, SUBMITTED, DURATION, ERRORS):
            assert {} == observed.values(metric, job.pid)


@real
def test_the_real_library(observed: Observed) -> None:
    """NVIDIA's library, without a driver: calls fail, count with the code the job got, and the process lives on."""
    library = wheels.library(*wheels.CUFILE_12)
    with started(observed, Storage(library, libraries=NOWHERE)) as job:
        job.run("sys.stdout = os.fdopen(os.dup(1), 'w'); os.dup2(2, 1)")  # where the library writes its complaints
        made = job.run(
            "os.environ['CUFILE_LOGFILE_PATH'] = '/dev/null'\n"
            "lib.cuFileHandleRegister.restype = c_uint64\n"
            "out = [read(None, 4096) for _ in range(23)]\n"
            "handle = c_void_p()\n"
            "out.append(lib.cuFileHandleRegister(byref(handle), byref(Descriptor(1, 0, None))) & 0xffffffff)"
        )
        assert {-1} == set(made[:23]) and made[23] in codes.names()
        assert {
            ("cuFileRead", "-1", "errno"): 23,
            ("cuFileHandleRegister", str(made[23]), codes.error_name(made[23])): 1,
        } == errors(observed, job.pid)
        assert {("read", "cuFileRead", "unknown"): 23} == requests(observed, REQUESTS, job.pid)
        assert {} == requests(observed, BYTES, job.pid)
        assert "alive" == job.run("out = 'alive'")


@real
@pytest.mark.parametrize(("wheel", "missing"), [(wheels.CUFILE_12, 2), (wheels.CUFILE_13, 0)], ids=["12", "13"])
def test_nothing_of_it_is_left_out(observed: Observed, wheel: tuple[str, str], missing: int) -> None:
    """Every function that moves data is hooked and attached in NVIDIA's library; 1.14 has no vectors."""
    library = wheels.library(*wheel)
    with started(observed, Storage(library, libraries=NOWHERE)):
        assert 0 == observed.value("accel_exporter_probe_symbols_uncovered", library=str(library))
        assert missing == observed.value("accel_exporter_probe_symbols_missing", library=str(library))
        attached = observed.values("accel_exporter_probe_attached", library=str(library))
        assert 9 - missing == len(attached) and {1} == set(attached.values())


@real
def test_the_names_of_errors() -> None:
    """The constants are those of the newest cufile.h."""
    header = wheels.library(wheels.CUFILE_13[0], "cufile.h").read_text()
    found = re.findall(r"CUFILE_OP\(CUFILEOP_BASE_ERR \+ (\d+),\s*(\w+)", header)
    assert {5000 + int(number): name for number, name in found} == codes.names()
