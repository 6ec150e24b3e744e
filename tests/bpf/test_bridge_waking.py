"""Readers of ring buffers that programs wake seldom."""

from __future__ import annotations

import select
import struct
import time
from pathlib import Path

import pytest

from exporter.bpf.libbpf import Events, Object
from tests.support import PATIENCE, until

pytestmark = pytest.mark.needs_bpf

PROBE = """
#include "probe.h"

struct record {
	__u64 n;
	__u64 pad[30];
};
struct given {
	__u64 n;
	__u64 now; /* 0: what it is */
};
EVENTS(records, struct record, 65536);
__u64 records_woken_ns = 0;

SEC("syscall")
int put(struct given *given)
{
	__u64 now = given->now ?: bpf_ktime_get_ns();
	struct record *record = reserve(records);

	if (!record)
		return 1;
	__builtin_memset(record, 0, sizeof(*record));
	record->n = given->n;
	bpf_ringbuf_submit(record, wake_seldom(&records, now, &records_woken_ns));
	return 0;
}
"""
RECORDS = 23
NOW = 10**9


@pytest.fixture(scope="module")
def compiled(compile_bpf) -> Path:
    return compile_bpf("waking", PROBE)


def put(loaded: Object, *numbers: int, now: int = 0) -> None:
    for number in numbers:
        assert 0 == loaded.programs["put"].run(struct.pack("=QQ", number, now))


def test_every_record_is_read_though_few_are_announced(compiled: Path) -> None:
    """Records come in any pace, the last of them within the time in which nobody is woken."""
    received: list[int] = []
    with Object(compiled) as loaded, Events() as events:
        events.add(loaded.maps["records"], lambda record: received.append(record.n))
        events.start("records", look=0.01)
        for number in range(RECORDS):
            put(loaded, number)
            time.sleep(number % 5 * 0.01)
        time.sleep(0.6)  # nobody looks any more
        put(loaded, RECORDS)
        put(loaded, RECORDS + 1)
        until(lambda: len(received) == RECORDS + 2, "all are read")
    assert list(range(RECORDS + 2)) == received


def test_a_reader_is_woken_once_and_where_much_waits_for_it(compiled: Path) -> None:
    """Records that follow soon do not wake it, until they fill a quarter of the buffer: 64 of 256 bytes."""
    with Object(compiled) as loaded, select.epoll() as poller:
        ring = loaded.maps["records"].fd
        poller.register(ring, select.EPOLLIN | select.EPOLLET)
        put(loaded, 1, now=NOW)
        assert [(ring, select.EPOLLIN)] == poller.poll(PATIENCE)
        put(loaded, *range(40), now=NOW + 1)
        assert [] == poller.poll(0.05)
        put(loaded, *range(30), now=NOW + 2)
        assert [(ring, select.EPOLLIN)] == poller.poll(PATIENCE)
