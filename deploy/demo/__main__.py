"""The demo: a real exporter, synthetic jobs on stand-ins of CUDA, NCCL and NVML, and what /metrics shows, live.

Usage: python -m deploy.demo [--seconds N] [--interval N] [--listen ADDRESS:PORT] [--xid N] [--torch]. Started by
`make demo`.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import IO, Self

from deploy.demo import jobs
from deploy.demo.gpu import Gpu, Keys
from deploy.demo.jobs import STANDINS, Job
from deploy.demo.summary import Scrape, Summary, one_line, parse
from exporter import streams
from exporter.background.child import die_with_parent
from exporter.web import listen
from tests.softgpu.process import inherited

ROOT = Path(__file__).resolve().parents[2]
READY_WITHIN = SEEN_WITHIN = 150.0
ALLOCATIONS_WITHIN = 20.0
ATTACHED = "accel_exporter_probe_attached"
XID, XID_AFTER = 94, 3
"""The Xid of the key x, and the scrape after which --xid takes effect."""
QUICK = tuple(
    f"--collector.nvml.{readings}-interval={seconds}"
    for readings, seconds in (("fast", 1), ("processes", 1), ("slow", 5))
)
HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Without http_proxy: a proxy cannot reach this machine's loopback."""
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HIDE_CURSOR, SHOW_CURSOR, CLEAR_LINE, CURSOR_UP = "\x1b[?25l", "\x1b[?25h", "\x1b[2K", "\x1b[%dA"


class DemoError(Exception):
    """The demo cannot go on; the text is why and what to do. `status` is the exit code."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


def main() -> int:
    streams.open_closed()
    with streams.output("demo"):
        arguments = _arguments()
    for number in ENDS:  # SIGINT too: scripts start background commands with it ignored, and Python leaves that so
        signal.signal(number, _interrupt)
    with contextlib.suppress(KeyboardInterrupt), streams.output("demo"):
        try:
            _demo(arguments)
        except DemoError as error:
            print(f"demo: {error}", file=sys.stderr)
            return error.status
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description="accel-exporter and a synthetic training job, live.")
    parser.add_argument("--seconds", type=float, default=None, help="end after this time (default: at Ctrl-C)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two scrapes (default: 1)")
    parser.add_argument("--listen", default="127.0.0.1:19445", help="address of the exporter (default: %(default)s)")
    parser.add_argument("--xid", type=int, help="report this Xid soon after the start; the key x reports it, or 94")
    parser.add_argument(
        "--torch", action="store_true", help="a loop of PyTorch (3 GB, once) in place of the synthetic job"
    )
    return parser.parse_args()


def _interrupt(number: int, frame: FrameType | None) -> None:
    _ignore_ends()  # make and timeout send a signal twice, and an impatient Ctrl-C is one more
    raise KeyboardInterrupt


def _ignore_ends() -> None:
    """Let nothing interrupt the end of the processes."""
    for number in ENDS:
        signal.signal(number, signal.SIG_IGN)


def _demo(arguments: argparse.Namespace) -> None:
    if os.geteuid() != 0:
        raise DemoError("attaching probes needs root: run `sudo make demo`")
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile("a+b") as log,
        listening(arguments.listen) as bound,
    ):
        try:
            job = jobs.pytorch(Path(folder)) if arguments.torch else jobs.synthetic()
        except jobs.NoJob as error:
            raise DemoError(str(error)) from error
        with Demo(listen.url(bound, "http"), log) as demo:
            _run(demo, job, Gpu(Path(folder) / "scenario", job.gpu), bound, arguments)


def _run(demo: Demo, job: Job, gpu: Gpu, bound: socket.socket, arguments: argparse.Namespace) -> None:
    print(f"accel-exporter starts on {demo.url} ...", flush=True)
    command = [sys.executable, "-m", "exporter", "--web.systemd-socket", "--profile=debug", *QUICK]
    demo.start("the exporter", command, bound, **gpu.environment(STANDINS))
    bound.close()  # when the exporter ends, a scrape is refused and does not wait
    demo.await_ready()
    # On a busy node others use the libraries already, and a job is covered from its first call. So here.
    demo.start("the other user of CUDA", job.user, LD_LIBRARY_PATH=str(job.driver.parent))
    demo.await_seen("libcuda.so.1 was not probed", ATTACHED, library=str(job.driver))
    demo.await_allocations(str(job.driver))
    pid = demo.start("the job", job.command, **job.environment)
    demo.await_seen("no launch of the job was seen", "gpu_cuda_kernel_launch_calls_total", pid=str(pid))
    if job.processes:
        gpu.uses(pid, job.processes)
    ranks = [demo.start(f"rank {number}", command) for number, command in enumerate(jobs.ranks())]
    demo.await_seen("no collective was seen", "nccl_collective_calls_total", pid=str(ranks[-1]))
    demo.show(Summary(str(pid), [str(it) for it in ranks]), gpu, job, arguments)


def listening(address: str) -> socket.socket:
    """Return a listening socket: at that address, or at another port of its host where that port is in use."""
    try:
        try:
            return listen.bind([address])[0]
        except listen.ListenError as error:
            if not (isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE):
                raise
            return listen.bind([f"{address.rpartition(':')[0]}:0"])[0]
    except listen.ListenError as error:
        raise DemoError(f"{error}".replace("--web.listen-address", "--listen"), status=2) from error


class Demo:
    """The exporter and the job as processes of their own, ended with this."""

    def __init__(self, url: str, log: IO[bytes]) -> None:
        self.url, self._log = url, log
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        handlers = [signal.getsignal(number) for number in ENDS]
        _ignore_ends()
        for child in reversed(self._children.values()):
            child.terminate()
            if child.stdin:
                child.stdin.close()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        for number, handler in zip(ENDS, handlers, strict=True):
            signal.signal(number, handler)

    def start(self, what: str, command: list[str], bound: socket.socket | None = None, **environment: str) -> int:
        """Start a process, which serves on the socket `bound`, and return its pid.

        Its session is its own: a Ctrl-C reaches only the demo. The kernel kills it when the demo ends without a chance
        to do so. Raises DemoError.
        """
        share = [bound.fileno()] if bound else []
        if share:
            command = [sys.executable, "-m", "deploy.demo.activate", str(share[0]), *command]
        try:
            self._children[what] = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                env=inherited() | environment,
                pass_fds=share,
                start_new_session=True,
                preexec_fn=functools.partial(die_with_parent, os.getpid()),
            )
        except OSError as error:
            raise DemoError(f"cannot start {command[0]}: {error.strerror}; `make standins` builds it") from error
        return self._children[what].pid

    def scrape(self, path: str = "/metrics") -> Scrape:
        """One scrape. Raises DemoError when a process has ended, OSError when the exporter does not answer 200."""
        for what, child in self._children.items():
            if child.poll() is not None:
                raise DemoError(f"{what} ended with status {child.returncode}; its log ends:\n{self._tail()}")
        began = time.monotonic()
        with HTTP.open(f"{self.url.rstrip('/')}{path}", timeout=5) as answer:
            text = answer.read().decode()
        ended = time.monotonic()
        return Scrape(at=ended, seconds=ended - began, series=parse(text))

    def await_ready(self) -> None:
        for _ in _until(READY_WITHIN):
            with contextlib.suppress(OSError):
                self.scrape("/-/ready")
                return
        raise DemoError(f"the exporter was not ready within {READY_WITHIN:.0f} s; its log ends:\n{self._tail()}")

    def await_seen(self, otherwise: str, metric: str, **labels: str) -> None:
        """Until a metric is above 0. Raises DemoError, with `otherwise`, when that cannot happen or not in time."""
        for _ in _until(SEEN_WITHIN):
            with contextlib.suppress(OSError):
                scrape = self.scrape()
                if scrape.total(metric, **labels):
                    return
                if scrape.total("accel_exporter_collector_available", collector="cuda") == 0:
                    raise DemoError(
                        "the exporter cannot attach CUDA probes on this machine; "
                        f"`.venv/bin/accel-exporter doctor` prints what to do. Its log ends:\n{self._tail()}"
                    )
        raise DemoError(f"{otherwise} within {SEEN_WITHIN:.0f} s; its log ends:\n{self._tail()}")

    def await_allocations(self, library: str) -> None:
        """Until allocations are probed too, which is later; not for long, as some kernels allow no return probes."""
        for _ in _until(ALLOCATIONS_WITHIN):
            with contextlib.suppress(OSError):
                if self.scrape().total(ATTACHED, library=library, symbol="cuMemAlloc_v2"):
                    return

    def show(self, summary: Summary, gpu: Gpu, job: Job, arguments: argparse.Namespace) -> None:
        """Draw until the time is over or a KeyboardInterrupt comes."""
        started, seconds, drawn = time.monotonic(), arguments.seconds, 0
        with Screen(sys.stdout) as screen, Keys(sys.stdin) as keys:
            while seconds is None or time.monotonic() - started < seconds:
                try:
                    facts = {**summary.update(self.scrape()), **job.facts()}
                except OSError as error:
                    raise DemoError(f"the exporter does not answer ({error}); its log ends:\n{self._tail()}") from error
                elapsed = f"{time.monotonic() - started:.0f} s"
                ends = "x: an Xid   Ctrl-C ends it"
                screen.show(f"{self.url}   {job.title}: pid {summary.pid}   {elapsed}   {ends}", facts)
                drawn += 1
                if keys.pressed("x", arguments.interval) or (drawn == XID_AFTER and arguments.xid):
                    gpu.xid(arguments.xid or XID)

    def _tail(self, lines: int = 15) -> str:
        end = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, end - 8192))
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-lines:])


def _until(seconds: float) -> Iterator[None]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.1)


class Screen:
    """Draws in place on a terminal, and prints one line a scrape anywhere else."""

    def __init__(self, out: IO[str]) -> None:
        self._out, self._drawn = out, 0
        self._terminal = out.isatty() and os.environ.get("TERM") != "dumb"

    def __enter__(self) -> Self:
        if self._terminal:
            self._out.write(HIDE_CURSOR)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._terminal:
            self._out.write(SHOW_CURSOR)
            self._out.flush()

    def show(self, title: str, facts: Mapping[str, str]) -> None:
        if not self._terminal:
            print(one_line(facts), file=self._out, flush=True)
            return
        columns = shutil.get_terminal_size().columns
        lines = ["", f"  {title}", "", *(f"  {heading:<14} {text}" for heading, text in facts.items()), ""]
        again = CURSOR_UP % self._drawn if self._drawn else ""
        self._out.write(again + "".join(CLEAR_LINE + line[: columns - 1] + "\n" for line in lines))
        self._out.flush()
        self._drawn = len(lines)


if __name__ == "__main__":
    sys.exit(main())
