"""Two virtual machines with a Debian kernel and soft-RoCE, joined by a wire, on this machine's own files.

virtme-ng gives a guest the root file system as it is here, copy on write, so that the checkout and its virtual
environment are there. Commands go in and results come out through a folder that both sides write.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import psutil

from exporter.bpf.reader import slowness

REPOSITORY = Path(__file__).parents[2]
BUILD = REPOSITORY / "build/rdma"
PROGRAMS = REPOSITORY / ".venv/bin"
BOOT_SECONDS = 240.0
DEVICE, PORT = "rxe0", "1"
_TRIES, _UNSTEADY = 5, "Correlation coefficient"
COUNTERS = f"/sys/class/infiniband/{DEVICE}/ports/{PORT}/hw_counters"


_PATIENCE = 8
"""A limit has passed after so many times as long by the clock, though the machine idles: something waits for ever."""
_LISTENS = ":4853 00000000:0000 0A"
"""Of /proc/net/tcp: somebody waits at port 18515, that of perftest and ibv_rc_pingpong."""


class RigError(Exception):
    """A machine did not start, or a command in it did not end in time."""


class Limit:
    """So many seconds of work of a machine, as an ordinary processor takes them: a busy or slow one has longer."""

    def __init__(self, host: Host, seconds: float) -> None:
        self._host, self._seconds = host, seconds * _slowness()
        self._began, self._used = time.monotonic(), host.processor_seconds()

    @property
    def passed(self) -> bool:
        by_clock = time.monotonic() - self._began
        if by_clock < self._seconds:
            return False
        return self._host.processor_seconds() - self._used > self._seconds or by_clock > _PATIENCE * self._seconds


@cache
def _slowness() -> float:
    return slowness()


@dataclass
class Command:
    """One that runs in a guest; `wait` gives its output."""

    host: Host
    name: str
    text: str

    @property
    def done(self) -> bool:
        return (self.host.folder / f"{self.name}.status").exists()

    def wait(self, seconds: float = 60.0, statuses: tuple[int, ...] = (0,)) -> str:
        """What it printed. Raises RigError when it takes longer (Limit), or ends with another status."""
        limit = Limit(self.host, seconds)
        while not self.done:
            if limit.passed:
                raise RigError(f"{self.host.name}: not done after {seconds:.0f} s: {self.text}\n{self.said}")
            self.host.check()
            time.sleep(0.1)
        status = int((self.host.folder / f"{self.name}.status").read_text())
        if status not in statuses:
            raise RigError(f"{self.host.name}: status {status}: {self.text}\n{self.said}")
        return self.output

    @property
    def output(self) -> str:
        return _text(self.host.folder / f"{self.name}.out")

    @property
    def said(self) -> str:
        return (self.output + _text(self.host.folder / f"{self.name}.err"))[-4000:]


@dataclass
class Host:
    """One virtual machine."""

    name: str
    address: str
    folder: Path
    process: subprocess.Popen[bytes]
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def begin(self, text: str) -> Command:
        """Starts a shell command; it goes on when others are started."""
        name = f"{next(self._numbers):04}"
        part = self.folder / f"{name}.new"
        part.write_text(text + "\n")
        part.rename(self.folder / f"{name}.run")
        return Command(self, name, text)

    def run(self, text: str, seconds: float = 60.0) -> str:
        """What a shell command prints. Raises RigError."""
        return self.begin(text).wait(seconds)

    def counters(self) -> dict[str, int]:
        """The kernel's own, of the soft-RoCE port, read by cat."""
        printed = self.run(f'cd {COUNTERS}; for it in *; do echo "$it $(cat $it)"; done')
        return {name: int(value) for name, value in (line.split() for line in printed.splitlines())}

    def await_server(self) -> None:
        """Until a server of perftest or ibv_rc_pingpong waits for its client. Raises RigError."""
        self.run(f"until grep -q '{_LISTENS}' /proc/net/tcp /proc/net/tcp6; do sleep 0.2; done", 120)

    def processor_seconds(self) -> float:
        """What the machine has used of this one's processors."""
        with suppress(psutil.Error):
            vng = psutil.Process(self.process.pid)
            times = [it.cpu_times() for it in (vng, *vng.children(recursive=True))]
            return sum(it.user + it.system for it in times)
        return 0.0

    def check(self) -> None:
        """Raises RigError when the machine has stopped."""
        if self.process.poll() is not None:
            raise RigError(f"{self.name} has stopped:\n{_text(self.folder / 'console')[-2000:]}")


def kernel() -> Path | None:
    """The kernel that kernel.sh has fetched."""
    return next(iter(sorted(BUILD.glob("kernel/boot/vmlinuz-*"))), None)


def perftest(sender: Host, receiver: Host, test: str) -> str:
    """Runs a command of perftest between two hosts, and gives what the sender's side prints.

    perftest measures the processor's clock in the end and gives no report where that is not steady, as under emulation
    on a busy machine: then it is run again. RigError where that does not help.
    """
    command = f"{test} --ib-dev={DEVICE} --gid-index=1"
    for _ in range(_TRIES):
        server = receiver.begin(command)
        receiver.await_server()
        client = sender.begin(f"{command} {receiver.address}")
        client.wait(200, statuses=(0, 1))
        server.wait(statuses=(0, 1))
        if _UNSTEADY not in client.said + server.said:
            return client.wait()
    raise RigError(f"{sender.name}: no steady clock: {command}\n{client.said}")


TOOLS = ("qemu-system-x86_64", "ib_write_bw", "iptables-legacy", "curl")


def missing(tools: Sequence[str] = TOOLS) -> str:
    """What is not here that the machines need; empty when all is."""
    if kernel() is None:
        return "there is no kernel in build/rdma"
    if not (PROGRAMS / "vng").exists():
        return "there is no virtme-ng"
    lacking = [it for it in tools if not shutil.which(it)]
    return f"there is no {', '.join(lacking)}" if lacking else ""


@contextmanager
def hosts(environment: Mapping[str, str] = os.environ) -> Iterator[tuple[Host, Host]]:
    """Two machines that reach each other. Raises RigError when they do not come up."""
    port = _free_port()
    first = _boot("a", "10.77.0.1", _wire(1, f"listen=127.0.0.1:{port}"), environment)
    try:
        _await_listening(first, port)
        second = _boot("b", "10.77.0.2", _wire(2, f"connect=127.0.0.1:{port}"), environment)
        try:
            for host in (first, second):
                _await(host)
            found = f"echo >/dev/udp/{second.address}/9; ip neigh show to {second.address} | grep lladdr"
            first.run(f"until {found}; do sleep 0.2; done", 60)
            yield first, second
        finally:
            _stop(second)
    finally:
        _stop(first)


@contextmanager
def machine(
    name: str, devices: str = "", environment: Mapping[str, str] = os.environ, processors: int = 1
) -> Iterator[Host]:
    """One machine without a network, with devices by QEMU's options. Raises RigError if it does not come up."""
    host = _boot(name, "", devices, environment, processors)
    try:
        _await(host)
        yield host
    finally:
        _stop(host)


def _wire(number: int, end: str) -> str:
    device = f"virtio-net-pci,netdev=wire,mac=52:54:00:77:00:0{number}"
    return f"-netdev socket,id=wire,{end} -device {device}"


def _boot(name: str, address: str, devices: str, environment: Mapping[str, str], processors: int = 1) -> Host:
    image = kernel()
    if image is None:
        raise RigError("there is no kernel; run make test-rdma, or tests/rdma/kernel.sh")
    folder = BUILD / f"host-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    command = [
        PROGRAMS / "vng", "--run", image, "--disable-kvm", "--cpus", processors, "--memory", "2500M", "--name", name,
        "--rwdir", folder,
        *([f"--qemu-opts={devices}"] if devices else []),
        "--exec", f"exec bash {REPOSITORY}/tests/rdma/guest.sh {folder} {address}",
    ]  # fmt: skip
    with (folder / "console").open("wb") as console:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**environment, "PATH": f"{PROGRAMS}:{environment['PATH']}"},
        )
    return Host(name, address, folder, process)


def _await(host: Host) -> None:
    limit = Limit(host, BOOT_SECONDS)
    while not _text(host.folder / "ready"):
        host.check()
        if limit.passed:
            raise RigError(f"{host.name} is not ready after {BOOT_SECONDS:.0f} s:\n{_text(host.folder / 'console')}")
        time.sleep(0.2)
    if _text(host.folder / "ready").strip() != "0":
        raise RigError(f"{host.name} is not set up:\n{_text(host.folder / 'setup')}")


def _await_listening(host: Host, port: int) -> None:
    """Until the first machine waits for the other: asked of the kernel, for connecting would take the only place."""
    wanted = f":{port:04X} 00000000:0000 0A"
    limit = Limit(host, 30)
    while wanted not in _text(Path("/proc/net/tcp")):
        host.check()
        if limit.passed:
            raise RigError(f"{host.name} does not wait for the other one after 30 s")
        time.sleep(0.1)


def _stop(host: Host) -> None:
    with suppress(ProcessLookupError):
        os.killpg(host.process.pid, signal.SIGKILL)
    host.process.wait()


def _free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
