"""The collector from end to end on a FIFO and made-up events of NVML."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.collectors import xid as module
from exporter.collectors.xid import METRICS, Xid, create
from exporter.faults.xid import duplicates
from exporter.kmsg.kernel_log import KmsgSettings
from exporter.model import Sample, Span, Unavailable
from exporter.nvml.gpus import Gpus
from exporter.nvml.snapshot import Event, Gpu, GpuIdentity, GpuSnapshot
from exporter.views.prometheus import name
from tests.nodes import make_node
from tests.support import PATIENCE, until
from tests.unit.cuda.fakes import FakeProcesses

UUID = "GPU-f1648d72-c7c8-9814-2832-7a062b009188"
BUS = "00000000:3B:00.0"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=python3, GPU has fallen off the bus."
IN_79 = {"xid": "79", "action": "RESTART_BM", "category": "faulty_gpu"}


class Bench:
    """A collector on a node of its own, its spans, and the kernel log that the collector reads."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "kmsg"
        os.mkfifo(self.path)
        self.gpus, self.spans, self._sequence = Gpus(), list[Span](), 0
        self.collector: Xid | None = None

    def start(self, path: Path | None = None, from_processes: bool = False) -> Xid:
        kmsg = KmsgSettings(str(path or self.path), from_processes)
        node = make_node({}, FakeProcesses(), None, self.spans.append, kmsg, gpus=self.gpus)
        self.collector = create(node)
        self.collector.start()
        return self.collector

    def ready(self) -> Xid:
        collector = self.start()
        self.catch_up()
        return collector

    def catch_up(self) -> None:
        """Waits until all that the log holds now is read."""
        assert self.collector
        reader = self.collector.node.kernel_log.reader
        assert reader and reader.caught_up.wait(20)

    def log_line(self, text: str, priority: int = 3, seconds: float = 1.0) -> None:
        self._sequence += 1
        with self.path.open("wb") as log:
            log.write(f"{priority},{self._sequence},{round(seconds * 1e6)},-;{text}\n".encode())

    def nvml(self, *gpus: Gpu, state: str = "running") -> None:
        self.gpus.serve(lambda: GpuSnapshot(state, gpus=gpus), lambda seconds: True)

    def samples(self, series: str) -> list[Sample]:
        assert self.collector is not None
        return [sample for sample in self.collector.collect() if name(sample.metric) == series]

    def value(self, series: str, **labels: str) -> object:
        found = [it.value for it in self.samples(series) if labels.items() <= it.labels.items()]
        return found[0] if len(found) == 1 else found or None


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    if made.collector is not None:
        made.collector.close()


def gpu(uuid: str = UUID, index: int = 3, bus: str = BUS) -> Gpu:
    return Gpu(GpuIdentity(uuid, index, "NVIDIA H100", bus))


def test_fixed_names() -> None:
    """Names that rules and dashboards rely on."""
    declared = {name(metric): set(metric.labels) for metric in METRICS}
    for series in ("gpu_xid_errors_total", "gpu_xid_last_timestamp_seconds"):
        assert {"gpu", "gpu_uuid", "xid", "action", "category"} <= declared[series]


def test_line(bench: Bench) -> None:
    """A line of the log gives a count and a time of the GPU, and a span with the process."""
    bench.nvml(gpu())
    bench.ready()
    before = time.time()
    bench.log_line(XID)
    until(lambda: bench.value("gpu_xid_errors_total") == 1)

    [sample] = bench.samples("gpu_xid_errors_total")
    assert {"gpu": "3", "gpu_uuid": UUID, "pci_bus_id": BUS, **IN_79} == sample.labels
    last = bench.value("gpu_xid_last_timestamp_seconds")
    assert isinstance(last, float) and before <= last <= time.time()
    until(lambda: bool(bench.spans))
    assert {"pid": "7", "comm": "job-7", "gpu": "3", "gpu_uuid": UUID} == bench.spans[0].process


def test_names_are_waited_for(bench: Bench) -> None:
    """Series wait while NVML starts, so that labels do not change; after a limit series appear without NVML."""
    bench.nvml(state="starting")
    collector = bench.ready()
    bench.log_line(XID)
    until(lambda: bool(collector._counts._counts))
    assert [] == bench.samples("gpu_xid_errors_total")
    bench.nvml(gpu())
    assert 1 == bench.value("gpu_xid_errors_total", gpu_uuid=UUID)
    bench.nvml(state="starting")
    collector._named_by = time.monotonic()
    assert 1 == bench.value("gpu_xid_errors_total")


def test_replay(bench: Bench) -> None:
    """Records from before the start have their own time and a marked span, and are in no counter."""
    writer = os.open(bench.path, os.O_RDWR)
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    bench.log_line(XID, seconds=max(0.0, now - 100))
    bench.ready()
    until(lambda: bench.value("gpu_xid_replayed") == 1)
    os.close(writer)

    assert 0 == bench.value("gpu_xid_errors_total") == bench.value("gpu_xid_bursts_total")
    last = bench.value("gpu_xid_last_timestamp_seconds")
    assert isinstance(last, float) and abs(time.time() - min(100.0, now) - last) < 5
    until(lambda: bool(bench.spans))
    assert bench.spans[0].attributes["gpu.fault.replayed"] is True


def test_both_sources(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of both log and NVML counts once; a fault of NVML alone counts too, for its GPU."""
    monkeypatch.setattr(duplicates, "SAME_WITHIN", PATIENCE)
    bench.nvml(gpu(), gpu("GPU-2", 4, "00000000:5E:00.0"))
    bench.ready()
    bench.gpus.publish(Event(UUID, time.time(), "xid", 79))
    bench.log_line(XID)
    until(lambda: bench.value("gpu_xid_errors_total", xid="79") == 1)
    bench.gpus.publish(Event("GPU-2", time.time() - PATIENCE, "xid", 48))
    bench.gpus.publish(Event("GPU-2", time.time() - PATIENCE, "ecc_double_bit", 0))
    until(lambda: bench.value("gpu_xid_errors_total", xid="48") == 1)

    assert [("3", "79", 1), ("4", "48", 1)] == sorted(
        (it.labels["gpu"], it.labels["xid"], it.value) for it in bench.samples("gpu_xid_errors_total")
    )
    until(lambda: len(bench.spans) == 2)
    assert {"kmsg", "nvml"} == {str(it.attributes["gpu.fault.source"]) for it in bench.spans}


def test_the_driver_names_the_gpu(bench: Bench) -> None:
    """Without NVML the UUID is that of the driver's line before the Xid."""
    bench.ready()
    bench.log_line(f"NVRM: GPU at PCI:0000:3b:00: {UUID}")
    bench.log_line(XID)
    until(lambda: bench.value("gpu_xid_errors_total") == 1)

    assert [{"gpu_uuid": UUID, "pci_bus_id": BUS, **IN_79}] == [
        it.labels for it in bench.samples("gpu_xid_errors_total")
    ]


@pytest.mark.parametrize(("accepted", "counted"), [(False, None), (True, 1)])
def test_lines_of_processes(bench: Bench, accepted: bool, counted: int | None) -> None:
    """Lines that a process wrote into the log count only on request."""
    bench.start(from_processes=accepted)
    bench.catch_up()
    bench.log_line(XID, priority=11)
    bench.log_line("NVRM: Xid (PCI:0000:3b:00): 13, x")
    until(lambda: bench.value("gpu_xid_errors_total", xid="13") == 1)

    assert counted == bench.value("gpu_xid_errors_total", xid="79")


def test_one_log_line_for_a_burst(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """The exporter's own log has one line for a burst, with the action."""
    caplog.set_level("INFO", module.__name__)
    bench.ready()
    for _ in range(5):
        bench.log_line(XID)
    until(lambda: bench.value("gpu_xid_errors_total") == 5)

    expected = f"Xid 79: the GPU does not answer on the PCIe bus any more, on {BUS}; to do: RESTART_BM"
    assert [expected] == caplog.messages


def test_neither_source(tmp_path: Path) -> None:
    """Without log and without NVML the collector is unavailable, with a remedy."""
    bench = Bench(tmp_path)
    with pytest.raises(Unavailable) as raised:
        bench.start(tmp_path / "nowhere")
    assert (f"there is no {tmp_path}/nowhere", True) == (raised.value.reason, bool(raised.value.remedy))


def test_nvml_alone(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the log NVML's events count; the missing log is a metric and a problem."""
    monkeypatch.setattr(duplicates, "SAME_WITHIN", 0.1)
    bench.nvml(gpu())
    collector = bench.start(tmp_path / "nowhere")
    bench.gpus.publish(Event(UUID, time.time(), "xid", 79))
    until(lambda: bench.value("gpu_xid_errors_total") == 1)

    assert (0, 1) == tuple(bench.value("accel_exporter_xid_source", source=it) for it in ("kmsg", "nvml"))
    [problem] = collector.problems()
    assert problem.startswith(f"there is no {tmp_path}/nowhere; ")


def test_log_alone(bench: Bench) -> None:
    """Without NVML the log is read; the missing NVML is a metric."""
    collector = bench.ready()

    assert (1, 0) == tuple(bench.value("accel_exporter_xid_source", source=it) for it in ("kmsg", "nvml"))
    assert [] == list(collector.problems())


def test_lost_lines(bench: Bench) -> None:
    """A line that is no record counts as lost."""
    bench.ready()
    bench.log_line("NVRM: " + "x" * 100_000)
    until(lambda: bench.value("accel_exporter_events_lost_total", stream="kmsg") == 1)


def test_close(bench: Bench) -> None:
    """A closed collector has no listener and no thread."""
    collector = bench.ready()
    bench.collector = None
    collector.close()

    bench.gpus.publish(Event(UUID, time.time() - 60, "xid", 79))
    assert [] == [sample for sample in collector.collect() if sample.metric.name.startswith("gpu.")]
    until(lambda: not {thread.name for thread in threading.enumerate()} & {"kmsg", "xid spans"}, "its threads end")


def test_faults_of_the_node(bench: Bench) -> None:
    """Xids and GPUs lost without an Xid are faults of the node too, by the category of the code."""
    bench.ready()
    bench.log_line("NVRM: Xid (PCI:0000:3b:00): 119, pid=1, name=x, Timeout waiting for RPC")
    bench.log_line("NVRM: GPU 0000:5e:00.0: GPU has fallen off the bus.")
    assert bench.collector is not None
    faults = bench.collector.node.faults
    until(lambda: len(list(faults.samples())) > 6)
    found = {(it.labels["category"], it.labels["component"], it.labels["signal"]) for it in list(faults.samples())[:-1]}

    assert {
        ("gpu_system_processor", "00000000:3B:00.0", "xid_119"),
        ("faulty_gpu", "00000000:5E:00.0", "bus_loss"),
    } == found
