"""A node on which every dashboard has something to show: jobs on stand-ins, a /sys of our own, then every fault.

`python -m tests.e2e.scene FOLDER` writes a picture of each dashboard there, as docs/images has them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dashboards import queries
from tests.bpf.cuda_node import BUILD, build_standins
from tests.bpf.custom_node import bcc_missing, kernel_headers
from tests.bpf.verbs_node import PROVIDER, Job
from tests.e2e.backend import Prometheus
from tests.e2e.fault_cases import CASES
from tests.e2e.fault_machine import GPU, PCI, Machine
from tests.e2e.fault_table import shortened
from tests.standins import kubelet, nvml, pods
from tests.standins.kubelet import container, pod
from tests.standins.nvml import UUID
from tests.standins.otlp_sink import HttpSink
from tests.support import free_port, labels_of, until
from tests.unit.infiniband.trees import EFA, Tree, count, write

ROOT = Path(__file__).parents[2]
CALM_SECONDS, FAULTY_SECONDS = 60.0, 25.0
RANKS, LATE_RANK = 4, 2
RESOLUTION = "10s"
SLURM_JOB = "4711"
NAMED = {"SLURM_JOB_NAME": "pretrain", "SLURM_JOB_PARTITION": "h100", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
PROBED = 'accel_exporter_libraries_attached{library="libcuda.so.1"}'
LIBRARIES = {
    "libcuda.so.1",
    "libnccl.so.2",
    "libcufile.so.0",
    "libamdhip64.so.5",
    "libucp.so.0",
    "libnixl.so",
    PROVIDER.name,
}
"""Libraries of the jobs."""
LIVELY: Mapping[str, object] = {
    f"gpu{gpu}.{name}": value
    for gpu in range(8)
    for name, value in {
        "utilization": f"{(92, 88, 63, 85, 2, 0, 45, 0)[gpu]}~{(6, 6, 9, 6, 1, 0, 8, 0)[gpu]}",
        "power_mw": f"{(640, 610, 480, 590, 72, 71, 350, 70)[gpu]}000~30000",
        "temperature": f"{(66, 64, 58, 63, 34, 33, 51, 33)[gpu]}~2",
        "gpm.2": f"{(81, 78, 50, 74, 0, 0, 30, 0)[gpu]}~7",
        "gpm.5": f"{(62, 60, 35, 57, 0, 0, 20, 0)[gpu]}~6",
    }.items()
}


def _counts(share: int) -> dict[str, float]:
    """Return counts of a port in half a second: `share` times 1 MB/s, a little loss, a few late receivers."""
    return {
        "counters/port_xmit_data": 125_000 * share,
        "counters/port_rcv_data": 110_000 * share,
        "counters/port_xmit_packets": 250 * share,
        "counters/port_xmit_wait": 900 * share,
        "hw_counters/packet_seq_err": share / 32,
        "hw_counters/rnr_nak_retry_err": share / 16,
        "hw_counters/np_ecn_marked_roce_packets": 3 * share,
        "hw_counters/np_cnp_sent": 3 * share,
        "hw_counters/rp_cnp_handled": 2 * share,
        "hw_counters/roce_adp_retrans": share / 32,
        "hw_counters/local_ack_timeout_err": share / 160,
        "counters/symbol_error": share / 320,
        "counters/port_xmit_discards": share / 320,
    }


COUNTS: tuple[Mapping[str, float], ...] = (
    _counts(40),
    _counts(25),
    {"hw_counters/sent_pkts": 1000, "hw_counters/out_of_seq_request": 1, "hw_counters/retry_exceeded_err": 0.1},
    {"hw_counters/tx_pkts": 2000, "hw_counters/retrans_pkts": 1},
)
"""Of each port, in half a second."""
PROBE = """
BPF_HASH(calls, u32, u64, 1024);
BPF_ARRAY(lost, u64, 1);
int on_launch(void *ctx) {
    u32 pid = bpf_get_current_pid_tgid() >> 32;
    calls.increment(pid);
    return 0;
}
"""
MEANING = """
lost: lost
probes: [{uprobe: cuLaunchKernel, library: libcuda.so.1, program: on_launch}]
metrics:
  - {name: site.launches, help: Launches that the site's own probe saw., type: counter, map: calls, labels: [{as: pid}]}
"""
BUSY = """
import ctypes, sys, time
wait = ctypes.CDLL(sys.argv[1]).cuStreamSynchronize
while True:
    for _ in range(5000):
        wait(None)
    time.sleep(0.05)
"""
"""A job of which the waits cost more than --overhead.max-ratio."""
RESTARTS = """
init(0, 2, b'again')
lib.standin_fail(b'ncclAllReduce', 3)
reduce_all(c, 1)
lib.standin_fail(None, 0)
"""
"""A rank makes a communicator, and a call of it is refused."""


class Scene:
    """The node, its Prometheus, and when the faults began (seconds since 1970).

    `prometheus` scrapes profile node, as by default; `detail` scrapes debug.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        build_standins()
        nvml.build()
        self._stop = threading.Event()
        self.machine = Machine(folder, stack)
        self.machine.gpus.set(LIVELY)
        self._ports = [self.machine.port, *_more_ports(folder)]
        self.machine.write(f"{PCI}/{GPU}/current_link_speed", "32.0 GT/s PCIe")
        sink = HttpSink()
        stack.callback(sink.close)
        socket, mapping = folder / "kubelet.sock", folder / "mapping"
        mapping.mkdir()
        (mapping / "6").write_text(f"{SLURM_JOB}\n")
        gpus = [UUID.format(number) for number in range(8)]
        training = pod("train-0", container("trainer", *gpus[:4]), namespace="research")
        idle = pod("lab", container("jupyter", gpus[4]), namespace="notebooks")
        stack.enter_context(kubelet.kubelet(socket, training, idle))
        listed = pods.pod("train-0", namespace="research", app="llm"), pods.pod("lab", namespace="notebooks", app="lab")
        api = stack.enter_context(pods.api(folder, *listed))
        self.exporter = exporter = self.machine.exporter(
            f"--kubernetes.pod-resources-socket={socket}",
            "--kubernetes.interval=1s",
            "--kubernetes.pod-labels=app",
            f"--kubernetes.pods-url={api.url}",
            f"--kubernetes.token-file={api.token_file}",
            f"--kubernetes.ca-file={api.ca}",
            f"--slurm.mapping-dir={mapping}",
            f"--otlp.endpoint={sink.endpoint}",
            "--otlp.metrics-interval=2s",
            "--collector.ras.interval=5",
            "--collector.serving",
            "--collector.ucx",
            "--collector.hip",
            "--collector.serving.engine-metrics",
            "--collector.serving.engine-interval=1",
            "--profile=debug",
            "--web.enable-profiles",
            "--bpf.stats",
            *_custom_probe(folder),
            "--collector.verbs.poll-window-seconds=1",
            "--collector.verbs.poll-interval-seconds=1",
        ).await_ready()
        stack.callback(exporter.end)
        others = self.machine.node.address, f"127.0.0.1:{free_port()}"
        place = {"cluster": "lab", "rack": "r7", "switch": "leaf-3"}
        rules = shortened(folder)
        self.prometheus = stack.enter_context(Prometheus(folder, exporter.address, rules, others, "node", **place))
        (detail := folder / "detail").mkdir()
        self.detail = stack.enter_context(Prometheus(detail, exporter.address, [], (), "debug", **place))
        # Jobs that begin earlier are not seen from their first call: what runs is searched for libraries after ready.
        exporter.await_(lambda: exporter.value(PROBED) == 1)
        self._jobs(stack)
        stack.callback(self._stop.set)
        self._await_attached()
        _start(stack, [sys.executable, "-c", BUSY, str(BUILD / "libcuda.so.1")])
        self.since = time.time()
        time.sleep(CALM_SECONDS)
        for _ in range(3):
            self.machine.rank.run(RESTARTS)
            time.sleep(2)
        self.faulty_since = time.time()
        os.kill(self._late, signal.SIGSTOP)
        for case in (case for case in CASES if not case.last):
            case.inject(self.machine)
        time.sleep(FAULTY_SECONDS)
        self.until = time.time()

    def _await_attached(self) -> None:
        """Wait until no function is left to be probed, and until Prometheus has evaluated that."""

        def attached() -> bool:
            found = self.exporter.family("accel_exporter_probe_attached")
            files = {Path(labels_of(it)["library"]).name for it in found}
            return files >= LIBRARIES and all(found.values())

        self.exporter.await_(attached)
        scraped = f"timestamp(accel_exporter_build_info) > {time.time()}"
        until(lambda: self.prometheus.query(scraped), "a scrape since then")
        missing = "instance:accel_exporter_probe_attached:missing"
        until(lambda: not self.prometheus.query(missing), "functions that were missing are no more")

    def _jobs(self, stack: ExitStack) -> None:
        """Trainings, four ranks of which one is late, a reader of files, two programs that talk RDMA, and ports."""
        environment = {"LD_LIBRARY_PATH": str(BUILD), "SLURM_JOB_ID": SLURM_JOB, **NAMED}
        ras_port = free_port()
        environment["NCCL_RAS_ADDR"] = f"localhost:{ras_port}"
        trainings = [_start(stack, [str(BUILD / "workload"), "--steady"], **environment) for _ in range(2)]
        begin = str(time.time() + 1)
        library = str(BUILD / "libnccl.so.2")
        for rank in range(RANKS):
            late = "0.035" if rank == LATE_RANK else "0"
            command = [sys.executable, "-m", "deploy.demo.rank", library, str(rank), str(RANKS), begin, late]
            trainings.append(_start(stack, command, **environment))
        self._late = trainings[-RANKS + LATE_RANK]
        self.machine.gpus.set(
            {
                f"gpu{gpu}.process.0": f"{pid} compute {(40 - 3 * gpu) << 30} {80 - 5 * gpu} 40"
                for gpu, pid in enumerate(trainings)
            }
        )
        for number in range(2):
            with patch.dict(os.environ, NAMED):
                job = stack.enter_context(Job())
            self._thread(stack, lambda job=job, number=number: _talk(job, number, self._stop))
        _start(stack, [sys.executable, "-m", "tests.standins.cufile_job", str(BUILD / "libcufile.so.0")], **environment)
        _start(stack, [sys.executable, "-m", "tests.standins.hip_job", str(BUILD / "libamdhip64.so.5")], **environment)
        _start(stack, [sys.executable, "-m", "tests.standins.ucx_job", str(BUILD / "libucp.so.0")], **environment)
        _start(stack, [sys.executable, "-m", "tests.standins.nixl_job", str(BUILD / "libnixl.so")], **environment)
        self._thread(stack, self._count)
        _start(stack, [sys.executable, str(ROOT / "tests/standins/ras.py"), str(ras_port), "demo"])
        port = free_port()
        _start(stack, [sys.executable, str(ROOT / "tests/bpf/serving_app.py"), str(port), "vllm"])
        self._thread(stack, lambda: _chat(port, self._stop))

    def _thread(self, stack: ExitStack, work: Any) -> None:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        stack.callback(thread.join, 5)
        stack.callback(self._stop.set)

    def _count(self) -> None:
        """Count on two ports (40 MB/s and 25 MB/s, a little loss, a late receiver) and on an AMD GPU."""
        for step in range(1, 1 << 30):
            if self._stop.wait(0.5):
                return
            for port, counts in zip(self._ports, COUNTS, strict=True):
                for name, a_step in counts.items():
                    write(port / name, int(step * a_step))
            write(self.machine.amd / "pcie_replay_count", step // 8)
            write(self.machine.amd / "gpu_busy_percent", 80 + step % 9)


def _more_ports(folder: Path) -> list[Path]:
    """A second adapter, and soft-RoCE and EFA, which count what others do not."""
    tree = Tree(folder / "sys")
    made = [tree.infiniband("mlx5_1"), tree.rxe("rxe0"), tree.device("rdmap0", "efa", "0000:5f:00.0")]
    count(made[-1] / "hw_counters", EFA, {})
    return made


def _custom_probe(folder: Path) -> list[str]:
    """The flags of a site's own probe, where bcc is there."""
    if bcc_missing():
        return []
    probes, joined = folder / "probes", folder / "joined"
    for made in (probes, joined):
        made.mkdir()
    (probes / "launches.c").write_text(PROBE)
    (probes / "launches.yaml").write_text(MEANING)
    return [f"--custom.dir={probes}", f"--custom.kernel-headers={kernel_headers(joined)}", "--custom.interval=1s"]


def _start(stack: ExitStack, command: list[str], **environment: str) -> int:
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process.pid


def _talk(job: Job, number: int, stop: threading.Event) -> None:
    """Makes a queue pair, and sends through it until `stop` is set."""
    stop.wait(3)  # until the library is probed: what was made before is not seen made
    job.create(8)
    job.connect(8, peer=5 + number, gid=2 + number)
    for step in range(1 << 30):
        if stop.wait(0.02):
            return
        job.post(8, 4, opcode=(0, 2)[step % 2], size=65536)
        job.step("complete", 4, 0)
        job.step("poll", 8)
        if not step % 50:
            job.create(9)
            job.connect(9)
            job.step("destroy", 9)
            job.post(8, 1, size=512)
            job.step("complete", 1, 0)
            job.step("poll", 8)


def _chat(port: int, stop: threading.Event) -> None:
    """Has an LLM server answer streams, one after the other, and leaves every fifth early: in it or before it."""
    body = b'{"stream": true, "tokens": 8, "first": 0.1, "gap": 0.02, "model": "tiny"}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    for step in range(1 << 30):
        if stop.wait(0.1):
            return
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as client:
            for _ in range(3):
                client.sendall(head + body)
                if not step % 10:
                    break
                read = client.recv(65536)
                while step % 5 and read and not read.endswith(b"0\r\n\r\n"):
                    read = client.recv(65536)


@contextmanager
def scene() -> Iterator[Scene]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        yield Scene(Path(folder), stack)


def main() -> int:
    from dashboards import draw

    folder = Path(sys.argv[1])
    with scene() as seen:
        for stem in queries.boards():
            draw.board(stem, seen.prometheus, seen.until, folder / f"dashboard-{stem}.png")
    draw.top(folder / "dashboard-rdma.png", 36)  # for the README
    return 0


if __name__ == "__main__":
    sys.exit(main())
