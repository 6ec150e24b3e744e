"""A node with everything the page at / shows: python -m tests.e2e.landing_node [SECONDS] [PICTURE] on stand-ins.

CUDA jobs, NCCL ranks with a straggler, RDMA queue pairs on a stand-in provider, its device in a /sys of our own, a GPU
of NVML's stand-in, and the real exporter. With PICTURE, the page is photographed by headless Chromium after SECONDS.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from deploy.demo.gpu import Gpu
from tests.bpf.verbs_node import BUILD, PROVIDER, Job
from tests.e2e.browser import Browser
from tests.program.process import ROOT, Exporter
from tests.unit.infiniband.trees import Tree, write

DEVICE, XID = "standin0", 94
RANKS, LATE_RANK, LATE_SECONDS = 4, 2, 0.035
JOBS = (
    ("pretrain", "48213", "--step-ms", "100", "--launches-per-step", "200"),
    ("finetune", "48220", "--step-ms", "400", "--launches-per-step", "120"),
)
"""Name, Slurm job and arguments of the CUDA jobs."""
USER = "pretrain"
"""The job that NVML lists on the GPU."""
FLAGS = (
    "--profile=debug",
    "--collector.nvml.fast-interval=1",
    "--collector.nvml.processes-interval=1",
    "--collector.infiniband.interval=1s",
    "--collector.verbs.poll-window-seconds=1",
    "--collector.verbs.poll-interval-seconds=1",
)
START_SECONDS = 5
"""Until the ranks' first call, when all of them have to run: one that starts later is late for all calls until then."""
HEIGHT = 1340
"""Of the picture, in pixels: down to the faults."""


class Jobs:
    """Processes of our own, with libraries of their own, and the only ones in a /proc that the exporter is given."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.proc, self.lib, self._stack = folder / "proc", folder / "lib", stack
        for made in (self.proc, self.lib):
            made.mkdir()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                (self.proc / entry.name).symlink_to(entry)
        for name in ("libcuda.so.1", "libcudart.so.12", "libnccl.so.2", PROVIDER.name, "workload", "verbs_job"):
            shutil.copy(BUILD / name, self.lib)

    def start(self, name: str, program: Path, *arguments: str, slurm: str = "") -> int:
        """Runs a program under a name and returns its pid; its input stays open and silent."""
        if program.parent == self.lib:
            shutil.copy(program, self.lib / name)
        else:
            (self.lib / name).symlink_to(program.resolve())
        environment = os.environ | {"LD_LIBRARY_PATH": str(self.lib), "SLURM_JOB_ID": slurm}
        command = [str(self.lib / name), *arguments]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self._stack.callback(_end, process)
        self.show(process.pid)
        return process.pid

    def show(self, pid: int) -> None:
        (self.proc / str(pid)).symlink_to(f"/proc/{pid}")


@contextlib.contextmanager
def busy_node(folder: Path) -> Iterator[Exporter]:
    """The exporter, ready, and the jobs beside it; all end with this."""
    tree, gpu = Tree(folder / "sys"), Gpu(folder / "scenario")
    port = tree.infiniband(DEVICE)
    with contextlib.ExitStack() as stack:
        jobs = Jobs(folder, stack)
        paths = f"--path.sysfs={tree.sys}", f"--path.procfs={jobs.proc}"
        exporter = Exporter(folder, *FLAGS, *paths, **gpu.environment(BUILD))
        stack.callback(exporter.end)
        exporter.await_ready()
        # uses the libraries, so that jobs are seen from their first call
        jobs.start("before", jobs.lib / "workload", "--gate")
        exporter.await_(lambda: f'library="{jobs.lib / "libcuda.so.1"}"' in exporter.get("/metrics")[1])
        for name, slurm, *arguments in JOBS:
            pid = jobs.start(name, jobs.lib / "workload", "--steady", *arguments, slurm=slurm)
            if name == USER:
                gpu.uses(pid)
        gpu.xid(XID)
        begin, library = str(time.time() + START_SECONDS), str(jobs.lib / "libnccl.so.2")
        for rank in range(RANKS):
            late = str(LATE_SECONDS if rank == LATE_RANK else 0.0)
            words = ("-m", "deploy.demo.rank", library, str(rank), str(RANKS), begin, late)
            jobs.start(f"train-{rank}", Path(sys.executable), *words, slurm="48213")
        with patch.dict(os.environ, {"SLURM_JOB_ID": "48225"}):
            program = Path(shutil.copy(jobs.lib / "verbs_job", jobs.lib / "kv-transfer"))
            job = stack.enter_context(Job(program, jobs.lib / PROVIDER.name))
        jobs.show(job.pid)
        exporter.await_(lambda: _probed(exporter.get("/metrics")[1], str(jobs.lib / PROVIDER.name)))
        ended = threading.Event()
        sender = threading.Thread(target=_send, args=(job, port, ended))
        sender.start()
        stack.callback(sender.join)
        stack.callback(ended.set)
        yield exporter


def _probed(metrics: str, provider: str) -> bool:
    """Return whether calls of libibverbs and of the provider are probed, all of them."""
    lines = [line for line in metrics.splitlines() if line.startswith("accel_exporter_probe_attached{")]
    verbs = [line for line in lines if 'probe="verbs"' in line]
    both = any(provider in line for line in verbs) and any("ibv_create_qp" in line for line in verbs)
    return both and all(line.endswith(" 1") for line in verbs)


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin
    process.stdin.close()  # the one that waits for a line does not end by a signal
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _send(job: Job, port: Path, ended: threading.Event) -> None:
    """Two queue pairs that send in waves, and what the port counts of it: now and then a packet is not acknowledged."""
    sent = packets = naks = 0
    for place, peer in ((8, 0x1A2), (9, 0x1A7)):
        job.create(place)
        job.connect(place, peer=peer, gid=place)
    began = time.monotonic()
    while not ended.wait(0.1):
        wave = 1.2 + math.sin((time.monotonic() - began) / 25)
        for place, size in ((8, round(wave * 4_000_000)), (9, round((2.4 - wave) * 1_500_000))):
            job.post(place, 16, size=size)
            job.step("complete", 16, 0)
            job.step("poll", 16)
            sent, packets = sent + 16 * size, packets + 16 * size // 4096
        naks += wave > 1.9
        write(port / "counters/port_xmit_data", sent // 4)
        write(port / "counters/port_xmit_packets", packets)
        write(port / "hw_counters/packet_seq_err", naks)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    seconds, pictures = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0, [Path(it) for it in sys.argv[2:3]]
    with tempfile.TemporaryDirectory() as folder, busy_node(Path(folder)) as exporter:
        print(f"http://{exporter.address}/", flush=True)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            exporter.get("/metrics")
            time.sleep(min(5.0, seconds))
        for picture in pictures:
            with Browser() as browser:
                browser.open(f"http://{exporter.address}/")
                browser.photograph(picture, HEIGHT)


if __name__ == "__main__":
    main()
