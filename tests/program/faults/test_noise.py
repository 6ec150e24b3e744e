"""Noise: a healthy day of a busy node, floods, sources that flap, counters that are reset."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml

from exporter.collectors import faults, xid
from exporter.faults import metrics
from exporter.faults.counts import MOST_OF_GROUP
from exporter.faults.kernel_log import WORDS, find
from exporter.faults.ledger import Fault, FaultLedger
from exporter.faults.transitions import Transitions
from exporter.faults.xid.decode import FaultDecoder
from exporter.faults.xid.metrics import XID_LAST
from exporter.infiniband import metrics as rdma
from exporter.kmsg.kernel_log import KmsgSettings
from exporter.kmsg.reader import Reader
from exporter.kmsg.records import parse
from exporter.model import Metric, Sample
from exporter.node import Node
from exporter.nvml.gpus import Gpus
from exporter.options import Flag
from exporter.views import prometheus
from tests.nodes import make_node
from tests.support import until

ALERTS = Path(__file__).parents[3] / "alerts"
LINK = {"device": "mlx5_0", "port": "1"}
needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool (Debian: prometheus) is not installed"
)
HEALTHY = (
    'audit: type=1400 audit({n}.{m}:{n}): apparmor="ALLOWED" operation="open" profile="snap.x" pid={n} comm="timeout"',
    "docker0: port {m}(veth{x}) entered forwarding state",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth{m}: link becomes ready",
    "mlx5_core 0000:{b}:00.0 ens{m}f0: Link up",
    "mlx5_core 0000:{b}:00.0: Port module event: module {m}, Cable plugged",
    "mlx5_core 0000:{b}:00.0: mlx5_fw_tracer_start:821: FWTracer: Ownership granted and active",
    "mlx5_core 0000:{b}:00.0: firmware version: 28.39.{n}",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number {m}",
    "nvidia 0000:{b}:00.0: enabling device (0000 -> 0003)",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.{m}",
    "nvme nvme{m}: {m}/0/0 default/read/poll queues",
    "nvme nvme{m}: Shutdown timeout set to {m} seconds",
    "EDAC MC{m}: Giving out device to module skx_edac controller Skylake Socket#{m} IMC#0",
    "EDAC MC{m}: 1 CE memory read error on CPU_SrcID#{m}_Ha#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x{x})",
    "mce: CPU{m}: Thermal monitoring enabled (TM1)",
    "pcieport 0000:{b}:01.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
    "pcieport 0000:{b}:01.0: AER: Corrected error received: 0000:{b}:00.0",
    "pcieport 0000:{b}:00.0: pciehp: Slot({m}): Attention button pressed",
    "nfs: server storage{m}.example OK",
    "NFS: state manager: lease expired failed on NFSv4 server storage{m} with error {m}",
    "EXT4-fs (nvme{m}n1p2): mounted filesystem with ordered data mode. Quota mode: none.",
    "XFS (nvme{m}n1): Ending clean mount",
    "perf: interrupt took too long ({n} > 2500), lowering kernel.perf_event_max_sample_rate to {n}",
    "python3[{n}]: segfault at {x} ip 00007f{x} sp 00007ffd{x} error 4 in libc.so.6[7f{x}+1000]",
    "traps: bash[{n}] general protection fault ip:7f{x} sp:7ffd{x} error:0 in bash[55{x}+1000]",
    "python3 invoked oom-killer: gfp_mask=0x{x}, order=0, oom_score_adj={m}",
    "systemd-journald[{n}]: Received client request to flush runtime journal.",
    "TCP: request_sock_TCP: Possible SYN flooding on port {n}. Sending cookies.",
    "hrtimer: interrupt took {n} ns",
    "cgroup: fork rejected by pids controller in /kubepods/burstable/pod{x}",
    "workqueue: blk_mq_run_work_fn hogged CPU for >{n}us {m} times, consider switching to WQ_UNBOUND",
    "sd {m}:0:0:0: [sda] Synchronizing SCSI cache",
)


def day() -> Iterator[bytes]:
    """100,000 lines as the kernel of a busy healthy node prints them within 24 hours, the same at each run."""
    chance = random.Random(6)
    for number in range(100_000):
        numbers = {"n": chance.randrange(1, 99_999), "m": chance.randrange(16), "b": f"{chance.randrange(256):02x}"}
        text = chance.choice(HEALTHY).format(**numbers, x=f"{chance.randrange(1 << 32):08x}")
        yield f"6,{number},{number * 864_000},-;{text}".encode()


FLAPPING = " ".join(str(60 * (minute - minute % 5)) for minute in range(10, 130))
FIRING = 'count by (alertname) (ALERTS{alertstate="firing"})'
BEGUN = f"sum by (alertname) (1 + changes(ALERTS_FOR_STATE[4h])) and on (alertname) {FIRING}"


def check_pages(tmp_path: Path, stem: str, series: dict[str, str], fires: dict[str, int]) -> None:
    """In four hours with these series of promtool so many alerts fire, each of them once and without a break.

    The node boots again after 150 minutes, which ends those on what its kernel logged before.
    """
    series = series | {'accel_node_boot_timestamp_seconds{instance="n1",boot_id="b"}': "-7200x150 9060x120"}
    scenario = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": expr,
                "eval_time": at,
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": count} for name, count in fires.items()],
            }
            for expr, at in ((FIRING, "100m"), (BEGUN, "130m"))
        ]
        + [{"expr": FIRING, "eval_time": "4h", "exp_samples": []}],
    }
    tests = {"rule_files": [str(ALERTS / f"{stem}.yaml")], "evaluation_interval": "1m", "tests": [scenario]}
    (tmp_path / "pages.yaml").write_text(yaml.safe_dump(tests))
    checked = subprocess.run(["promtool", "test", "rules", tmp_path / "pages.yaml"], capture_output=True, text=True)

    assert 0 == checked.returncode, checked.stdout + checked.stderr


def series(samples: Iterable[Sample], metric: Metric, values: str) -> dict[str, str]:
    """A metric's series as the exporter shows them, with these values for promtool."""
    names = (
        ",".join(f'{name}="{value}"' for name, value in it.labels.items() if value)
        for it in samples
        if it.metric is metric
    )
    return {f'{prometheus.name(metric)}{{instance="n1",{labels}}}': values for labels in names}


LASTS = f"_x9 {FLAPPING} 7500x130"
"""The time of the newest fault, which comes every five minutes from 10 to 130 minutes."""


def test_a_healthy_day() -> None:
    """100,000 lines of a healthy node are no fault and no Xid."""
    records, decoder = [parse(line) for line in day()], FaultDecoder()

    assert 100_000 == len(records)
    assert [] == [it.text for it in records if WORDS.search(it.text.encode()) and find(it.text)]
    assert [] == [it.text for it in records if decoder.report(it)]


def node(tmp_path: Path, flags: tuple[Flag, ...] = ()) -> Node:
    settings = {flag.name: flag.default for flag in flags}
    kmsg = KmsgSettings(str(tmp_path / "kmsg"))
    return make_node(settings, kmsg=kmsg, gpus=Gpus(), proc=tmp_path, sys=tmp_path)


def read_to_the_end(on: Node) -> Reader:
    """The reader of the kernel log once all that the log holds now is read."""
    reader = on.kernel_log.reader
    assert reader and reader.caught_up.wait(20)
    return reader


def write_lines(tmp_path: Path, texts: list[str]) -> None:
    """The kernel prints all lines at once, now."""
    now = time.monotonic_ns() // 1000
    with (tmp_path / "kmsg").open("a") as file:
        file.writelines(f"3,{number},{now},-;{text}\n" for number, text in enumerate(texts))


def total(ledger: FaultLedger) -> dict[str, int]:
    """Faults by signal."""
    found: dict[str, int] = {}
    for it in ledger.samples():
        if it.metric is metrics.FAULTS:
            found[it.labels["signal"]] = found.get(it.labels["signal"], 0) + int(str(it.value))
    return found


@needs_promtool
def test_ten_thousand_lines_in_a_second(tmp_path: Path) -> None:
    """Each of 10,000 faults among as many other lines counts, though of 3,000 drives: in few series, none lost. Each of
    these drives is a page, and the rest of them one."""
    (tmp_path / "kmsg").touch()
    on = node(tmp_path, faults.FLAGS)
    collector = faults.Faults(on)
    collector.start()
    try:
        reader = read_to_the_end(on)
        texts = [f"nvme nvme{number % 3000}: I/O {number} QID 5 timeout, aborting" for number in range(10_000)]
        write_lines(tmp_path, [line for text in texts for line in (text, "audit: noise")])
        until(lambda: total(on.faults) == {"nvme_timeout": 10_000})
        assert MOST_OF_GROUP + 1 == sum(it.metric is metrics.FAULTS for it in on.faults.samples())
        assert 0 == reader.lost
        lasts = series(on.faults.samples(), metrics.FAULT_LAST, LASTS)
    finally:
        collector.close()
    check_pages(tmp_path, "faults", lasts, {"DriveFault": MOST_OF_GROUP + 1})


@needs_promtool
def test_an_xid_storm(tmp_path: Path) -> None:
    """10,000 Xids of 8 GPUs are 10,000 in a series for each GPU and code, and an alert for each GPU and kind."""
    (tmp_path / "kmsg").touch()
    on = node(tmp_path)
    collector = xid.create(on)
    collector.start()
    try:
        reader = read_to_the_end(on)
        codes = (31, 74, 94)
        texts = [f"NVRM: Xid (PCI:0000:{it % 8:02x}:00): {codes[it % 3]}, pid={it}, name=x, y" for it in range(10_000)]
        write_lines(tmp_path, texts)
        until(lambda: sum(total(on.faults).values()) == 10_000)
        found = [it for it in on.faults.samples() if it.metric is metrics.FAULTS]
        assert 8 * len(codes) == len(found)
        assert 0 == reader.lost
        lasts = series(collector.collect(), XID_LAST, LASTS)
    finally:
        collector.close()
    check_pages(tmp_path, "xid", lasts, {"GpuNvlinkFault": 8})


def test_a_flapping_sensor() -> None:
    """A sensor that flaps is one series however often, with each alarm counted."""
    ledger = FaultLedger()
    transitions = Transitions(ledger.add)
    for look in range(1000):
        labels = {"chip": "psu_hwmon0", "sensor": "fan1"}
        transitions.observe([metrics.ALARM.sample(look % 2, labels)], float(look))

    assert {"sensor_alarm": 500} == total(ledger)
    assert 1 == sum(it.metric is metrics.FAULTS for it in ledger.samples())


def test_a_counter_that_is_reset() -> None:
    """Errors after a reset count from 0; the reset itself is none."""
    faults: list[tuple[Fault, int]] = []
    transitions = Transitions(lambda fault, times: faults.append((fault, times)))
    for look, value in enumerate((100, 0, 0, 2, 2, 0, 1)):
        transitions.observe([_uncorrected(value)], float(look))

    assert [(3.0, 2), (6.0, 1)] == [(fault.time, times) for fault, times in faults]


def _uncorrected(value: int) -> Sample:
    return metrics.EDAC.sample(value, {"controller": "mc0", "dimm": "A1", "type": "uncorrected"})


@needs_promtool
def test_flapping_pages_once(tmp_path: Path) -> None:
    """Two hours of a sensor and a link that flap are one alert of each rule, until minutes after the last time."""
    ledger = FaultLedger()
    transitions = Transitions(ledger.add)
    for look in range(100):
        alarm = metrics.ALARM.sample(look % 2, {"chip": "psu_hwmon0", "sensor": "fan1"})
        transitions.observe([alarm, rdma.DOWNED.sample(look // 2, LINK)], float(look))
    flaps = series(
        ledger.samples(), metrics.FAULTS, "_x9 " + " ".join(str(minute) for minute in range(120)) + " 119x130"
    )
    states = series([rdma.STATE.sample(4, LINK)], rdma.STATE, "4x9 " + "1 1 4 4 " * 30 + "4x130")

    check_pages(
        tmp_path,
        "faults",
        series(ledger.samples(), metrics.FAULT_LAST, LASTS) | flaps | states,
        {"ChassisFault": 1, "NicDegraded": 1, "RdmaLinkInactive": 1},
    )


@needs_promtool
def test_a_counter_that_is_reset_pages_nobody(tmp_path: Path) -> None:
    """Corrected errors that a reset every ten minutes keeps below the threshold stay below it."""
    errors = metrics.EDAC.sample(1, {"controller": "mc0", "dimm": "A1", "type": "corrected"})
    values = " ".join(str(minute % 10) for minute in range(90))

    check_pages(tmp_path, "faults", series([errors], metrics.EDAC, values), {})
