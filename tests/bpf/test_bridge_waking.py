"""Readers of ring buffers that programs wake seldom."""

from __future__ import annotations

import select
import struct
import time
from pathlib import Path

import pytest

from exporter.bpf.libbpf import Events, Object
from tests.support import until

pytestmark = pytest.mark.needs_bpf

PROBE = """
#include "probe.h"

struct record {
	__u64 n;
	__u64 pad[30];
};
EVENTS(records, struct record, 65536);
__u64 records_woken_ns = 0;

SEC("syscall")
int put(__u64 *n)
{
	struct record *record = reserve(records);

	if (!record)
		return 1;
	__builtin_memset(record, 0, sizeof(*record));
	record->n = *n;
	bpf_ringbuf_submit(record, wake_seldom(&records, bpf_ktime_get_ns(), &records_woken_ns));
	return 0;
}
"""
RECORDS = 23


@pytest.fixture(scope="module")
def compiled(compile_bpf) -> Path:
    return compile_bpf("waking", PROBE)


def put(loaded: Object, *numbers: int) -> None:
    for number in numbers:
        assert 0 == loaded.programs["put"].run(struct.pack("=Q", number))


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
        put(loaded, 1)
        assert [(ring, select.EPOLLIN)] == poller.poll(1)
        put(loaded, *range(40))
        assert [] == poller.poll(0.05)
        put(loaded, *range(30))
        assert [(ring, select.EPOLLIN)] == poller.poll(1)
