"""From counts to samples, and from a record to a span."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from exporter.cuda import metrics
from exporter.cuda.activity import Activity, Counts, Errors, Launches, MemoryTotals, Waits
from exporter.cuda.functions import FUNCTIONS
from exporter.cuda.samples import function, held, samples
from exporter.cuda.spans import Exemplars, span
from exporter.ledger import Process
from exporter.model import Distribution, Exemplar, Metric, Span, Value
from exporter.node import Clock
from tests.unit.cuda.fakes import NAMES

API = {function.name: number for number, function in enumerate(FUNCTIONS, 1)}
LABELS = {"pid": "7", "comm": "python3"}
HOUR_NS = 3_600_000_000_000


def by_labels(
    activity: Counts, exemplars: dict[int, Exemplar] | None = None, ended: bool = False, replaced: bool = False
) -> dict[tuple[Metric, tuple[str, ...]], Value]:
    """Values by metric and the values of its own labels, in their order."""
    found = {}
    process = Process(7, LABELS, Activity({0: activity}), 12.5, ended, replaced)
    for sample in samples(process, NAMES, lambda ns: ns + HOUR_NS, lambda _: exemplars or {}):
        assert LABELS.items() <= sample.labels.items()
        assert sample.labels.keys() - LABELS.keys() <= set(sample.metric.labels)
        assert 12.5 == sample.start
        found[sample.metric, tuple(sample.labels.get(name, "") for name in sample.metric.labels)] = sample.value
    return found


def test_nothing_done_is_no_sample() -> None:
    """No series is made up for what did not happen."""
    assert {} == by_labels(Counts())


def test_launches() -> None:
    """Kernel and graph launches are added up over their variants, each layer for itself; the newest has its time."""
    activity = Counts(
        launches={
            API["cuLaunchKernel"]: Launches(10, 1_000_000_000),
            API["cuLaunchKernelEx_ptsz"]: Launches(5, 3_000_000_000),
            API["cuGraphLaunch"]: Launches(2, 2_000_000_000),
            API["cudaLaunchKernel"]: Launches(4, 0),
        }
    )
    found = by_labels(activity)
    assert {
        (metrics.LAUNCHES, ("driver",)): 15,
        (metrics.LAUNCHES, ("runtime",)): 4,
        (metrics.GRAPH_LAUNCHES, ("driver",)): 2,
        (metrics.LAST_LAUNCH, ()): 3603.0,
    } == {key: value for key, value in found.items() if key[0] is not metrics.CALLS}
    assert 5 == found[metrics.CALLS, ("driver", "cuLaunchKernelEx_ptsz")]
    assert 4 == len([key for key in found if key[0] is metrics.CALLS])


def test_an_unknown_number_of_launches() -> None:
    """No counter, but the time of the newest one: a process that launches is not one that stands still."""
    found = by_labels(Counts(launches={API["cuLaunchKernel"]: Launches(0, 1_000_000_000)}))
    assert {(metrics.LAST_LAUNCH, ()): 3601.0} == found


def test_errors() -> None:
    """Errors have number and name, with the time of the newest; a number without a name stays a number."""
    activity = Counts(errors={(API["cudaMalloc"], 2): Errors(3, 0), (API["cuMemFree_v2"], 4242): Errors(1, 5 * 10**9)})
    assert {
        (metrics.ERRORS, ("runtime", "cudaMalloc", "2", "cudaErrorMemoryAllocation")): 3,
        (metrics.LAST_ERROR, ("runtime", "cudaMalloc", "2", "cudaErrorMemoryAllocation")): 3600.0,
        (metrics.ERRORS, ("driver", "cuMemFree_v2", "4242", "")): 1,
        (metrics.LAST_ERROR, ("driver", "cuMemFree_v2", "4242", "")): 3605.0,
    } == by_labels(activity)


def test_memory() -> None:
    """Usage is what was allocated less what was freed in either way."""
    activity = Counts(memory={(0, 0): MemoryTotals(1000, 300, 200, 0, 2), (1, 4): MemoryTotals(0, 0, 0, 0, 3)})
    assert {
        (metrics.ALLOCATED, ("driver", "device")): 1000,
        (metrics.FREED, ("driver", "device", "")): 300,
        (metrics.FREED, ("driver", "device", "true")): 200,
        (metrics.USED, ("driver", "device")): 500,
        (metrics.UNMATCHED_FREES, ("driver", "device")): 2,
        (metrics.UNMATCHED_FREES, ("runtime", "pinned_host")): 3,
    } == by_labels(activity)


def test_usage_is_absent_where_a_part_is_untracked() -> None:
    """Of the kind of memory of which something is untracked; other kinds of the process have theirs."""
    activity = Counts(memory={(0, 0): MemoryTotals(1000, 300, 200, 100, 0), (0, 4): MemoryTotals(50, 0, 0, 0, 0)})
    found = by_labels(activity)
    assert 100 == found[metrics.UNTRACKED, ("driver", "device")]
    used = {labels: value for (metric, labels), value in found.items() if metric is metrics.USED}
    assert {("driver", "pinned_host"): 50} == used


def test_an_ended_process_uses_nothing() -> None:
    """The usage of an ended process is 0, also where a part was untracked, and that part is still shown."""
    found = by_labels(Counts(memory={(0, 0): MemoryTotals(1000, 300, 600, 100, 2)}), ended=True)
    assert {
        (metrics.ALLOCATED, ("driver", "device")): 1000,
        (metrics.FREED, ("driver", "device", "")): 300,
        (metrics.FREED, ("driver", "device", "true")): 600,
        (metrics.USED, ("driver", "device")): 0,
        (metrics.UNTRACKED, ("driver", "device")): 100,
        (metrics.UNMATCHED_FREES, ("driver", "device")): 2,
    } == found


def test_the_usage_of_a_replaced_program_is_unknown() -> None:
    """No usage is shown: memory of the replaced program is freed, and memory of the next one may count as its own."""
    found = by_labels(Counts(memory={(0, 0): MemoryTotals(1000, 300, 700, 0, 0)}), ended=True, replaced=True)
    assert {
        (metrics.ALLOCATED, ("driver", "device")): 1000,
        (metrics.FREED, ("driver", "device", "")): 300,
        (metrics.FREED, ("driver", "device", "true")): 700,
    } == found


def test_absurd_numbers_fit_the_wire() -> None:
    """A process that loads a library of its own can make any number up; 64 signed bits are never exceeded."""
    activity = Counts(copies={(1, 1): (1 << 64) - 1})
    assert {(metrics.COPIED, ("h2d", "unknown")): (1 << 63) - 1} == by_labels(activity)


def test_copies() -> None:
    """Bytes have direction and host memory; between devices there is no host memory."""
    activity = Counts(copies={(1, 3): 10, (3, 0): 20, (0, 1): 30})
    assert {
        (metrics.COPIED, ("h2d", "pinned")): 10,
        (metrics.COPIED, ("d2d", "")): 20,
        (metrics.COPIED, ("unknown", "unknown")): 30,
    } == by_labels(activity)


def test_waits() -> None:
    """A histogram in seconds from slots that double from 2^-20 s on, with its exemplars."""
    exemplar = Exemplar(2e-6, 1.0, "t", "s")
    activity = Counts(waits={API["cuStreamSynchronize"]: Waits(5_500, (3, 1, 0, 1))})
    value = by_labels(activity, {1: exemplar})[metrics.WAITED, ("driver", "cuStreamSynchronize")]
    bounds = (2.0**-20, 2.0**-19, 2.0**-18)
    assert Distribution(bounds, (3, 1, 0, 1), 5.5e-6, {1: exemplar}, shown=(0, 1, 2)) == value


@pytest.mark.parametrize(
    ("wait_ns", "bucket"),
    [
        (0, 0),
        (1, 0),
        (953, 0),
        (954, 1),
        (1907, 1),
        (1908, 2),
        (64_000_000_000, 26),
        (64_000_000_001, 27),
        (1 << 60, 37),
    ],
)
def test_an_exemplar_is_in_the_bucket_of_its_value(wait_ns: int, bucket: int) -> None:
    """Buckets are those of the kernel's histogram, bounds included."""
    exemplars = Exemplars()
    exemplars.add(7, 1, wait_ns, Span("x", "t", "s", 0, 5_000_000_000, {}, LABELS))
    assert {bucket: Exemplar(wait_ns / 1e9, 5.0, "t", "s")} == exemplars.of(7, 1)


def test_exemplars_are_bounded() -> None:
    """Exemplars of the functions that waited last are kept, and none of a process that ended."""
    exemplars = Exemplars(most=2)
    for pid in (1, 2, 3):
        exemplars.add(pid, 1, 1, Span("x", "t", "s", 0, 0, {}, LABELS))
    exemplars.forget({3})
    assert [0, 1, 0] == [len(exemplars.of(pid, 1)) for pid in (1, 2, 3)]


def record(api: str, **fields: int | bytes) -> SimpleNamespace:
    blank = {"start_ns": 1000, "end_ns": 3000, "bytes": 0, "address": 0, "context": 0, "tgid": 7, "tid": 8, "code": 0}
    blank |= {"memory": 0, "direction": 0, "host": 0, "api": API[api]}
    return SimpleNamespace(**blank | {"comm": b"worker\0\0"} | fields)


class FixedClock(Clock):
    def wall_ns(self, monotonic_ns: int) -> int:
        return monotonic_ns + HOUR_NS


def made(record: SimpleNamespace) -> Span:
    return span(record, function(record.api), NAMES, FixedClock(), LABELS)


def test_a_span_of_a_copy() -> None:
    """The span has the bytes, the direction and the host's memory; times are wall time, ids are random."""
    it = record("cuMemcpyHtoD_v2", bytes=5, direction=1, host=3, context=0xABC)
    first, second = made(it), made(it)
    assert {
        "gpu.cuda.api": "cuMemcpyHtoD_v2",
        "gpu.cuda.api_layer": "driver",
        "thread.id": 8,
        "thread.name": "worker",
        "gpu.cuda.context": "0xabc",
        "gpu.cuda.memory.copy.bytes": 5,
        "gpu.cuda.memory.copy.direction": "h2d",
        "gpu.cuda.memory.copy.host_memory": "pinned",
    } == first.attributes
    assert (1000 + HOUR_NS, 3000 + HOUR_NS) == (first.start_ns, first.end_ns)
    assert ("cuMemcpyHtoD_v2", LABELS, "") == (first.name, first.process, first.error)
    assert (32, 16) == (len(first.trace_id), len(first.span_id))
    assert first.trace_id != second.trace_id and first.span_id != second.span_id


def test_a_span_of_a_failed_allocation() -> None:
    """A failed call's span has the code and its name, and is an error; a thread's name may be anything."""
    failed = made(record("cudaMalloc", code=2, comm=b"\xff\n"))
    assert "cudaErrorMemoryAllocation" == failed.error == failed.attributes["error.type"]
    assert 2 == failed.attributes["gpu.cuda.error.code"]
    assert "\\xff\n" == failed.attributes["thread.name"]
    assert "4242" == made(record("cudaMalloc", code=4242)).error


def test_a_failed_allocations_span_leads_to_its_profile() -> None:
    """While profiles are on, the span of a call that found no memory of a GPU has the path; no other has."""

    def path(name: str, code: int, profiles: bool = True) -> object:
        of = span(record(name, code=code), function(API[name]), NAMES, FixedClock(), LABELS, profiles)
        return of.attributes.get("gpu.profile.path")

    assert "/flamegraph#profile=gpu_oom" == path("cuMemAlloc_v2", 2) == path("cuMemCreate", 2)
    assert {None} == {
        path("cuMemAlloc_v2", 2, profiles=False),
        path("cuMemAlloc_v2", 1),
        path("cuMemHostAlloc", 2),
        path("cuStreamSynchronize", 2),
    }


def test_gpus() -> None:
    """Counts of devices that are the same GPU are one series, those of an unknown one have no GPU."""
    first, second = {"gpu": "0", "gpu_uuid": "GPU-a"}, {"gpu": "1", "gpu_uuid": "GPU-b"}
    launched = {
        device: Counts(launches={API["cuLaunchKernel"]: Launches(calls, 0)})
        for device, calls in ((0, 3), (1, 20), (2, 100), (0xFFFF, 1000))
    }
    process = Process(7, LABELS, Activity(launched, gpus={0: first, 1: first, 2: second}), 12.5)
    found = [it for it in samples(process, NAMES, int, lambda _: {}) if it.metric is metrics.LAUNCHES]

    assert {"GPU-a": 23, "GPU-b": 100, "": 1000} == {it.labels.get("gpu_uuid", ""): it.value for it in found}


def test_exemplars_of_several_gpus() -> None:
    """Exemplars are kept by process: where it uses several GPUs they are left out, for they may be another's."""
    waited = {device: Counts(waits={API["cuStreamSynchronize"]: Waits(1, (1, 0))}) for device in (1, 2)}
    exemplar = Exemplar(1e-6, 1.0, "a" * 32, "b" * 16)
    process = Process(7, LABELS, Activity(waited, gpus={1: {"gpu": "0"}, 2: {"gpu": "1"}}), 12.5)
    values = [it.value for it in samples(process, NAMES, int, lambda _: {0: exemplar}) if it.metric is metrics.WAITED]

    assert [{}, {}] == [it.exemplars for it in values if isinstance(it, Distribution)]


def test_held() -> None:
    """Bytes in use on a GPU by the probes on the driver: without host memory and the runtime's own count."""
    memory = {
        (0, 0): MemoryTotals(100, 30, 0, 0, 0),
        (0, 2): MemoryTotals(5, 0, 0, 0, 0),
        (0, 4): MemoryTotals(900, 0, 0, 0, 0),
    }
    parts = {1: Counts(memory={**memory, (1, 0): MemoryTotals(100, 30, 0, 0, 0)}), 2: Counts(memory=memory)}
    gpu = {"gpu": "0"}

    assert 75 == held(Activity(parts, gpus={1: gpu, 2: {"gpu": "1"}}), gpu, NAMES)
    assert 0 == held(Activity(parts), gpu, NAMES)
