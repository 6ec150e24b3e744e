"""Processes and libraries, found for real: namespaces, overlays, links, deletion, replacement, fork, exec, death."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from exporter import pid_namespace
from exporter.bpf import mappings, targets, watch
from exporter.bpf.libbpf import BpfError, Link, Object
from exporter.bpf.library import Library
from exporter.bpf.targets import Targets
from exporter.bpf.uprobe import Point, attach
from exporter.bpf.watch import Batch
from exporter.model import Unavailable
from tests.support import PATIENCE, until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.evidence(feature="finding and attaching", on="real software"),
]

SYMBOL = f"target_call_{os.getpid()}"
"""Another run of these tests on this machine must not be mistaken for ours."""
LIBRARY = f'int {SYMBOL}(int a) {{ __asm__ volatile("" : "+r"(a)); return a + %d; }}'
COUNTER = """
#include "probe.h"
MAP(hits, HASH, __u32, __u64, 1024);
SEC("uprobe")
int count(struct pt_regs *context)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	__u64 zero = 0, *n = lookup_or_init(hits, &pid, &zero);

	(void)context;
	if (n)
		add(n, 1);
	return 0;
}
"""
GRACE = 1.0


class Counter:
    """An interest that counts calls with a uprobe and keeps the news that it gets."""

    symbols = frozenset({SYMBOL})

    def __init__(self, loaded: Object) -> None:
        self._object = loaded
        self._changed = threading.Condition()
        self.news: list[tuple[object, ...]] = []
        self.attached: list[Library] = []
        self.closed = 0
        self.times: dict[int, float] = {}

    def __repr__(self) -> str:
        return f"<{self.news}>"

    def attach(self, library: Library) -> Link:
        link = attach(self._object.programs["count"], library.open_path, [Point(library.functions[SYMBOL].offset)])
        self.attached.append(library)

        def close() -> None:
            link.close()
            self.closed += 1

        return Link(close)

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None:
        self.times.setdefault(pid, time.monotonic())
        self._note("started", pid, from_first_call)

    def processes_ended(self, pids: Collection[int]) -> None:
        for pid in pids:
            self._note("ended", pid)

    def processes_replaced(self, pids: Collection[int]) -> Collection[int]:
        for pid in pids:
            self._note("replaced", pid)
        return pids

    def _note(self, *news: object) -> None:
        with self._changed:
            self.news.append(news)
            self._changed.notify_all()

    def hears(self, *news: object, within: float = PATIENCE) -> bool:
        """Return whether this news arrives in time."""
        with self._changed:
            return self._changed.wait_for(lambda: news in self.news, within)

    def hits(self, pid: int) -> int:
        count: int = self._object.maps["hits"].get(pid) or 0
        return count


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


class Job:
    """A process that takes commands."""

    def __init__(self, *command: str | Path) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.pid = self._process.pid
        self.read()

    def read(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def do(self, command: str) -> str:
        assert self._process.stdin
        self._process.stdin.write(command + "\n")
        return self.read()

    def open(self, path: Path) -> Job:
        assert "opened" == self.do(f"open {path}")
        return self

    def kill(self) -> None:
        """Kill it and do not wait for it: it has ended, and its pid stays until `end`."""
        self._process.kill()

    def end(self, sign: int = signal.SIGKILL) -> None:
        self._process.send_signal(sign)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@pytest.fixture(scope="session")
def build_library(compile_library: Callable[[str, str], Path]) -> Callable[[int], Path]:
    return lambda variant: compile_library("libtarget.so", LIBRARY % variant)


@pytest.fixture
def library(build_library: Callable[[int], Path], tmp_path: Path) -> Path:
    return Path(shutil.copy(build_library(1), tmp_path / "libtarget.so"))


def build_job(folder: Path, *flags: str) -> Path:
    built = folder / "job"
    source = Path(__file__).parent / "targets_job.c"
    subprocess.run(["gcc", "-O2", f"-DTARGET={SYMBOL}", *flags, "-o", built, source, "-ldl", "-lpthread"], check=True)
    return built


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_job(tmp_path_factory.mktemp("job"))


@pytest.fixture
def start_job(program: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start(*prefix: str | Path) -> Job:
        jobs.append(Job(*prefix, program))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()


@pytest.fixture(scope="session")
def counter_object(compile_bpf: Callable[[str, str], Path]) -> Path:
    return compile_bpf("hits", COUNTER)


@pytest.fixture
def counter(counter_object: Path) -> Iterator[Counter]:
    with Object(counter_object) as loaded:
        yield Counter(loaded)


@pytest.fixture
def start_targets(counter: Counter) -> Iterator[Callable[..., Targets]]:
    started: list[Targets] = []

    def start(**settings: float) -> Targets:
        targets = Targets(**settings)  # type: ignore[arg-type]
        targets.want(counter)
        targets.start()
        started.append(targets)
        assert targets.scanned.wait(60)
        return targets

    yield start
    for each in started:
        each.close()


@pytest.fixture(params=["iterator", "all at once", "proc"])
def any_lister(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every way to list mappings: as here, as on Linux before 6.1, as without BTF."""
    if request.param == "all at once":
        monkeypatch.setattr(mappings, "ONE_BY_ONE", -1)
    elif request.param == "proc":

        def refuse() -> None:
            raise BpfError(0, "this kernel has no BTF")

        monkeypatch.setattr(targets, "IteratorLister", refuse)
    name: str = request.param
    return name


@pytest.mark.usefixtures("any_lister")
def test_before_and_after(
    library: Path, start_job: Callable[..., Job], start_targets: Callable[..., Targets], counter: Counter
) -> None:
    """A process that ran before the start is counted from then on; a later one from its first call; 23 are 23."""
    before = start_job().open(library)
    start_targets()
    assert ("started", before.pid, False) in counter.news
    after = start_job().open(library)
    for job in (before, after):
        job.do("call 23")
    assert (23, 23) == (counter.hits(before.pid), counter.hits(after.pid))
    assert counter.hears("started", after.pid, True)
    assert [str(library)] == [attached.path for attached in counter.attached]


@pytest.mark.usefixtures("any_lister")
def test_late_dlopen_is_covered_within_a_second(
    library: Path, start_job: Callable[..., Job], start_targets: Callable[..., Targets], counter: Counter
) -> None:
    """A library that no process used before is attached to soon after the first one maps it."""
    start_targets()
    job = start_job()
    time.sleep(0.3)
    job.open(library)
    assert counter.hears("started", job.pid, False)
    job.do("call 23")
    assert 23 == counter.hits(job.pid)


def test_latency(
    build_library: Callable[[int], Path],
    tmp_path: Path,
    start_job: Callable[..., Job],
    start_targets: Callable[..., Targets],
    counter: Counter,
) -> None:
    """Twenty new libraries are attached to as they are opened, none of them by a look at everything.

    Prints the time from dlopen until then; bench/targets.py compares it with the budget.
    """
    running = start_targets()
    seconds = []
    for i in range(20):
        library = Path(shutil.copy(build_library(1), tmp_path / f"lib{i}.so"))
        job = start_job()
        started = time.monotonic()
        job.open(library)
        assert counter.hears("started", job.pid, False)
        seconds.append(counter.times[job.pid] - started)
    print(f"\ncovered after {statistics.median(seconds) * 1e3:.1f} ms (median), {max(seconds) * 1e3:.1f} ms (most)")
    assert 0 == running.status.late


def test_another_mount_and_network_namespace(
    library: Path, program: Path, tmp_path: Path, start_targets: Callable[..., Targets], counter: Counter
) -> None:
    """A library that only the process's own mount namespace shows is found and counted."""
    start_targets()
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    script = 'mount -t tmpfs none "$1" && cp "$2" "$1/libtarget.so" && exec "$3"'
    job = Job("unshare", "-m", "-n", "sh", "-c", script, "sh", hidden, library, program)
    try:
        job.open(hidden / "libtarget.so")
        assert not (hidden / "libtarget.so").exists()
        assert counter.hears("started", job.pid, False)
        job.do("call 23")
        assert 23 == counter.hits(job.pid)
        assert [str(hidden / "libtarget.so")] == [attached.path for attached in counter.attached]
    finally:
        job.end()


@pytest.fixture
def overlays(library: Path, tmp_path: Path) -> Iterator[list[Path]]:
    """The same library through two overlay mounts of one lower folder, as two containers of one image see it."""
    lower = tmp_path / "lower"
    lower.mkdir()
    shutil.copy(library, lower / "libtarget.so")
    merged = []
    for name in ("a", "b"):
        upper, work, here = (tmp_path / f"{name}-{part}" for part in ("upper", "work", "merged"))
        for folder in (upper, work, here):
            folder.mkdir()
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "none", "-o", options, here], check=True)
        merged.append(here)
    yield [here / "libtarget.so" for here in merged]
    for here in merged:
        subprocess.run(["umount", "-l", here], check=True)


@pytest.mark.usefixtures("any_lister")
def test_overlays_of_one_layer_are_one_library(
    overlays: list[Path], start_job: Callable[..., Job], start_targets: Callable[..., Targets], counter: Counter
) -> None:
    """Two overlay paths of one lower file are attached to once, and every call through either counts once."""
    start_targets()
    first, second = start_job().open(overlays[0]), start_job()
    assert counter.hears("started", first.pid, False)
    second.open(overlays[1])
    for job in (first, second):
        job.do("call 23")
    assert counter.hears("started", second.pid, True)
    assert (23, 23) == (counter.hits(first.pid), counter.hits(second.pid))
    assert 1 == len(counter.attached)


def test_identity_is_the_real_file_below_an_overlay(
    overlays: list[Path], start_job: Callable[..., Job], start_targets: Callable[..., Targets], counter: Counter
) -> None:
    """Device and inode number are those of the lower file, not the overlay's."""
    start_targets()
    job = start_job().open(overlays[0])
    assert counter.hears("started", job.pid, False)
    lower = (overlays[0].parents[1] / "lower" / "libtarget.so").stat()
    assert [(lower.st_dev, lower.st_ino)] == [attached.identity for attached in counter.attached]


def test_hard_links_are_one_library(
    library: Path, start_job: Callable[..., Job], start_targets: Callable[..., Targets], counter: Counter
) -> None:
    """Two names of one inode are attached to once."""
    link = library.with_name("other.so")
    link.hardlink_to(library)
    start_targets()
    jobs = [start_job().open(library), start_job().open(link)]
    until(lambda: {job.pid for job in jobs} <= {pid for _, pid, *_ in counter.news}, lambda: counter)
    for job in jobs:
        job.do("call 23")
    assert [23, 23] == [counter.hits(job.pid) for job in jobs]
    assert 1 == len(counter.attached)


def test_deleted_while_mapped(
    library: Path, start_job: Callable[..., Job], start_targets: Callable[..., Targets], counter: Counter
) -> None:
    """A library without a name is found in the process that has it, under the name it had."""
    job = start_job().open(library)
    library.unlink()
    start_targets()
    job.do("call 23")
    assert 23 == counter.hits(job.pid)
    assert [str(library)] == [attached.path for attached in counter.attached]


def test_replaced_by_another_file(
    library: Path,
    build_library: Callable[[int], Path],
    start_job: Callable[..., Job],
    start_targets: Callable[..., Targets],
    counter: Counter,
) -> None:
    """An upgrade by rename is a second library: old processes count on the old file, new ones on the new."""
    start_targets()
    old = start_job().open(library)
    assert counter.hears("started", old.pid, False)
    shutil.copy(build_library(2), library.with_name("new.so")).replace(library)
    new = start_job().open(library)
    assert counter.hears("started", new.pid, False)
    for job in (old, new):
        job.do("call 23")
    assert (23, 23) == (counter.hits(old.pid), counter.hits(new.pid))
    assert 2 == len(counter.attached)


def test_overwritten_in_place(
    library: Path,
    compile_library: Callable[[str, str], Path],
    start_job: Callable[..., Job],
    start_targets: Callable[..., Targets],
    counter: Counter,
) -> None:
    """New content in the same inode is searched again: its function lies elsewhere, and is counted there."""
    start_targets()
    old = start_job().open(library)
    assert counter.hears("started", old.pid, False)
    old.end()
    other = compile_library("moved.so", "int before(int a) { return a ^ 5; }\n" + LIBRARY % 3)
    inode = library.stat().st_ino
    library.write_bytes(other.read_bytes())
    assert inode == library.stat().st_ino
    new = start_job().open(library)
    assert counter.hears("started", new.pid, False)
    new.do("call 23")
    assert 23 == counter.hits(new.pid)
    offsets = [attached.functions[SYMBOL].offset for attached in counter.attached]
    assert 2 == len(set(offsets))
    assert 1 == counter.closed


def test_probes_leave_before_other_code_is_mapped(
    library: Path,
    compile_library: Callable[[str, str], Path],
    start_job: Callable[..., Job],
    start_targets: Callable[..., Targets],
    counter: Counter,
) -> None:
    """A library is overwritten in place: the next process runs its code, with no breakpoint where the old one was."""
    start_targets(grace=600)
    old = start_job().open(library)
    assert counter.hears("started", old.pid, False)
    old.end()
    assert counter.hears("ended", old.pid)
    [attached] = counter.attached
    numbers = "".join(".quad 0x1122334455667788; " for _ in range(4096))
    source = f'__asm__(".text; .globl numbers; numbers: {numbers}"); int {SYMBOL}(int a) {{ return a; }}'
    library.write_bytes(compile_library("other.so", source).read_bytes())
    until(lambda: counter.closed == 1, "detached")
    read = f"import ctypes; print(ctypes.string_at(ctypes.CDLL({str(library)!r}).numbers, 32768).hex())"
    found = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True).stdout
    assert bytes.fromhex(found) == bytes.fromhex("8877665544332211") * 4096
    assert attached.functions[SYMBOL].offset < 32768


def test_who_maps_a_probed_file_privately_sees_breakpoints(
    library: Path, start_job: Callable[..., Job], start_targets: Callable[..., Targets], counter: Counter
) -> None:
    """Tools that map a library to copy or translate it (llvm-strip, valgrind) get them, as docs/faq.md has it; readers
    of the file do not.
    """
    start_targets()
    assert counter.hears("started", start_job().open(library).pid, False)
    content = library.read_bytes()
    with library.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        shared = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    assert mapped[:] != content
    assert shared[:] == content == library.read_bytes()


def test_a_job_goes_on_in_a_library_that_is_written_again(
    library: Path, start_job: Callable[..., Job], start_targets: Callable[..., Targets], counter: Counter
) -> None:
    """The same content is written over a library that is in use: it is attached to again, and calls count."""
    start_targets()
    job = start_job().open(library)
    assert counter.hears("started", job.pid, False)
    with library.open("r+b") as file:
        file.write(library.read_bytes()[:64])
    until(lambda: counter.closed == 1 and len(counter.attached) == 2, "attached again")
    until(lambda: counter.news.count(("started", job.pid, False)) == 2, "heard of again")
    job.do("call 23")
    assert 23 == counter.hits(job.pid)


def test_a_function_in_the_program_itself(
    tmp_path: Path, start_targets: Callable[..., Targets], counter: Counter
) -> None:
    """A static function of an unstripped executable counts as a library's does."""
    start_targets()
    job = Job(build_job(tmp_path, "-DBUILT_IN"))
    try:
        assert counter.hears("started", job.pid, False)
        job.do("call 23")
        assert 23 == counter.hits(job.pid)
    finally:
        job.end()


def test_release_after_the_last_user(
    library: Path, start_job: Callable[..., Job], start_targets: Callable[..., Targets], counter: Counter
) -> None:
    """A library without users is detached from after the grace period and not before; used again, attached again."""
    targets = start_targets(grace=GRACE)
    before = open_descriptors()
    job = start_job().open(library)
    assert counter.hears("started", job.pid, False)
    until(lambda: ((str(library), 1),) == targets.status.libraries, "one user")
    ending = time.monotonic()
    job.end()
    assert counter.hears("ended", job.pid)
    until(lambda: counter.closed == 1, "detached")
    assert time.monotonic() - ending >= GRACE
    until(lambda: targets.status.libraries == (), "no library left")
    until(lambda: open_descriptors() <= before, "descriptors closed")  # some more while the search looks at a process
    again = start_job().open(library)
    assert counter.hears("started", again.pid, False)
    assert 2 == len(counter.attached)


@pytest.mark.usefixtures("any_lister")
def test_exec(
    library: Path, start_job: Callable[..., Job], start_targets: Callable[..., Targets], counter: Counter
) -> None:
    """A process that runs another program is reported as replaced, and as started when that uses the library too."""
    targets = start_targets()
    job = start_job().open(library)
    assert counter.hears("started", job.pid, False)
    assert "ready" == job.do("exec")
    assert counter.hears("replaced", job.pid)
    until(lambda: targets.users.replaced_after(job.pid, 0), "the time of it noted")
    job.open(library)
    assert counter.hears("started", job.pid, True)
    job.end()
    assert counter.hears("ended", job.pid)
    kinds = [kind for kind, pid, *_ in counter.news if pid == job.pid]
    assert ["started", "replaced", "started", "ended"] == kinds


@pytest.mark.usefixtures("any_lister")
def test_fork(
    library: Path, start_job: Callable[..., Job], start_targets: Callable[..., Targets], counter: Counter
) -> None:
    """A forked child uses what its parent had mapped, from its first call, until it ends itself."""
    start_targets()
    job = start_job().open(library)
    assert counter.hears("started", job.pid, False)
    child = int(job.do("fork 23"))
    assert counter.hears("started", child, True)
    until(lambda: 23 == counter.hits(child), "the calls of the child")
    os.kill(child, signal.SIGKILL)
    assert counter.hears("ended", child)
    assert ("ended", job.pid) not in counter.news


def test_a_process_ends_with_its_last_thread(
    library: Path, start_job: Callable[..., Job], start_targets: Callable[..., Targets], counter: Counter
) -> None:
    """A leader that exits before its threads is no end."""
    start_targets()
    job = start_job().open(library)
    assert counter.hears("started", job.pid, False)
    assert "left" == job.do("leave")
    assert not counter.hears("ended", job.pid, within=0.4)
    job.end()
    assert counter.hears("ended", job.pid)


@pytest.mark.usefixtures("any_lister")
def test_a_process_without_its_first_thread(
    library: Path, start_job: Callable[..., Job], start_targets: Callable[..., Targets], counter: Counter
) -> None:
    """A leader that exited before the start does not hide what the other threads have mapped."""
    job = start_job().open(library)
    assert "left" == job.do("leave")
    until(lambda: b") Z " in Path(f"/proc/{job.pid}/stat").read_bytes(), "the leader ended")
    start_targets()
    assert ("started", job.pid, False) in counter.news
    assert [str(library)] == [attached.path for attached in counter.attached]


def test_short_processes_are_reported_once(
    library: Path, start_job: Callable[..., Job], start_targets: Callable[..., Targets], counter: Counter
) -> None:
    """Processes that end at once are counted in full, and none is left behind as running."""
    targets = start_targets()
    keeper = start_job().open(library)
    assert counter.hears("started", keeper.pid, False)
    pids = []
    for _ in range(20):
        job = start_job().open(library)
        job.do("call 23")
        job.end()
        pids.append(job.pid)
    assert [23] * 20 == [counter.hits(pid) for pid in pids]
    for pid in pids:
        assert counter.hears("ended", pid)
        news = [it for it in counter.news if it[1] == pid]
        assert news in ([("started", pid, True), ("ended", pid)], [("ended", pid)])  # the second: it was gone by then
    until(lambda: ((str(library), 1),) == targets.status.libraries, "one user")


@pytest.mark.parametrize("resync", [60.0, 0.0])
def test_ends_of_processes_that_nobody_waits_for(
    library: Path,
    start_job: Callable[..., Job],
    start_targets: Callable[..., Targets],
    counter: Counter,
    resync: float,
) -> None:
    """As in a container without an init: of such a process nothing is mapped, but its pid is there. Most of them have
    ended before they are listed, by their records or, with a `resync` at each step, together with all others.
    """
    targets = start_targets()
    targets._search._resync = resync
    keeper = start_job().open(library)
    assert counter.hears("started", keeper.pid, False)
    pids = []
    for _ in range(23):
        job = start_job().open(library)
        job.do("call 23")
        job.kill()
        pids.append(job.pid)
    assert [23] * 23 == [counter.hits(pid) for pid in pids]
    until(lambda: {("ended", pid) for pid in pids}.issubset(counter.news), "their ends")
    until(lambda: ((str(library), 1),) == targets.status.libraries, "one user")
    assert not counter.hears("ended", keeper.pid, within=0.0)


def test_lost_records_are_made_good(
    library: Path,
    start_job: Callable[..., Job],
    start_targets: Callable[..., Targets],
    counter: Counter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without any record but that some were lost, a look at everything finds the process, and is counted as late."""
    running = start_targets()
    monkeypatch.setattr(targets.Watch, "drain", lambda self: Batch(lost=3))
    job = start_job().open(library)  # wakes the watcher, too
    assert counter.hears("started", job.pid, False)
    until(lambda: running.status.late == 1, "found late")
    assert running.status.lost >= 3


def test_hostile_names(
    library: Path, start_job: Callable[..., Job], start_targets: Callable[..., Targets], counter: Counter
) -> None:
    """Bytes that are no UTF-8, quotes and a false mark of deletion in a name do no harm."""
    name = os.fsencode(library.parent) + b'/lib\xff"\t (deleted)'
    os.rename(library, name)  # noqa: PTH104  # a name in bytes
    job = start_job()
    start_targets()
    job._process.stdin.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
    job.open(Path(os.fsdecode(name)))
    assert counter.hears("started", job.pid, False)
    job.do("call 23")
    assert 23 == counter.hits(job.pid)
    assert 'lib\ufffd"\t' == Path(counter.attached[0].path).name


def test_a_slow_attachment_loses_nothing(
    build_library: Callable[[int], Path],
    tmp_path: Path,
    start_job: Callable[..., Job],
    start_targets: Callable[..., Targets],
    counter: Counter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files mapped during a slow attachment to another file are found right after."""
    attach, slow = counter.attach, threading.Event()

    def attach_slowly(library: Library) -> Link:
        slow.set()
        time.sleep(0.5)
        return attach(library)

    running = start_targets()
    monkeypatch.setattr(counter, "attach", attach_slowly)
    first = start_job().open(Path(shutil.copy(build_library(1), tmp_path / "first.so")))
    assert slow.wait(PATIENCE)
    monkeypatch.setattr(counter, "attach", attach)
    others = [start_job().open(Path(shutil.copy(build_library(2), tmp_path / f"{i}.so"))) for i in range(5)]
    for job in (first, *others):
        assert counter.hears("started", job.pid, False)
    assert (0, 0) == (running.status.lost, running.status.late)


class Forks:
    """A small process that forks at a call: to copy that of pytest takes twenty times as long."""

    PROGRAM = """if True:
        import os, sys
        for line in sys.stdin:
            child = os.fork()
            if not child:
                os._exit(0)
            os.waitpid(child, 0)
            print(child, flush=True)
    """

    def __init__(self) -> None:
        command = [sys.executable, "-S", "-c", self.PROGRAM]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def __call__(self) -> int:
        """The pid of a child that has ended."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture
def forks() -> Iterator[Forks]:
    made = Forks()
    with made.process:
        yield made


def test_rings_are_read_around_their_end(monkeypatch: pytest.MonkeyPatch, forks: Forks) -> None:
    """Of many more forks than a ring holds none is missed and none is reported twice, unless the kernel lost some."""
    size = 8 * mmap.PAGESIZE
    monkeypatch.setattr(watch, "ring_bytes", lambda cpus: size)
    children, seen, lost = [], [], 0
    with contextlib.closing(select.epoll()) as poll, contextlib.closing(watch.Watch(poll)) as watching:
        for _ in range(3 * size // 112):  # a fork and an exit are 112 bytes
            children.append(forks())
            batch = watching.drain()
            seen += [fork.pid for fork in batch.forks if fork.parent == forks.pid]
            lost += batch.lost
    assert children == seen or 0 < len(children) - len(seen) <= lost


def test_losses_of_rings_are_counted(monkeypatch: pytest.MonkeyPatch, forks: Forks) -> None:
    """Records that did not fit are counted by the kernel, and reported with the next record on the same processor."""
    monkeypatch.setattr(watch, "ring_bytes", lambda cpus: mmap.PAGESIZE)
    os.sched_setaffinity(forks.pid, {min(os.sched_getaffinity(0))})
    with contextlib.closing(select.epoll()) as poll, contextlib.closing(watch.Watch(poll)) as watching:
        for _ in range(200):
            forks()
        watching.drain()
        for _ in range(10):
            forks()
        assert watching.drain().lost > 0


@pytest.mark.usefixtures("counter")
def test_nothing_is_watched_for_nobody() -> None:
    """Without interests no thread is started and no descriptor opened."""
    before = open_descriptors()
    targets = Targets()
    targets.start()
    assert targets.scanned.is_set()
    assert before == open_descriptors()
    targets.close()


def test_another_pid_namespace_is_refused(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container's own PID namespace the start fails with an error that has what to do."""
    monkeypatch.setattr(pid_namespace, "HOST", 1)
    inside = Targets()
    inside.want(counter)
    inside.require()
    with pytest.raises(BpfError, match="hostPID"):
        inside.start()
    with pytest.raises(Unavailable, match="hostPID"):
        inside.require()
    inside.close()


class Failing(Counter):
    """An interest that cannot attach, and fails on everything else too."""

    def attach(self, library: Library) -> Link:
        raise BpfError(22, "no such instruction")


def test_one_failing_interest_costs_only_itself(
    library: Path,
    start_job: Callable[..., Job],
    counter: Counter,
    counter_object: Path,
) -> None:
    """A failed attachment of one interest does not affect another one; the failure is counted, and tried again."""
    with Object(counter_object) as loaded:
        failing, both, alone = Failing(loaded), Targets(), Targets(resync=0.3)
        both.want(failing)
        both.want(counter)
        both.start()
        alone.want(failing)
        alone.start()
        job = start_job().open(library)
        assert counter.hears("started", job.pid, False)
        job.do("call 23")
        until(lambda: alone.status.failed >= 2, "tried again")
        until(lambda: both.status.failed == 1, "the failure counted")
        assert 23 == counter.hits(job.pid)
        assert [] == failing.news
        both.close()
        alone.close()


def test_closing_is_quick_and_leaves_nothing_open(
    library: Path, start_job: Callable[..., Job], counter: Counter
) -> None:
    """Closing with libraries attached ends the search in time, and gives every descriptor back."""
    start_job().open(library)
    before = 0
    for _ in range(4):
        targets = Targets()
        targets.want(counter)
        targets.start()
        assert targets.scanned.wait(60)
        assert targets.close()
        before = before or open_descriptors()  # the first may start the child that reads files
    assert 4 == counter.closed
    assert before == open_descriptors()


def test_interests_come_before_the_start(counter: Counter, start_targets: Callable[..., Targets]) -> None:
    """Registering an interest after the start is an error at once."""
    running = start_targets()
    with pytest.raises(RuntimeError, match="before targets are started"):
        running.want(counter)
