"""Messages of the children, which are bounded whatever functions and files are called."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from exporter.stack_profiles.model import Frame
from exporter.stacks import opener
from exporter.stacks.naming import Naming, definition
from exporter.stacks.opener import FLUSH, MOST_BYTES, Opener
from exporter.stacks.table import StackTable

ROOT = Path(__file__).parents[3]
LONGEST = "\N{GRINNING FACE}" * 513


@pytest.mark.parametrize("name", ["f", "\n", "\x00", "\ud800", LONGEST], ids=ascii)
def test_a_stack_arrives_whole_whatever_its_names(name: str) -> None:
    """Stacks of 512 frames and of none; no message is longer than what the exporter receives at once."""
    table = StackTable()
    stacks = [[Frame(name, name, at, "python") for at in range(512)], []]
    for number, frames in enumerate(stacks, 1):
        for message in definition(number, frames):
            assert len(message) <= MOST_BYTES
            contents = json.loads(message)
            table.define(contents["stack"], contents["frames"])
        assert table.stack(table.index(number)) == tuple(frames)


def test_the_process_that_opens_has_no_copy_of_what_the_other_one_needs() -> None:
    command = [sys.executable, "-P", "-S", "-c", "import exporter.stacks.child, sys; print(*sys.modules)"]
    done = subprocess.run(command, cwd="/", env={"PYTHONPATH": str(ROOT)}, check=True, capture_output=True, text=True)
    modules = done.stdout.split()
    assert "exporter.stacks.opener" in modules
    assert not {"dataclasses", "exporter.bpf.elf", "exporter.stacks.libdw", "exporter.stacks.naming"} & {*modules}


def test_debug_information_is_closed_while_nothing_arrives() -> None:
    """And a message that arrives later is received."""

    class File:
        debug_until = time.monotonic() + 0.1
        closed = threading.Event()

        def close_debug(self) -> None:
            assert time.monotonic() >= self.debug_until
            self.closed.set()

    opener, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    exporter, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with opener, its, exporter, theirs:
        naming = Naming(its, theirs)
        naming._with_debug.add(File())  # type: ignore[arg-type]
        thread = threading.Thread(target=lambda: pytest.raises(EOFError, naming.run))
        thread.start()
        assert File.closed.wait(60)
        opener.sendall(FLUSH + b"23")
        assert {"flushed": 23} == json.loads(exporter.recv(MOST_BYTES))
        opener.close()
        thread.join(60)
        assert not thread.is_alive()


def test_mapped_files_with_long_names_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message is not longer than what its receiver takes, nor than what the kernel does."""
    exporter, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    unwinder, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    found = [opener.Mapping(at << 12, at + 1 << 12, 0, "\N{REPLACEMENT CHARACTER}" * 512) for at in range(99)]
    files = [tmp_path / str(at) for at in range(99)]
    for file in files:
        file.touch()
    numbers = iter(range(99))

    def opened(self: Opener, pid: int, mapping: Any) -> tuple[int, int]:
        number = next(numbers)
        return number, opener.os.open(files[number], opener.os.O_RDONLY)

    monkeypatch.setattr(opener, "executable", lambda _: found)
    monkeypatch.setattr(Opener, "_file", opened)
    received: list[int] = []
    with exporter, theirs, unwinder, its:
        unwinder.setblocking(False)
        its.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        Opener(theirs, its)._open(opener.os.getpid())
        while len(received) < 99:
            message, descriptors, flags, _ = socket.recv_fds(unwinder, MOST_BYTES, 300)
            assert not flags & socket.MSG_TRUNC
            received += [number for number, _ in json.loads(message[1:])["files"]]
            for descriptor in descriptors:
                opener.os.close(descriptor)
    assert received == list(range(99))
