"""Tiny programs of ours to try probes on: an ELF file of a few hundred bytes, kept in memory and run as a child.

Trying in a child and not here means that a probe which kills its program, and a filter under which the exporter itself
runs, cost nothing but the answer.
"""

from __future__ import annotations

import os
import struct
import subprocess
from contextlib import suppress
from typing import Self

from exporter.bpf.elf import AARCH64, X86_64
from exporter.model import Unavailable

MACHINES = {"x86_64": X86_64, "aarch64": AARCH64}
"""ELF machine numbers by what uname calls them: where a program can run."""

BASE = 0x400000
"""Address of the first byte of the file."""
CODE = 0x80
"""Offset of the code in the file; it starts to run there."""

_ALIGNED, _PAGE = 0x10000, 0x1000
"""Bytes of the largest pages that these machines have, and of the smallest."""
_MFD_CLOEXEC, _MFD_EXEC = 1, 0x10
_TIMEOUT_S = 5


def assemble(listing: str) -> bytes:
    """The machine code of a listing: each line has the bytes in hexadecimal, two spaces and what they do."""
    return bytes.fromhex(" ".join(line.partition("  ")[0] for line in listing.strip().splitlines()))


def executable(machine: int, code: bytes, data: bytes = b"", data_at: int = 0) -> bytes:
    """A static executable that holds the code, and a page that begins with `data` at this address unless that is 0
    (System V gABI, chapters 4 and 5)."""
    size, readable_executable, readable = CODE + len(code), 5, 4
    segments = [struct.pack("<IIQQQQQQ", 1, readable_executable, 0, BASE, BASE, size, size, _ALIGNED)]
    if data_at:
        where = _ALIGNED, data_at, data_at, _PAGE, _PAGE, _ALIGNED
        segments.insert(0, struct.pack("<IIQQQQQQ", 1, readable, *where))
    ident, count = b"\x7fELF\x02\x01\x01".ljust(16, b"\0"), len(segments)
    table = size + -size % 8 if data_at else 64
    header = struct.pack("<16sHHIQQQIHHHHHH", ident, 2, machine, 1, BASE + CODE, table, 0, 0, 64, 56, count, 0, 0, 0)
    if not data_at:
        return (header + segments[0]).ljust(CODE, b"\0") + code
    whole = (header.ljust(CODE, b"\0") + code).ljust(table, b"\0") + b"".join(segments)
    return whole.ljust(_ALIGNED, b"\0") + data.ljust(_PAGE, b"\0")


class TrialProgram:
    """An executable in memory, to attach probes to by `path` and to run; a context manager."""

    def __init__(self, image: bytes) -> None:
        """Raises Unavailable where this machine lets no such file be made."""
        try:
            self._file = _memory_file()
            with open(self._file, "wb", closefd=False) as file:
                file.write(image)
        except OSError as error:
            raise Unavailable(f"cannot make a program to try probes on: {error}") from error
        self.path = f"/proc/self/fd/{self._file}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def run(self, arguments: int = 0) -> tuple[int, bytes]:
        """Runs it with so many arguments: exit status (negative: the signal that killed it) and what it wrote.

        Raises Unavailable where it cannot be started or does not end.
        """
        command = ["accel-exporter-probe-trial", *["-"] * arguments]
        try:
            done = subprocess.run(
                command,
                executable=self.path,
                pass_fds=(self._file,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"cannot run a program to try probes on: {error}") from error
        return done.returncode, done.stdout


def _memory_file() -> int:
    with suppress(OSError):  # EINVAL before Linux 6.3, where every such file may be executed
        return os.memfd_create("accel-exporter-probe-trial", _MFD_CLOEXEC | _MFD_EXEC)
    return os.memfd_create("accel-exporter-probe-trial", _MFD_CLOEXEC)
