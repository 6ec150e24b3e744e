"""Faults as spans."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opentelemetry.sdk.resources import Resource

from exporter.kmsg.records import parse
from exporter.model import Labels, Span
from exporter.views import otlp
from exporter.xid import spans as module
from exporter.xid.decode import Decoder, xid
from exporter.xid.spans import A_SECOND, Spans, Telling, span
from tests.unit.xid.test_decode import BUS, record

GPU = {"gpu": "3", "gpu_uuid": "GPU-1", "pci_bus_id": BUS}


class Processes:
    """Process 7 lives; `hold` keeps whoever asks."""

    def __init__(self) -> None:
        self.hold = threading.Event()
        self.hold.set()

    def labels(self, pid: int) -> Labels:
        assert self.hold.wait(20)
        return {"pid": "7", "comm": "python3", "pod": "train-0"} if pid == 7 else {"pid": str(pid)}

    def forget(self, pid: int) -> None: ...


def telling(text: str, replayed: bool = False) -> Telling:
    found = Decoder().fault(record(text))
    assert found is not None
    return Telling(found, GPU, 10**18, "kmsg", text, "boot 42", replayed)


@contextmanager
def running(processes: Processes, give: Callable[[Span], None], dropped: Callable[[], None]) -> Iterator[Spans]:
    made = Spans(processes, give, dropped)
    made.start()
    try:
        yield made
    finally:
        made.close()


def await_(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def test_xid() -> None:
    """What, where, when and by whom, in one point of time; to its process and GPU as everywhere."""
    text = "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=pt_main, Ch 8"
    made = span(telling(text), Processes())

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
    """The other families are told with what they have."""
    made = [
        span(telling(text), Processes())
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
    """An Xid that needs no action is no error."""
    assert "" == span(telling("NVRM: Xid (PCI:0000:3b:00): 63, x"), Processes()).error


def test_replayed() -> None:
    """A replayed fault is marked, and its pid is not looked up: it may be another's by now."""
    made = span(telling("NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=old, x", replayed=True), Processes())

    assert {"pid": "7", "comm": "old", "gpu": "3", "gpu_uuid": "GPU-1"} == made.process
    assert made.attributes["gpu.fault.replayed"] is True


def test_dead_process() -> None:
    """Of a process that has ended, what the driver said remains."""
    made = span(telling("NVRM: Xid (PCI:0000:3b:00): 31, pid=8, name=gone, x"), Processes())

    assert {"pid": "8", "comm": "gone", "gpu": "3", "gpu_uuid": "GPU-1"} == made.process


def test_same_record_same_ids() -> None:
    """A record read again after a restart has the same ids; another record has others."""
    one, again, other = (
        span(Telling(xid(BUS, 79), GPU, 1, "kmsg", "", origin), Processes()) for origin in ("b 1", "b 1", "b 2")
    )

    assert (one.trace_id, one.span_id) == (again.trace_id, again.span_id)
    assert one.trace_id != other.trace_id and one.span_id != other.span_id
    assert (32, 16) == (len(one.trace_id), len(one.span_id))


def test_hostile_message() -> None:
    """A message of any length and any characters is a span that OTLP takes, printable and bounded."""
    head = b"3,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=9, name=\\x1b[31m\xe2\x80\xae\\xff, "
    said = parse(head + b"\\x0a\\x80" + b"x" * 100_000).text
    made = span(telling(said), Processes())
    [converted], malformed = otlp.spans([made], otlp.Resources(Resource({})))

    shown = str(made.attributes["log.record.original"])
    assert shown.isprintable() and len(shown) < 1200
    assert made.process["comm"].isprintable() and "31m" in made.process["comm"]
    assert (0, "gpu.xid") == (malformed, converted.name)


def test_a_process_that_cannot_be_looked_up() -> None:
    """While the look-up of a process hangs, faults go on being taken, up to a bound, and the rest is counted."""
    processes, given, dropped = Processes(), list[Span](), list[int]()
    processes.hold.clear()
    with running(processes, given.append, lambda: dropped.append(1)) as made:
        text = "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=x, y"
        began = time.monotonic()
        for _ in range(3000):
            made.add(telling(text))
        assert time.monotonic() - began < 5
        assert ([], True) == (given, bool(dropped))
        processes.hold.set()
        await_(lambda: len(given) + len(dropped) == 3000)


def test_rate(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Of one second's faults a bounded number become spans; those of the next second do again."""
    given, dropped = list[Span](), list[int]()
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    made = Spans(Processes(), given.append, lambda: dropped.append(1))
    for _ in range(2 * A_SECOND):
        made.add(telling("NVRM: Xid (PCI:0000:3b:00): 31, x"))
    assert A_SECOND == len(dropped)
    now[0] += 1
    made.add(telling("NVRM: Xid (PCI:0000:3b:00): 31, x"))
    assert A_SECOND == len(dropped)


def test_receiver_that_fails() -> None:
    """A span that cannot be given away costs itself and no other."""
    given = list[Span]()

    def give(span: Span) -> None:
        if not given:
            given.append(span)
            raise RuntimeError("no")
        given.append(span)

    with running(Processes(), give, lambda: None) as made:
        for _ in range(2):
            made.add(telling("NVRM: Xid (PCI:0000:3b:00): 31, x"))
        await_(lambda: len(given) == 2)
