"""The bridge when something is wrong: one clear BpfError each, nothing left open, nothing lost unseen."""

from __future__ import annotations

import ctypes
import json
import logging
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from exporter.bpf import uprobe
from exporter.bpf.libbpf import BpfError, Events, Object
from exporter.bpf.uprobe import AttachError, Point
from tests.support import PATIENCE

pytestmark = pytest.mark.needs_bpf

LIBRARY = 'int take(long n) { asm volatile("push %%rbp; pop %%rbp" ::: "memory"); return n; }'
PROBE = """
#include "probe.h"

struct record {
	__u64 n;
	__u64 pad[15];
};

MAP(seen, HASH, __u64, __u64, 64);
EVENTS(records, struct record, 4096);

SEC("uprobe")
int BPF_KPROBE(on_take, __u64 n)
{
	struct record *record = reserve(records);

	if (!record)
		return 0;
	__builtin_memset(record, 0, sizeof(*record));
	record->n = n;
	bpf_ringbuf_submit(record, 0);
	return 0;
}

SEC("uretprobe") int on_return(void *ctx) { return !ctx; }
"""
REFUSED = """
#include "probe.h"
SEC("uprobe") int on_take(void *ctx) { return *(int *)((__u64)ctx * 3); }
"""
OFFSET_BEYOND = 1 << 30
CALLS = 23


@pytest.fixture(scope="module")
def compiled(compile_bpf) -> Path:
    return compile_bpf("failures", PROBE)


@pytest.fixture(scope="module")
def library(compile_library) -> Path:
    return compile_library("libtake.so", LIBRARY)


@pytest.fixture(scope="module")
def point(library) -> Point:
    table = subprocess.run(["nm", library], check=True, capture_output=True, text=True).stdout
    return Point(int(re.search(r"(\w+) T take", table)[1], 16))


@pytest.fixture
def loaded(compiled, multi):
    with Object(compiled, multi=multi) as opened:
        yield opened


def descriptors() -> dict[str, str]:
    """Return the target of each open descriptor, by number, so that a leaked one has a name."""
    found = {}
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found[descriptor.name] = str(descriptor.readlink())
        except FileNotFoundError:  # the one that lists the folder
            continue
    return found


def test_twenty_rounds_leave_nothing_open(compiled, library, point, multi):
    """Load, attach, read and close as often as you like: every descriptor is given back, also after failures."""

    def one_round():
        with Object(compiled, multi=multi) as loaded, Events() as events:
            events.add(loaded.maps["records"], lambda record: None)
            link = uprobe.attach(loaded.programs["on_take"], library, [point])
            back = uprobe.attach(loaded.programs["on_return"], library, [point], returns=True)
            events.poll(0)
            with pytest.raises(BpfError):
                uprobe.attach(loaded.programs["on_take"], library, [point, Point(OFFSET_BEYOND)])
            uprobe.close_all([link, back])
        with pytest.raises(BpfError):
            Object(compiled, entries={"seen": 1 << 31}, multi=multi)

    one_round()
    before = descriptors()
    for _ in range(20 if multi else 5):  # a perf event takes 0.1 s to close on kernels that have multi-uprobe links
        one_round()

    assert before == descriptors()


def test_a_cut_object_is_an_error_at_any_length(compiled, tmp_path):
    """However much of an object is missing, or overwritten with zeros or ones, loading ends with BpfError or works."""
    whole, cut = compiled.read_bytes(), tmp_path / "cut.bpf.o"
    variants = [whole[: len(whole) * i // 40] for i in range(40)]
    for at in range(0, len(whole), len(whole) // 40):
        variants += [whole[:at] + filler * 16 + whole[at + 16 :] for filler in (b"\0", b"\xff")]
    (tmp_path / "variants.json").write_text(json.dumps([variant.hex() for variant in variants]))
    script = f"""
import json
from pathlib import Path
from exporter.bpf.libbpf import BpfError, Object
cut = Path({str(cut)!r})
for text in json.loads(Path({str(tmp_path / "variants.json")!r}).read_text()):
    cut.write_bytes(bytes.fromhex(text))
    try:
        Object(cut).close()
    except BpfError as error:
        assert str(cut) in str(error), error
print("survived")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)

    assert ("survived\n", 0) == (done.stdout, done.returncode), done.stderr[-2000:]


def test_a_missing_object_names_the_command_that_builds_it(tmp_path):
    """An object that was never built is an error that names `make objects`."""
    with pytest.raises(BpfError, match="no such object; run `make objects`"):
        Object(tmp_path / "none.bpf.o")


def test_an_object_of_another_version(compile_bpf, monkeypatch, tmp_path):
    """Whatever Python misses in an object is one error, with what to do in a checkout and with an installed package."""
    older = compile_bpf("older", PROBE)
    with Object(older) as opened:
        lookups = {
            "map newer": lambda: opened.maps["newer"],
            "program newer": lambda: opened.programs["newer"],
            "struct newer": lambda: opened.types.struct("newer"),
            "enum newer": lambda: opened.types.enum("newer"),
            "constant newer": lambda: Object(older, constants={"newer": 1}),
            "map newer to size": lambda: Object(older, entries={"newer": 1}),
        }
        for missing, look_up in lookups.items():
            with pytest.raises(BpfError, match=f"^older.*is of another version.*no {missing}.*; run `make objects`$"):
                look_up()
        with pytest.raises(AttributeError):
            opened.types.struct("record")(newer=1)
        monkeypatch.setattr("exporter.__file__", str(tmp_path / "exporter" / "__init__.py"))
        with pytest.raises(BpfError, match="; install accel-exporter again$"):
            opened.maps["newer"]


def test_the_verifier_has_the_last_word(compile_bpf):
    """A program that the kernel refuses fails with the verifier's reason, in a few lines."""
    with pytest.raises(BpfError, match="(?s)^load .*Permission denied.*(pointer|R1)") as caught:
        Object(compile_bpf("refused", REFUSED))

    assert len(str(caught.value).splitlines()) < 12


def test_without_the_right_the_capability_is_named(compiled):
    """An unprivileged user reads which capabilities are missing, and nothing of libbpf's own chatter."""
    script = """
import os
from pathlib import Path
from exporter.bpf.libbpf import BpfError, Object
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    Object(Path("/proc/self/fd/0"))
except BpfError as error:
    print(error)
"""
    with compiled.open() as readable:
        done = subprocess.run(
            [sys.executable, "-c", script], stdin=readable, capture_output=True, text=True, timeout=60
        )

    assert "run as root or grant CAP_BPF and CAP_PERFMON" in done.stdout
    assert "" == done.stderr


def test_a_refused_point_is_named_and_nothing_stays_attached(loaded, library, point):
    """Of several points with a bad one none stays attached; the error names the bad one."""
    with pytest.raises(AttachError, match=f"{library} at offset {OFFSET_BEYOND:#x}: Invalid argument") as caught:
        uprobe.attach(loaded.programs["on_take"], library, [point, Point(OFFSET_BEYOND)])

    assert (Point(OFFSET_BEYOND),) == caught.value.failed
    assert [] == events_of(loaded, lambda: ctypes.CDLL(str(library)).take(1))


@pytest.mark.parametrize("path", ["/nowhere/lib.so", "/proc", "/dev/null"])
def test_what_is_no_file_cannot_be_attached_to(loaded, path):
    """A path that is gone or no regular file is an error that names it."""
    with pytest.raises(AttachError, match=path):
        uprobe.attach(loaded.programs["on_take"], path, [Point(0)])


def test_magic_links_are_followed(loaded, library, point, tmp_path):
    """A library is reached by a mapping of a process or by a descriptor, though its name is gone."""
    copy = tmp_path / "gone.so"
    copy.write_bytes(library.read_bytes())
    functions = ctypes.CDLL(str(copy))
    maps = Path("/proc/self/maps").read_text()
    mapped = re.search(rf"^(\S+) r-xp .*{copy}", maps, re.M)[1]
    with copy.open() as held:
        copy.unlink()
        for path in (f"/proc/self/map_files/{mapped}", f"/proc/self/fd/{held.fileno()}"):
            link = uprobe.attach(loaded.programs["on_take"], path, [point])

            assert [5, 6] == events_of(loaded, lambda: [functions.take(5), functions.take(6)])
            link.close()


def events_of(loaded: Object, work) -> list[int]:
    received = []
    with Events() as events:
        events.add(loaded.maps["records"], lambda record: received.append(record.n))
        work()
        events.poll(1000)  # the kernel wakes a reader a moment after the call
    return received


def test_a_failing_reader_is_counted_and_logged_once(loaded, library, point, caplog):
    """Whatever a callback raises, the poller goes on; the records it lost are counted, the log has one line."""
    received = []

    def fussy(record):
        if record.n % 2:
            raise ValueError("odd")
        received.append(record.n)

    functions = ctypes.CDLL(str(library))
    link = uprobe.attach(loaded.programs["on_take"], library, [point])
    with Events() as events, caplog.at_level(logging.ERROR):
        events.add(loaded.maps["records"], fussy)
        for n in range(CALLS):
            functions.take(n)
        events.poll(1000)
        [lost] = events.collect()
    link.close()

    assert [*range(0, CALLS, 2)] == received
    assert ("records", 11) == (lost.labels["stream"], lost.value)
    assert 1 == len(caplog.records)


def test_records_without_room_are_counted(loaded, library, point):
    """Read and lost records together are the calls made."""
    functions = ctypes.CDLL(str(library))
    link = uprobe.attach(loaded.programs["on_take"], library, [point])
    for n in range(101):
        functions.take(n)
    link.close()
    received = events_of(loaded, lambda: None)

    assert 0 < len(received) < 101
    assert 101 == len(received) + loaded.maps["records"].lost()


def test_closing_while_others_read_is_an_error_for_them(compiled):
    """Readers of other threads get BpfError after the object is closed, never another descriptor's data."""
    loaded, ended = Object(compiled), []

    def read():
        try:
            while True:
                list(loaded.maps["seen"].items())
        except BpfError as error:
            ended.append(error.errno)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    time.sleep(0.05)
    loaded.close()
    loaded.close()
    for reader in readers:
        reader.join(PATIENCE)

    assert 3 == len(ended)


def test_a_flood_does_not_hold_the_poller(loaded, library, point, monkeypatch):
    """One call hands over a limited number of records a stream; the next calls go on where it stopped."""
    monkeypatch.setattr("exporter.bpf.events._AT_ONCE", 10)
    functions, received = ctypes.CDLL(str(library)), []
    link = uprobe.attach(loaded.programs["on_take"], library, [point])
    for n in range(CALLS):
        functions.take(n)
    link.close()
    with Events() as events:
        events.add(loaded.maps["records"], lambda record: received.append(record.n))
        rounds = [events.poll(0) for _ in range(4)]

    assert [10, 10, 3, 0] == rounds
    assert [*range(CALLS)] == received


def test_polling_after_close_is_an_error(loaded):
    """A thread that polls after the end gets BpfError."""
    events = Events()
    events.add(loaded.maps["records"], lambda record: None)
    events.close()

    with pytest.raises(BpfError, match="closed"):
        events.poll(0)


def test_150_points_are_few_descriptors(compiled, compile_library):
    """Entry and return probes on 150 functions of one library are two multi-uprobe links, which detach in two waits."""
    names = [f"take{i}" for i in range(150)]
    many = compile_library("libmany.so", "".join(LIBRARY.replace("take", name) for name in names))
    table = subprocess.run(["nm", many], check=True, capture_output=True, text=True).stdout
    points = [Point(int(address, 16)) for address in re.findall(r"(\w+) T take", table)]
    ctypes.CDLL(str(many))
    with Object(compiled) as loaded:
        before = descriptors()
        links = [
            uprobe.attach(loaded.programs["on_take"], many, points),
            uprobe.attach(loaded.programs["on_return"], many, points, returns=True),
        ]
        attached = len(descriptors()) - len(before)
        uprobe.close_all(links)
        after = descriptors()

    assert 150 == len(points)
    assert (1 if loaded.programs["on_take"].multi else uprobe.DESCRIPTORS_OF_POINT * 150) * 2 == attached
    assert before == after
