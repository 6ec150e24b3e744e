"""Calls of the tests of exporter.bpf.file_worker in the child, which has no packages but the exporter."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from exporter.bpf.elf import Elf


def number(text: str) -> int:
    return int(text)


def length(text: str) -> int:
    return len(text)


def size(elf: Elf) -> int:
    return os.fstat(elf.fileno()).st_size


def find_file(name: str) -> None:
    raise FileNotFoundError(errno.ENOENT, "no such file", name)


def leave(status: int) -> None:
    os._exit(status)


def wait(seconds: float) -> None:
    time.sleep(seconds)


def wait_with(elf: Elf, seconds: float) -> None:
    time.sleep(seconds)


def work(seconds: float) -> None:
    """Uses the processor."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def take_memory(size: int) -> int:
    return len(bytearray(size))


def lie() -> int:
    """Something that is not what is declared."""
    return "text"  # type: ignore[return-value]


def environment() -> tuple[str, ...]:
    return tuple(os.environ)


def capabilities() -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(line for line in lines if line.startswith("CapPrm")).split()[1]


def forbidden() -> tuple[str, ...]:
    """Of what a process that reads files has no need for, what works all the same."""
    tries = {
        "program": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
        "process": os.fork,
        "socket": socket.socket,
        "signal": lambda: os.kill(os.getppid(), signal.SIGCONT),
        "file": lambda: os.open("/tmp", os.O_TMPFILE | os.O_WRONLY),
        "more files": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)),
    }
    worked = []
    for name, run in tries.items():
        try:
            run()
        except OSError:
            continue
        except ValueError:
            continue
        worked.append(name)
    return tuple(worked)
