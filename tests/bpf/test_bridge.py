"""The bridge on real programs: what a stand-in library does is what the maps and ring buffers hold."""

from __future__ import annotations

import ctypes
import re
import subprocess
import time
from pathlib import Path

import pytest

from exporter.bpf import uprobe
from exporter.bpf.libbpf import BpfError, Events, Object
from exporter.bpf.uprobe import Point

pytestmark = pytest.mark.needs_bpf

LIBRARY = """
__attribute__((noinline)) int take(unsigned long n) { asm volatile("" :: "r"(n)); return n % 2; }
__attribute__((noinline)) int give(unsigned long n) { asm volatile("" :: "r"(n)); return 7; }
"""
PROBE = """
#include "probe.h"

struct key {
	__u64 cookie;
	__u32 kind;
	__u32 result;
};

struct seen {
	__u64 calls;
	__s64 sum;
	__u64 last_size;
	__u64 slots[20];
};

struct record {
	__u64 size;
	__u32 tid;
	__u32 pad;
	char comm[16];
};

enum kind { ENTERED, RETURNED = 5 };

const volatile __u64 large = 1000;
const enum kind unused_kind = RETURNED;

MAP(calls, PERCPU_HASH, struct key, struct seen, 64);
MAP(sizes, HASH, __u32, __u64, 16);
EVENTS(records, struct record, 4096);

static const struct seen zero;

static int count(struct key *key, __u64 n)
{
	struct seen *seen = lookup_or_init(calls, key, &zero);

	if (!seen)
		return 0;
	add(&seen->calls, 1);
	__sync_fetch_and_add(&seen->sum, n);
	seen->last_size = n;
	add(&seen->slots[log2_slot(n, 2, 20) % 20], 1);
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(on_entry, __u64 n)
{
	struct key key = {.cookie = bpf_get_attach_cookie(ctx), .kind = ENTERED};
	struct record *record;

	count(&key, n);
	if (n < large)
		return 0;
	record = reserve(records);
	if (!record)
		return 0;
	record->size = n;
	record->tid = bpf_get_current_pid_tgid();
	record->pad = 0;
	bpf_get_current_comm(record->comm, sizeof(record->comm));
	bpf_ringbuf_submit(record, 0);
	return 0;
}

SEC("uprobe")
int BPF_KRETPROBE(on_return, int result)
{
	struct key key = {.cookie = bpf_get_attach_cookie(ctx), .kind = RETURNED, .result = result};

	return count(&key, 1);
}

SEC("syscall")
int fill(__u64 *context)
{
	__u32 key = *context;
	__u64 nothing = 0;

	return lookup_or_init(sizes, &key, &nothing) ? 11 : -12;
}

SEC("syscall")
int add_row(__u64 *context)
{
	__u32 key = *context;
	__u64 nothing = 0;
	long error = insert(sizes, &key, &nothing, BPF_NOEXIST);

	return error == -EEXIST ? 1 : error == -E2BIG ? 2 : error ? 3 : 0;
}
"""


@pytest.fixture(scope="module")
def library(compile_library) -> Path:
    return compile_library("libstandin.so", LIBRARY)


@pytest.fixture(scope="module")
def compiled(compile_bpf) -> Path:
    return compile_bpf("bridge", PROBE)


@pytest.fixture
def loaded(compiled, multi):
    with Object(compiled, multi=multi) as opened:
        yield opened


def offset(library: Path, symbol: str) -> int:
    """The file offset of a function: its address, as the text segment of these libraries is mapped at its offset."""
    table = subprocess.run(["readelf", "-Ws", library], check=True, capture_output=True, text=True).stdout
    return int(re.search(rf"([0-9a-f]+) +\d+ FUNC .* {symbol}$", table, re.M)[1], 16)


def test_23_calls_are_23(library, loaded):
    """Entry and return probes with cookies see every call of their function and nothing else."""
    points = [Point(offset(library, "take"), 1), Point(offset(library, "give"), 2)]
    entered = uprobe.attach(loaded.programs["on_entry"], library, points)
    returned = uprobe.attach(loaded.programs["on_return"], library, points, returns=True)
    functions = ctypes.CDLL(str(library))
    for size in range(23):
        functions.take(size)
    for _ in range(4):
        functions.give(5)
    entered.close()
    returned.close()
    functions.take(1)

    seen = {(key.cookie, key.kind, key.result): value for key, value in loaded.maps["calls"].items()}

    assert {(1, 0, 0): 23, (2, 0, 0): 4, (1, 5, 0): 12, (1, 5, 1): 11, (2, 5, 7): 4} == {
        key: value.calls for key, value in seen.items()
    }
    assert sum(range(23)) == seen[1, 0, 0].sum
    assert 22 == seen[1, 0, 0].last_size
    assert [5, 4, 8, 6] == list(seen[1, 0, 0].slots)[:4]  # 0-4, 5-8, 9-16, 17-22


def test_the_object_names_its_types(loaded):
    """Structs, enums and map sizes are what the C source declares."""
    assert ["cookie", "kind", "result"] == [name for name, _ in loaded.maps["calls"].key._fields_]
    assert 24 + 160 == ctypes.sizeof(loaded.types.struct("seen"))
    assert {"ENTERED": 0, "RETURNED": 5} == loaded.types.enum("kind")
    assert 64 == loaded.maps["calls"].max_entries


def test_constants_and_sizes_are_set_before_loading(library, compiled):
    """A constant changes what the program does, an entry count the size of a map."""
    with Object(compiled, constants={"large": 3}, entries={"sizes": 2}) as loaded, Events() as events:
        received = []
        events.add(loaded.maps["records"], lambda record: received.append((record.size, record.comm)))
        link = uprobe.attach(loaded.programs["on_entry"], library, [Point(offset(library, "take"))])
        functions = ctypes.CDLL(str(library))
        for size in range(5):
            functions.take(size)
        events.poll(1000)
        link.close()

        assert 2 == loaded.maps["sizes"].max_entries
        assert [3, 4] == [size for size, _ in received]


def test_a_full_map_is_counted(loaded):
    """Keys without room are counted, and running a program returns what its C function returned."""
    answers = [loaded.programs["fill"].run(key.to_bytes(8, "little")) for key in range(40)]

    assert 40 == answers.count(11) + answers.count(-12)
    assert answers.count(-12) == loaded.maps["sizes"].lost()
    assert answers.count(11) == len(dict(loaded.maps["sizes"].items()))


def test_a_full_map_refuses_new_keys_for_a_while(loaded):
    """After a refusal new keys are refused without a search for room, also when there is some, and then tried again."""

    def fill(key: int) -> int:
        return loaded.programs["fill"].run(key.to_bytes(8, "little"))

    held = [key for key in range(40) if fill(key) == 11]
    for key in held:
        time.sleep(0.3)  # longer than any kernel's 25 ticks
        began = time.monotonic()
        assert -12 == fill(1000)
        loaded.maps["sizes"].delete(key)
        answer, seconds = fill(1001 + key), time.monotonic() - began
        if seconds < 0.02:  # else the 25 ticks may be over
            assert -12 == answer
            break
        if answer != 11:
            time.sleep(0.3)
            assert 11 == fill(1001 + key)
    else:
        pytest.fail("this machine is too busy for two calls within 20 ms")
    time.sleep(0.3)
    assert 11 == fill(1001 + key)


def test_errors_of_insertions(loaded):
    """A program knows an error by its number, also where the kernel's functions return 32 bits (before Linux 6.4)."""

    def add(key: int) -> int:
        return loaded.programs["add_row"].run(key.to_bytes(8, "little"))

    assert [0, 1] == [add(0), add(0)]
    answers = {add(key) for key in range(1, 40)}
    assert {0, 2} == answers


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"constants": {"larg": 1}}, "no constant larg"),
        ({"constants": {"large": -1}}, "large cannot be -1"),
        ({"entries": {"nothing": 1}}, "no map nothing"),
    ],
)
def test_a_wrong_setting_is_named(compiled, arguments, error):
    """A misspelt or impossible setting is an error that names it."""
    with pytest.raises(BpfError, match=error):
        Object(compiled, **arguments)
