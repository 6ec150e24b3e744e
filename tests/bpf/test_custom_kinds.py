"""Each kind of probe, map and buffer that a custom probe may have."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.bpf import usdt
from exporter.bpf.elf import Elf
from exporter.collectors import custom
from tests.bpf.custom_node import Caller, attached, bcc_missing, kernel_headers, observe, put
from tests.support import until

pytestmark = pytest.mark.needs_bpf

SPANS = """
#include <uapi/linux/ptrace.h>
struct event_t { u64 start; u64 end; u32 pid; int size; int error; char comm[16]; u64 address; };
BPF_HASH(begun, u64, u64);
BPF_HASH(sizes, u64, u64);
%s
int on_slow(struct pt_regs *ctx) {
    u64 id = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns(), size = PT_REGS_PARM1(ctx);
    begun.update(&id, &now);
    sizes.update(&id, &size);
    return 0;
}
int on_slow_end(struct pt_regs *ctx) {
    u64 id = bpf_get_current_pid_tgid(), *start = begun.lookup(&id), *size = sizes.lookup(&id);
    struct event_t event = {};
    if (!start || !size)
        return 0;
    event.start = *start;
    event.end = bpf_ktime_get_ns();
    event.pid = id >> 32;
    event.size = *size;
    event.error = PT_REGS_RC(ctx);
    event.address = 0xabc;
    bpf_get_current_comm(&event.comm, sizeof(event.comm));
    %s
    begun.delete(&id);
    return 0;
}
"""
BUFFERS = {
    "ring": ("BPF_RINGBUF_OUTPUT(events, 16);", "events.ringbuf_output(&event, sizeof(event), 0);"),
    "perf": ("BPF_PERF_OUTPUT(events);", "events.perf_submit(ctx, &event, sizeof(event));"),
}
SPANS_MEANING = """
probes:
  - {uprobe: slow, library: libsite.so, program: on_slow, paired: true}
  - {uretprobe: slow, library: libsite.so, program: on_slow_end}
spans:
  - buffer: events
    name: site slow
    start: start
    end: end
    pid: pid
    error: error
    slow: 0.5
    attributes:
      - {name: site.size, field: size}
      - {name: site.thread, field: comm, as: string}
      - {name: site.address, field: address, as: hex}
"""
LIBRARY = """
#include <unistd.h>
int slow(int micros) { usleep(micros); return micros == 7000 ? 5 : 0; }
"""


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> str:
    if missing := bcc_missing():
        pytest.skip(f"no bcc: {missing}; apt-get install python3-bpfcc")
    return kernel_headers(tmp_path_factory.mktemp("headers"))


@pytest.fixture(scope="module")
def library(compile_library: Callable[[str, str], Path]) -> Path:
    return compile_library("libsite.so", LIBRARY)


@pytest.mark.parametrize("buffer", BUFFERS)
def test_records_become_spans(buffer: str, headers: str, library: Path, tmp_path: Path) -> None:
    """23 records of a ring or perf buffer are 23 spans, with wall time, process, attributes and errors."""
    put(tmp_path, "site", SPANS % BUFFERS[buffer], SPANS_MEANING)
    with observe(tmp_path, headers) as observed, Caller(library) as caller:
        assert [] == observed.problems()
        attached(observed, library)
        began = time.time_ns()
        caller.call("slow", 21, 2000)
        caller.call("slow", 1, 7000)
        caller.call("slow", 1, 600_000)
        until(lambda: len(observed.spans) == 23, "23 spans")
        spans = sorted(observed.spans, key=lambda span: span.start_ns)  # each processor has a perf buffer of its own
        first, failed, last = spans[0], spans[21], spans[22]
        assert ("site slow", "") == (first.name, first.error)
        assert {"site.size": 2000, "site.thread": "python3", "site.address": "0xabc"} == first.attributes
        assert (str(caller.pid), "python3") == (first.process["pid"], first.process["comm"])
        assert began - 10**8 < first.start_ns < first.end_ns - 2 * 10**6 < time.time_ns()
        assert ("5", "") == (failed.error, last.error)
        assert [it.end_ns - it.start_ns >= 500_000_000 for it in spans] == [it.slow for it in spans]
        assert last.slow
        assert 23 == len({span.trace_id for span in observed.spans})
        lost = observed.values("accel_exporter_events_lost_total", stream="custom_site_events")
        assert [0] == [it.value for it in lost]


def test_spans_have_a_limit(headers: str, library: Path, tmp_path: Path) -> None:
    """Spans beyond the limit a second are dropped and counted."""
    put(tmp_path, "site", SPANS % BUFFERS["ring"], SPANS_MEANING)
    with observe(tmp_path, headers, **{custom.SPANS: 10}) as observed, Caller(library) as caller:
        attached(observed, library)
        began = time.monotonic()
        caller.call("slow", 200, 10)
        limited = "accel_exporter_custom_records_limited_total"
        until(lambda: len(observed.spans) + observed.value(limited) == 200, "all 200 accounted for")
        assert 10 <= len(observed.spans) <= 10 * (time.monotonic() - began + 2)


TRACEPOINT = """
struct key_t { u64 pid; u64 cgroup; };
BPF_HASH(sent, struct key_t, u64);
BPF_ARRAY(gone, u64, 1);
%s
    struct key_t key = {};
    int zero = 0;
    key.pid = bpf_get_current_pid_tgid() >> 32;
    key.cgroup = bpf_get_current_cgroup_id();
    sent.increment(key);
    gone.increment(zero, 3);
    return 0;
}
"""
TRACEPOINT_MEANING = """
probes: [{tracepoint: "signal:signal_generate" %s}]
metrics:
  - name: site.signals
    help: Signals sent.
    type: counter
    map: sent
    labels: [{field: pid, as: pid}, {field: cgroup, as: cgroup}]
lost: gone
"""


@pytest.mark.parametrize(
    ("head", "program"),
    [
        ("TRACEPOINT_PROBE(signal, signal_generate) {", ""),
        ("int on_signal(struct tracepoint__signal__signal_generate *args) {", ", program: on_signal"),
    ],
    ids=["by name", "by program"],
)
@pytest.mark.usefixtures("tracefs")
def test_tracepoints_are_attached(head: str, program: str, headers: str, tmp_path: Path) -> None:
    """23 signals of ours are 23, by either way to name the program; the cgroup is a path."""
    put(tmp_path, "site", TRACEPOINT % head, TRACEPOINT_MEANING % program)
    with observe(tmp_path, headers) as observed:
        assert [] == observed.problems()
        event = "signal:signal_generate"
        assert 1 == observed.value("accel_exporter_custom_tracepoint_attached", tracepoint=event)
        with subprocess.Popen(
            ["bash", "-c", "trap : USR1; for i in {1..23}; do kill -USR1 $$; done; read"], stdin=subprocess.PIPE
        ) as shell:
            pid = str(shell.pid)
            until(lambda: observed.value("site_signals_total", pid=pid) == 23, "23 signals")
            [sample] = observed.values("site_signals_total", pid=pid)
            assert sample.labels["cgroup"] == Path(f"/proc/{pid}/cgroup").read_text().split("::")[-1].strip()
            runs = observed.value("accel_exporter_custom_runs_total", probe="site")
            assert 23 <= runs
            assert 0 < observed.value("accel_exporter_probe_run_seconds_total", probe="custom_site") < 1
            shell.communicate(b"\n")
        until(lambda: observed.value("accel_exporter_custom_lost_total", probe="site") >= 3 * 23, "lost ones")


@pytest.mark.usefixtures("tracefs")
def test_a_tracepoint_that_is_not_there(headers: str, tmp_path: Path) -> None:
    """A missing tracepoint is a problem and its metric is 0; the rest of the probe runs."""
    code = TRACEPOINT % "int on_signal(void *args) {"
    meaning = TRACEPOINT_MEANING % ", program: on_signal"
    put(tmp_path, "site", code, meaning.replace("signal:signal_generate", "signal:no_such"))
    with observe(tmp_path, headers) as observed:
        [problem] = observed.problems()
        assert problem.startswith("site: tracepoint signal:no_such: ")
        assert 0 == observed.value("accel_exporter_custom_tracepoint_attached", tracepoint="signal:no_such")
        assert 1 == observed.value("accel_exporter_custom_up", probe="site")


MAPS = """
#include <uapi/linux/ptrace.h>
struct value_t { u64 calls; u64 bytes; };
struct bucket_t { u32 kind; u32 slot; };
BPF_PERCPU_HASH(sums, u32, struct value_t);
BPF_TABLE("lru_hash", u32, u32, last, 128);
BPF_HISTOGRAM(slots, struct bucket_t);
BPF_HASH(total, u32, u64);
int on_slow(struct pt_regs *ctx) {
    u32 kind = PT_REGS_PARM1(ctx) %% 2, size = PT_REGS_PARM1(ctx);
    struct value_t zero = {}, *value = sums.lookup_or_try_init(&kind, &zero);
    struct bucket_t bucket = {.kind = kind, .slot = size / 10};
    u64 none = 0, *sum;
    if (value) {
        value->calls += 1;
        value->bytes += size;
    }
    last.update(&kind, &size);
    slots.increment(bucket);
    sum = total.lookup_or_try_init(&kind, &none);
    if (sum)
        __sync_fetch_and_add(sum, size);
    return 0;
}
""".replace("%%", "%")
MAPS_MEANING = """
probes: [{uprobe: slow, library: libsite.so, program: on_slow}]
metrics:
  - name: site.calls
    help: Calls.
    type: counter
    map: sums
    value: calls
    labels: &kind [{name: kind, as: enum, values: {0: even, 1: odd}}]
  - {name: site.size, help: Sizes., type: counter, unit: By, scale: 1024, map: sums, value: bytes, labels: *kind}
  - {name: site.last, help: The last one., type: gauge, map: last, labels: *kind}
  - name: site.sizes
    help: Sizes.
    type: histogram
    map: slots
    slot: slot
    buckets: linear
    width: 10
    count: 3
    sum: total
    labels: [{name: kind, field: kind}]
"""


def test_maps_and_histograms(headers: str, library: Path, tmp_path: Path) -> None:
    """Values of processors are added up, structs read by field, linear slots are buckets, the last one is open."""
    put(tmp_path, "site", MAPS, MAPS_MEANING)
    with observe(tmp_path, headers) as observed, Caller(library) as caller:
        assert [] == observed.problems()
        attached(observed, library)
        for _ in range(4):
            for size, calls in ((4, 1), (12, 2), (13, 3), (29, 1), (100, 2)):
                caller.call("slow", calls, size)
        until(lambda: observed.value("site_calls_total", kind="even") == 20, "20 even")
        until(lambda: observed.value("site_calls_total", kind="odd") == 16, "16 odd")
        until(lambda: observed.value("site_sizes", kind="0").sum == 4.0 * 228, "all read")
        assert 4 * (4 + 24 + 200) * 1024 == observed.value("site_size_bytes_total", kind="even")
        assert (100, 29) == (observed.value("site_last", kind="even"), observed.value("site_last", kind="odd"))
        value = observed.value("site_sizes", kind="0")
        assert ((10.0, 20.0, 30.0), (4, 8, 0, 8), 4.0 * 228) == (value.bounds, value.counts, value.sum)
        assert (0, 12, 4, 0) == observed.value("site_sizes", kind="1").counts


def test_without_multi_uprobe_links(
    headers: str, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With uprobes as perf events, as before Linux 6.6, entry and return probes count the same."""
    monkeypatch.setattr("exporter.bpf.multi.supported", lambda: False)
    put(tmp_path, "site", SPANS % BUFFERS["ring"], SPANS_MEANING)
    with observe(tmp_path, headers) as observed, Caller(library) as caller:
        attached(observed, library)
        assert not any(program.multi for program in observed.collector.probes[0].attacher.programs.programs.values())
        caller.call("slow", 23, 100)
        until(lambda: len(observed.spans) == 23, "23 spans")


def test_rows_of_ended_processes_go(
    headers: str, tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a process that ended are deleted after a while, so that the map does not fill up with them."""
    code = """
BPF_HASH(calls, u32, u64);
int on_slow(void *ctx) { u32 pid = bpf_get_current_pid_tgid() >> 32; calls.increment(pid); return 0; }
"""
    meaning = """
probes: [{uprobe: slow, library: libsite.so, program: on_slow}]
metrics: [{name: site.calls, help: Calls., type: counter, map: calls, labels: [{as: pid}]}]
"""
    put(tmp_path, "site", code, meaning)
    monkeypatch.setattr("exporter.custom.child.RETENTION_SECONDS", 5.0)
    with observe(tmp_path, headers) as observed, Caller(library) as stays:
        attached(observed, library)
        stays.call("slow", 5, 10)
        with Caller(library) as goes:
            goes.call("slow", 7, 10)
            pid = str(goes.pid)
            until(lambda: observed.value("site_calls_total", pid=pid) == 7, "counted")
        time.sleep(0.5)
        assert 7 == observed.value("site_calls_total", pid=pid)
        until(lambda: observed.value("site_calls_total", pid=pid) is None, "gone")
        assert 5 == observed.value("site_calls_total", pid=str(stays.pid))


USDT = """
struct key_t { u64 pid; u64 generation; };
BPF_HASH(starts, struct key_t, u64);
BPF_HASH(collected, u32, u64);
int on_start(void *ctx) {
    struct key_t key = {.pid = bpf_get_current_pid_tgid() >> 32};
    if (!usdt_arg(ctx, 1, &key.generation))
        starts.increment(key);
    return 0;
}
int on_done(void *ctx) {
    u32 pid = bpf_get_current_pid_tgid() >> 32;
    u64 count;
    if (!usdt_arg(ctx, 1, &count))
        collected.increment(pid, count);
    return 0;
}
"""
USDT_MEANING = """
probes:
  - {usdt: "python:gc__start", library: "python3.*", program: on_start}
  - {usdt: "python:gc__done", library: "python3.*", program: on_done}
metrics:
  - name: site.gc.runs
    help: Garbage collections.
    type: counter
    map: starts
    labels: [{field: pid, as: pid}, {field: generation}]
  - {name: site.gc.collected, help: Objects collected., type: counter, map: collected, labels: [{as: pid}]}
"""
COLLECT = """
import gc, sys
gc.disable()
print("ready", flush=True)
sys.stdin.readline()
for _ in range(23):
    gc.collect(1)
for _ in range(7):
    gc.collect(0)
cycles = [[] for _ in range(1000)]
for cycle in cycles:
    cycle.append(cycle)
del cycles, cycle
print(gc.collect(), flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("links", ["multi", "perf"])
def test_usdt(links: str, headers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's Python reports 23 and 7 collections with their generation, and what it collected, on request only.

    Its probes have semaphores: unless those are raised nothing happens; arguments are in memory and in a register.
    """
    python = Path("/usr/bin/python3").resolve()
    with Elf.open(python) as elf:
        if not usdt.find(elf, {"python:gc__start"}):
            pytest.skip("this Python was built without USDT probes")
    if links == "perf":
        monkeypatch.setattr("exporter.bpf.multi.supported", lambda: False)
    put(tmp_path, "site", USDT, USDT_MEANING)
    with subprocess.Popen([python, "-c", COLLECT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        process.stdout.readline()
        with observe(tmp_path, headers) as observed:
            assert [] == observed.problems()
            attached(observed, python, 2)
            process.stdin.write("go\n")
            process.stdin.flush()
            count, pid = int(process.stdout.readline()), str(process.pid)
            until(lambda: observed.value("site_gc_runs_total", pid=pid, generation="2") == 1, "one of all")
            assert 23 == observed.value("site_gc_runs_total", pid=pid, generation="1")
            assert 7 == observed.value("site_gc_runs_total", pid=pid, generation="0")
            assert count >= 1000
            until(lambda: (observed.value("site_gc_collected_total", pid=pid) or 0) >= count, "its end, too")
        process.communicate("end\n")
