"""The real process on a kernel log of ours: Xids on /metrics, over a restart, beside NVML, and as spans."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.program.process import Exporter
from tests.standins import nvml
from tests.standins.nvml import UUID, Scenario
from tests.standins.otlp_sink import HttpSink
from tests.support import PATIENCE

pytestmark = pytest.mark.evidence(feature="Xids, SXids, lost GPUs", on="stand-in")

ALONE = ("--collector.disable-defaults", "--collector.xid")
LOST = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
LABELS = 'action="RESTART_BM",category="faulty_gpu",pci_bus_id="00000000:3B:00.0",xid="79"'
COUNT, LAST = f"gpu_xid_errors_total{{{LABELS}}}", f"gpu_xid_last_timestamp_seconds{{{LABELS}}}"
REPLAYED = f"gpu_xid_replayed{{{LABELS}}}"


class Log:
    """A file of kernel log lines, which the exporter follows as it does /dev/kmsg."""

    def __init__(self, path: Path) -> None:
        self.path, self._lines = path, 0
        path.touch()

    def add(self, *texts: str, ago: float = 0.0) -> None:
        """Adds a record for each text, with the time so many seconds ago."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000 - round(ago * 1e6)
        with self.path.open("a") as file:
            for text in texts:
                self._lines += 1
                file.write(f"3,{self._lines},{now},-;{text}\n SUBSYSTEM=pci\n")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "kmsg")


@pytest.fixture
def run(tmp_path: Path, log: Log) -> Iterator[Callable[..., Exporter]]:
    started: list[Exporter] = []

    def start(*arguments: str, **environment: str) -> Exporter:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        given = (*ALONE, f"--kmsg.path={log.path}", *arguments)
        started.append(Exporter(folder, *given, **environment).await_ready())
        return started[-1]

    yield start
    for exporter in started:
        if exporter.process.poll() is None:
            exporter.process.kill()
            exporter.process.wait(PATIENCE)


def xids(exporter: Exporter) -> dict[str, float]:
    """The counters by their labels."""
    return exporter.family("gpu_xid_errors_total")


def test_live(run: Callable[..., Exporter], log: Log) -> None:
    """23 Xids of one kind and others among a thousand other lines are 23 and the others, with what to do."""
    exporter = run()
    for number in range(23):
        log.add(*(f"audit: line {number}.{other}" for other in range(50)), LOST)
    log.add(
        "NVRM: Xid (PCI:0000:5e:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x00082226 0x00000001 0x0)",
        "NVRM: Xid (PCI:0000:5e:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        "NVRM: GPU 0000:5e:00.0: GPU has fallen off the bus.",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 30 sourcetrack timeout error",
    )
    before = time.time()
    exporter.await_(lambda: exporter.value(COUNT) == 23 and "gpu_sxid_errors_total{" in exporter.get("/metrics")[1])

    page = exporter.get("/metrics")[1]
    for series, value in {
        'gpu_xid_errors_total{action="IGNORE",category="faulty_gpu",pci_bus_id="00000000:5E:00.0",'
        'unit="NETIR_BER_EVENT",xid="149"}': 1,
        'gpu_xid_errors_total{action="RESET_GPU",category="information",pci_bus_id="00000000:5E:00.0",xid="154"}': 1,
        'gpu_xid_recovery_action{pci_bus_id="00000000:5E:00.0"}': 1,
        'gpu_bus_losses_total{category="faulty_gpu",pci_bus_id="00000000:5E:00.0"}': 1,
        'gpu_sxid_errors_total{category="network_switch_cable",nvswitch="0",pci_bus_id="00000000:C1:00.0",'
        'severity="fatal",sxid="24007"}': 1,
        f"gpu_xid_bursts_total{{{LABELS}}}": 1,
        'accel_node_fault_total{category="faulty_gpu",component="00000000:3B:00.0",signal="xid_79"}': 23,
        'accel_exporter_events_lost_total{stream="kmsg"}': 0,
        'accel_exporter_xid_source{source="kmsg"}': 1,
    }.items():
        assert f"{series} {value}\n" in page
    last = exporter.value(LAST)
    assert last is not None and before - 5 <= last <= time.time()
    exporter.await_(lambda: "Xid 79: the GPU" in exporter.log)  # which a thread of its own writes
    assert 1 == exporter.log.count("Xid 79: the GPU does not answer on the PCIe bus any more")


def test_restart(run: Callable[..., Exporter], log: Log) -> None:
    """Over a restart the time of an Xid stays, so that its alert goes on and none begins; counters begin at 0."""
    logged = time.time() - 50
    log.add(LOST, ago=50)
    first = run()
    first.await_(lambda: first.value(REPLAYED) == 1)
    assert 0 == first.value(COUNT)
    replayed = first.value(LAST)
    assert replayed is not None and abs(replayed - logged) < 5
    before = time.time()
    log.add(LOST)
    after = time.time()
    first.await_(lambda: first.value(COUNT) == 1)
    newest = first.value(LAST)
    assert newest is not None and before - 1 < newest < time.time() + 1  # that of its arrival
    assert 0 == first.end()

    second = run()
    second.await_(lambda: second.value(REPLAYED) == 2)
    again = second.value(LAST)
    assert 0 == second.value(COUNT)
    assert again is not None and before - 1 < again < after + 1


def test_no_log(run: Callable[..., Exporter], tmp_path: Path) -> None:
    """Without a log and without NVML the collector is unavailable, which is logged once, and the rest runs."""
    exporter = run(f"--kmsg.path={tmp_path}/nowhere")

    assert 0 == exporter.value('accel_exporter_collector_available{collector="xid"}')
    exporter.await_(lambda: "collector xid is unavailable" in exporter.log)
    assert 1 == exporter.log.count(f"collector xid is unavailable: there is no {tmp_path}/nowhere")


def test_beside_nvml(run: Callable[..., Exporter], log: Log, tmp_path: Path) -> None:
    """An Xid that NVML reports too counts once, with the GPU's names; one that only NVML reports counts, too."""
    nvml.build()
    scenario = Scenario(tmp_path, gpus=2)
    exporter = run("--collector.nvml", "--collector.nvml.fast-interval=1", **scenario.environment())
    exporter.await_(lambda: exporter.value('accel_exporter_xid_source{source="nvml"}') == 1)

    scenario.set({"event.1": "1 8 31"})
    log.add("NVRM: Xid (PCI:0000:19:00): 31, pid=1, name=init, x")  # where the stand-in has its GPU 1
    scenario.set({"event.2": "0 8 48"})
    exporter.await_(lambda: {31, 48} == {int(re.findall(r'xid="(\d+)"', labels)[0]) for labels in xids(exporter)})

    both, alone = sorted(xids(exporter).items())
    assert (1, 1) == (both[1], alone[1])
    for labels, gpu, code in ((both[0], 1, 31), (alone[0], 0, 48)):
        assert all(it in labels for it in (f'gpu="{gpu}"', f'gpu_uuid="{UUID.format(gpu)}"', f'xid="{code}"'))


def test_spans(run: Callable[..., Exporter], log: Log) -> None:
    """Every Xid is a span with its line, the process that the driver names, and ids that a restart does not change."""
    with contextlib.closing(HttpSink()) as sink:
        log.add(f"NVRM: Xid (PCI:0000:3b:00): 31, pid={os.getpid()}, name=python, Ch 8")
        for count in (1, 2):
            exporter = run(f"--otlp.endpoint={sink.endpoint}", OTEL_BSP_SCHEDULE_DELAY="100")
            exporter.await_(lambda count=count: len(list(sink.spans())) == count)  # type: ignore[misc]
            exporter.end()
        log.add("NVRM: Xid (PCI:0000:3b:00): 79, x")
        exporter = run(f"--otlp.endpoint={sink.endpoint}", OTEL_BSP_SCHEDULE_DELAY="100")
        exporter.await_(lambda: len(list(sink.spans())) == 4)

    spans = list(sink.spans())
    resources = [group.resource for request in sink.traces for group in request.resource_spans]
    assert all("service.name" in {it.key for it in resource.attributes} for resource in resources)
    assert ["gpu.xid"] * 4 == [span.name for span in spans]
    assert spans[0].span_id == spans[1].span_id == spans[2].span_id != spans[3].span_id
    attributes = {it.key: getattr(it.value, it.value.WhichOneof("value")) for it in spans[0].attributes}
    assert (31, os.getpid(), True) == tuple(
        attributes[name] for name in ("gpu.xid.code", "process.pid", "gpu.fault.replayed")
    )
