"""Spans of faults."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opentelemetry.sdk.resources import Resource

from exporter.faults.xid import spans as module
from exporter.faults.xid.decode import FaultDecoder, xid
from exporter.faults.xid.spans import MOST_PER_SECOND, FaultSpans, Occurrence, span
from exporter.kmsg.records import parse
from exporter.model import Labels, Span
from exporter.views import otlp
from tests.support import until
from tests.unit.faults.xid.test_decode import BUS, record

GPU = {"gpu": "3", "gpu_uuid": "GPU-1", "pci_bus_id": BUS}


class Processes:
    """Processes of which 7 lives; `hold` blocks `labels`."""

    def __init__(self) -> None:
        self.hold = threading.Event()
        self.hold.set()

    def labels(self, pid: int) -> Labels:
        assert self.hold.wait(20)
        return {"pid": "7", "comm": "python3", "pod": "train-0"} if pid == 7 else {"pid": str(pid)}

    def forget(self, pid: int) -> None: ...


def report(text: str, replayed: bool = False) -> Occurrence:
    found = FaultDecoder().report(record(text))
    assert found is not None
    return Occurrence(found, GPU, 10**18, "kmsg", text, "boot 42", replayed)


@contextmanager
def running(processes: Processes, give: Callable[[Span], None], dropped: Callable[[], None]) -> Iterator[FaultSpans]:
    made = FaultSpans(processes, give, dropped)
    made.start()
    try:
        yield made
    finally:
        made.close()


def test_xid() -> None:
    """A span without duration has fault, GPU and process in its attributes."""
    text = "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=pt_main, Ch 8"
    made = span(report(text), Processes())

    assert ("gpu.xid", 10**18, 10**18) == (made.name, made.start_ns, made.end_ns)
    assert {"pid": "7", "comm": "python3", "pod": "train-0", "gpu": "3", "gpu_uuid": "GPU-1"} == made.process
    assert {
        "gpu.xid.code": 31,
        "gpu.xid.action": "RESTART_APP",
        "gpu.xid.category": "software_bug",
        "gpu.fault.text": "an access to GPU memory that is not mapped",
        "gpu.fault.source": "kmsg",
        "gpu.pci_bus_id": BUS,
        "log.record.original": text,
    } == made.attributes
    assert "Xid 31: an access to GPU memory that is not mapped" == made.error


def test_nvlink_verdict_sxid_and_loss() -> None:
    """Spans of the other families have the attributes of the line."""
    made = [
        span(report(text), Processes())
        for text in (
            "NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)",
            "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)",
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Fatal, Link 32 x",
            "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
        )
    ]

    link = {"gpu.xid.unit": "NETIR_LINK_DOWN", "gpu.xid.link": 8, "gpu.xid.reason": 4, "gpu.xid.severity": "fatal"}
    verdict = {"gpu.xid.recovery": 2, "gpu.xid.action": "RESTART_BM"}
    switch = {"gpu.sxid.code": 12028, "gpu.sxid.severity": "fatal", "gpu.sxid.nvswitch": "3", "gpu.sxid.link": 32}
    for expected, it in zip((link, verdict, switch, {}), made, strict=True):
        assert expected == {name: it.attributes[name] for name in expected}
    assert ["gpu.xid", "gpu.xid", "gpu.sxid", "gpu.bus_loss"] == [it.name for it in made]
    assert ["", "SXid 12028: NVSwitch 3 reports a fatal error", "the GPU has left the bus"] == [
        it.error for it in made[1:]
    ]


def test_harmless() -> None:
    """The span of an Xid that needs no action has no error."""
    assert "" == span(report("NVRM: Xid (PCI:0000:3b:00): 63, x"), Processes()).error


def test_replayed() -> None:
    """A replayed fault is marked, and its pid is not resolved: another process may have the pid by now."""
    made = span(report("NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=old, x", replayed=True), Processes())

    assert {"pid": "7", "comm": "old", "gpu": "3", "gpu_uuid": "GPU-1"} == made.process
    assert made.attributes["gpu.fault.replayed"] is True


def test_dead_process() -> None:
    """A process that has ended has the driver's pid and name."""
    made = span(report("NVRM: Xid (PCI:0000:3b:00): 31, pid=8, name=gone, x"), Processes())

    assert {"pid": "8", "comm": "gone", "gpu": "3", "gpu_uuid": "GPU-1"} == made.process


def test_same_record_same_ids() -> None:
    """A record read again after a restart gives the same ids; another record gives other ids."""
    one, again, other = (
        span(Occurrence(xid(BUS, 79), GPU, 1, "kmsg", "", origin), Processes()) for origin in ("b 1", "b 1", "b 2")
    )

    assert (one.trace_id, one.span_id) == (again.trace_id, again.span_id)
    assert one.trace_id != other.trace_id and one.span_id != other.span_id
    assert (32, 16) == (len(one.trace_id), len(one.span_id))


def test_hostile_message() -> None:
    """A message of any length and characters gives a span that OTLP accepts, printable and bounded."""
    head = b"3,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=9, name=\\x1b[31m\xe2\x80\xae\\xff, "
    message = parse(head + b"\\x0a\\x80" + b"x" * 100_000).text
    made = span(report(message), Processes())
    [converted], malformed = otlp.spans([made], otlp.Resources(Resource({})))

    shown = str(made.attributes["log.record.original"])
    assert shown.isprintable() and len(shown) < 1200
    assert made.process["comm"].isprintable() and "31m" in made.process["comm"]
    assert (0, "gpu.xid") == (malformed, converted.name)


def test_a_process_that_cannot_be_looked_up() -> None:
    """While the look-up of a process hangs, faults are queued up to a bound, and dropped ones are counted."""
    processes, given, dropped = Processes(), list[Span](), list[int]()
    processes.hold.clear()
    with running(processes, given.append, lambda: dropped.append(1)) as made:
        text = "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=x, y"
        for _ in range(3000):
            made.add(report(text))
        assert ([], True) == (given, bool(dropped))
        processes.hold.set()
        until(lambda: len(given) + len(dropped) == 3000)


def test_rate(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """The number of spans in a second is bounded; faults of the next second become spans again."""
    given, dropped = list[Span](), list[int]()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    made = FaultSpans(Processes(), given.append, lambda: dropped.append(1))
    for _ in range(2 * MOST_PER_SECOND):
        made.add(report("NVRM: Xid (PCI:0000:3b:00): 31, x"))
    assert MOST_PER_SECOND == len(dropped)
    now[0] += 1
    made.add(report("NVRM: Xid (PCI:0000:3b:00): 31, x"))
    assert MOST_PER_SECOND == len(dropped)


def test_receiver_that_fails() -> None:
    """A receiver that fails loses one span and no other."""
    given = list[Span]()

    def give(span: Span) -> None:
        if not given:
            given.append(span)
            raise RuntimeError("no")
        given.append(span)

    with running(Processes(), give, lambda: None) as made:
        for _ in range(2):
            made.add(report("NVRM: Xid (PCI:0000:3b:00): 31, x"))
        until(lambda: len(given) == 2)
