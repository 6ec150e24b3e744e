"""Probes that a site defines are compiled by bcc, attached like the shipped ones, and counted exactly."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bpf.custom_node import Caller, Observed, bcc_missing, kernel_headers, observe, put
from tests.support import PATIENCE, until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="custom probes", on="real software")]

LIBRARY = """
#include <unistd.h>
int take(int n) { return n * 2; }
int other(int n) { return n + 1; }
int slow(int micros) { usleep(micros); return 0; }
"""
CODE = """
#include <uapi/linux/ptrace.h>
struct key_t { u32 pid; u32 size; char comm[16]; };
BPF_HASH(calls, struct key_t, u64);
BPF_HASH(begun, u64, u64);
BPF_HISTOGRAM(slots, u64);
BPF_ARRAY(total, u64, 1);
BPF_PERCPU_ARRAY(cpus, u64, 1);

int on_take(struct pt_regs *ctx) {
    struct key_t key = {};
    int zero = 0;
    key.pid = bpf_get_current_pid_tgid() >> 32;
    key.size = PT_REGS_PARM1(ctx);
    bpf_get_current_comm(&key.comm, sizeof(key.comm));
    calls.increment(key);
    cpus.increment(zero);
    return 0;
}
int on_slow(struct pt_regs *ctx) {
    u64 id = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();
    begun.update(&id, &now);
    return 0;
}
int on_slow_end(struct pt_regs *ctx) {
    u64 id = bpf_get_current_pid_tgid(), *start = begun.lookup(&id), *sum;
    int zero = 0;
    if (!start)
        return 0;
    u64 ns = bpf_ktime_get_ns() - *start;
    slots.increment(bpf_log2l(ns));
    sum = total.lookup(&zero);
    if (sum)
        __sync_fetch_and_add(sum, ns);
    begun.delete(&id);
    return 0;
}
"""
MEANING = """
description: what a test counts
probes:
  - {uprobe: take, library: libsite.so, program: on_take}
  - {uprobe: slow, library: libsite.so, program: on_slow, paired: true}
  - {uretprobe: slow, library: libsite.so, program: on_slow_end}
metrics:
  - name: site.takes
    help: Calls of take().
    type: counter
    map: calls
    labels:
      - {field: pid, as: pid}
      - {name: size, field: size, as: enum, values: {1: one, 2: two}}
      - {name: thread, field: comm, as: string}
  - {name: site.takes_by_cpu, help: The same by processor and added up., type: counter, map: cpus}
  - name: site.slow.duration
    help: Time in slow().
    type: histogram
    unit: s
    scale: 1e-9
    map: slots
    buckets: log2
    count: 40
    sum: total
"""


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> str:
    if missing := bcc_missing():
        pytest.skip(f"no bcc: {missing}; apt-get install python3-bpfcc")
    return kernel_headers(tmp_path_factory.mktemp("headers"))


@pytest.fixture(scope="module")
def library(compile_library: Callable[[str, str], Path]) -> Path:
    return compile_library("libsite.so", LIBRARY)


@pytest.fixture(scope="module")
def observed(headers: str, library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    folder = tmp_path_factory.mktemp("probes")
    put(folder, "site", CODE, MEANING)
    with observe(folder, headers) as observed:
        assert [] == observed.problems()
        yield observed


def attached(observed: Observed, library: Path, symbols: int = 2) -> None:
    def all_attached() -> bool:
        found = observed.values("accel_exporter_probe_attached", library=str(library))
        return len(found) == symbols and all(it.value == 1 for it in found)

    until(all_attached, "attached")


def test_23_calls_are_23(observed: Observed, library: Path) -> None:
    """23 calls with one argument and 7 with another are 23 and 7, with the labels of the process."""
    with Caller(library) as caller:
        attached(observed, library)
        caller.call("take", 23, 1)
        caller.call("take", 7, 9)
        pid = str(caller.pid)
        until(lambda: observed.value("site_takes_total", pid=pid, size="one") == 23, "23 of size one")
        until(lambda: observed.value("site_takes_total", pid=pid, size="9") == 7, "7 of size 9")
        [sample] = observed.values("site_takes_total", pid=pid, size="one")
        assert ("python3", "python3") == (sample.labels["comm"], sample.labels["thread"])
        until(lambda: observed.value("site_takes_by_cpu_total") == 30, "30 by processor")


def test_return_probes_time_calls(observed: Observed, library: Path) -> None:
    """11 calls of 2 ms are 11 observations of 2 ms or more, in seconds."""
    with Caller(library) as caller:
        attached(observed, library)
        began = time.monotonic()
        caller.call("slow", 11, 2000)
        took = time.monotonic() - began

        def count() -> int:
            value = observed.value("site_slow_duration_seconds")
            return sum(value.counts) if value else 0

        until(lambda: count() == 11, "11 observations")
        until(lambda: observed.value("site_slow_duration_seconds").sum >= 0.022, "their sum")
        value = observed.value("site_slow_duration_seconds")
        assert value.sum < took
        assert 0 == sum(count for bound, count in zip(value.bounds, value.counts, strict=False) if bound < 0.002)


def test_what_probes_cost_is_exported(observed: Observed, library: Path) -> None:
    """Runs of each program, the time in them and the memory of the child are metrics."""
    with Caller(library) as caller:
        attached(observed, library)
        before = observed.value("accel_exporter_custom_runs_total", probe="site", program="on_take") or 0
        caller.call("take", 1000, 3)
        assert before + 1000 == observed.value("accel_exporter_custom_runs_total", probe="site", program="on_take")
        assert 0 < observed.value("accel_exporter_probe_run_seconds_total", probe="custom_site") < PATIENCE
        assert 0 < observed.value("accel_exporter_overhead_seconds_total", probe="custom_site") < 1
        assert 10 << 20 < observed.value("accel_exporter_custom_memory_resident_bytes", probe="site") < 1 << 30
        assert 1 == observed.value("accel_exporter_custom_up", probe="site")
