"""Two virtual machines with a Debian kernel and soft-RoCE, joined by a wire, on this machine's own files.

boot.py gives them the root file system as it is here. Commands go in and results come out through a folder that both
sides write.
"""

from __future__ import annotations

import compileall
import itertools
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import psutil

from exporter.bpf.reader import slowness
from tests.rdma import boot
from tests.support import free_port

REPOSITORY = Path(__file__).parents[2]
BUILD = REPOSITORY / "build/rdma"
BOOT_SECONDS = 240.0
_BOOTS = 3
"""Starts of a machine, where its kernel crashes before it is up: on 16 processors that QEMU 7.2 emulates, a kernel that
changes its own code does so now and then. Nothing of the exporter runs by then."""
DEVICE, PORT = "rxe0", "1"
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
        return bool(self._status)

    def wait(self, seconds: float = 60.0, statuses: tuple[int, ...] = (0,)) -> str:
        """Return the output of the command. Raises RigError when that takes longer or ends with another status."""
        limit = Limit(self.host, seconds)
        while not self.done:
            if limit.passed:
                raise RigError(f"{self.host.name}: not done after {seconds:.0f} s: {self.text}\n{self.printed}")
            self.host.check()
            time.sleep(0.1)
        if int(self._status) not in statuses:
            raise RigError(f"{self.host.name}: status {self._status}: {self.text}\n{self.printed}")
        return self.output

    @property
    def _status(self) -> str:
        """The exit status; empty until all of it is written."""
        text = _text(self.host.folder / f"{self.name}.status")
        return text.strip() if text.endswith("\n") else ""

    @property
    def output(self) -> str:
        return _text(self.host.folder / f"{self.name}.out")

    @property
    def printed(self) -> str:
        """The end of what the command wrote to both of its outputs."""
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
        """Start a shell command, which goes on when others are started."""
        name = f"{next(self._numbers):04}"
        part = self.folder / f"{name}.new"
        part.write_text(text + "\n")
        part.rename(self.folder / f"{name}.run")
        return Command(self, name, text)

    def run(self, text: str, seconds: float = 60.0) -> str:
        """Return the output of a shell command. Raises RigError."""
        return self.begin(text).wait(seconds)

    def counters(self) -> dict[str, int]:
        """The kernel's own, of the soft-RoCE port, read by cat."""
        printed = self.run(f"cd {COUNTERS}; exec grep . *")
        return {name: int(value) for name, value in (line.split(":") for line in printed.splitlines())}

    def get(self, address: str, path: str = "/metrics") -> str:
        """Return the answer of an HTTP server in the machine, read by bash alone: a client takes seconds to start."""
        request = f"GET {path} HTTP/1.1\\r\\nHost: {address}\\r\\nConnection: close\\r\\n\\r\\n"
        host, _, port = address.partition(":")
        answer = self.run(f"exec 3<>/dev/tcp/{host}/{port}; printf '{request}' >&3; exec cat <&3", 120)
        head, _, body = answer.partition("\n\n")
        if " 200 " not in head.partition("\n")[0]:
            raise RigError(f"{self.name}: {address}{path} answers {head or 'nothing'}")
        return body

    def await_answer(self, address: str, path: str, seconds: float) -> None:
        """Until the server in the machine answers that all is right. Raises RigError."""
        limit = Limit(self, seconds)
        while True:
            try:
                self.get(address, path)
                return
            except RigError:
                if limit.passed:
                    raise
            time.sleep(1)

    def await_server(self) -> None:
        """Until a server of perftest or ibv_rc_pingpong waits for its client. Raises RigError."""
        self.run(f"until grep -q '{_LISTENS}' /proc/net/tcp /proc/net/tcp6; do sleep 0.2; done", 120)

    def processor_seconds(self) -> float:
        """Return the CPU time of the machine on the host, in seconds."""
        with suppress(psutil.Error):
            times = psutil.Process(self.process.pid).cpu_times()
            return times.user + times.system
        return 0.0

    def check(self) -> None:
        """Raises RigError when the machine has stopped."""
        if self.process.poll() is not None:
            raise RigError(
                f"{self.name} has stopped:\n{(_text(self.folder / 'qemu') + _text(self.folder / 'console'))[-2000:]}"
            )


def kernel() -> boot.Kernel | None:
    """The kernel that kernel.sh has fetched."""
    folder = BUILD / "kernel"
    return boot.Kernel(folder) if folder.is_dir() else None


def perftest(sender: Host, receiver: Host, test: str) -> None:
    """Runs a command of perftest between two hosts. RigError where it fails.

    Its own times are nothing worth here: it measures the processor's clock, which is not steady under emulation. With
    --CPU-freq it does not end for that.
    """
    command = f"{test} --ib-dev={DEVICE} --gid-index=1 --CPU-freq"
    server = receiver.begin(command)
    receiver.await_server()
    sender.run(f"{command} {receiver.address}", 200)
    server.wait()


TOOLS = ("qemu-system-x86_64", "busybox", "ib_write_bw", "iptables-legacy")


def missing(tools: Sequence[str] = TOOLS) -> str:
    """Return the missing tools that the machines need, as a sentence; empty if all are there."""
    if kernel() is None:
        return "there is no kernel in build/rdma"
    lacking = [it for it in tools if not shutil.which(it)]
    return f"there is no {', '.join(lacking)}" if lacking else ""


@contextmanager
def hosts() -> Iterator[tuple[Host, Host]]:
    """Two machines that reach each other. Raises RigError when they do not come up."""
    port = free_port()
    with _booted("a", "10.77.0.1", _wire(1, f"listen=127.0.0.1:{port}")) as first:
        _await_listening(first, port)
        with _booted("b", "10.77.0.2", _wire(2, f"connect=127.0.0.1:{port}")) as second:
            for host in (first, second):
                _await(host)
            found = f"echo >/dev/udp/{second.address}/9; ip neigh show to {second.address} | grep lladdr"
            first.run(f"until {found}; do sleep 0.2; done", 60)
            yield first, second


@contextmanager
def machine(name: str, devices: str = "", processors: int = 1, system: boot.System | None = None) -> Iterator[Host]:
    """One machine without a network, with devices by QEMU's options. Raises RigError if it does not come up."""
    with ExitStack() as stack:
        for left in reversed(range(_BOOTS)):
            started = stack.enter_context(ExitStack())
            host = started.enter_context(_booted(name, "", devices, processors, system))
            try:
                _await(host)
                break
            except RigError:
                if not left or host.process.poll() is None:
                    raise
                started.close()
        yield host


def _wire(number: int, end: str) -> str:
    device = f"virtio-net-pci,netdev=wire,mac=52:54:00:77:00:0{number}"
    return f"-netdev socket,id=wire,{end} -device {device}"


@contextmanager
def _booted(
    name: str, address: str, devices: str, processors: int = 1, system: boot.System | None = None
) -> Iterator[Host]:
    system = system or _own_system()
    _compile()
    folder = BUILD / f"host-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    command = boot.command(system, folder, name, address, devices.split(), processors)
    with (folder / "qemu").open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield Host(name, address, folder, process)
    finally:
        process.kill()
        process.wait()


def _own_system() -> boot.System:
    image = kernel()
    if image is None:
        raise RigError("there is no kernel; run make test-rdma, or tests/rdma/kernel.sh")
    return boot.System(image)


@cache
def _compile() -> None:
    """The machines cannot write what they compile, and would compile the program at each start."""
    for name in ("exporter", "tests"):
        compileall.compile_dir(REPOSITORY / name, quiet=2)


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
    """Wait until the first machine listens, by the kernel's list: a connection would take the only place."""
    wanted = f":{port:04X} 00000000:0000 0A"
    limit = Limit(host, 30)
    while wanted not in _text(Path("/proc/net/tcp")):
        host.check()
        if limit.passed:
            raise RigError(f"{host.name} does not wait for the other one after 30 s")
        time.sleep(0.1)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
