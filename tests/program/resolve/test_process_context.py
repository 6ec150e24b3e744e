"""Resource attributes that a process has published in its memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.resolve.process_context import AGAIN_SECONDS, MOST_MAPS, MOST_PAYLOAD, ProcessContexts, published
from tests.standins.otel_context import Published, address, process_context

ROOT = Path(__file__).parents[3]
SDK = """
import json, mmap, sys
from tests.standins.otel_context import *
for line in sys.stdin:
    exec(json.loads(line))
    print(flush=True)
"""
CHAT = {"service.name": "chat"}


class Process:
    """A process that publishes; `run` executes lines in it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SDK], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid
        self.folder = Path(f"/proc/{self.pid}")

    def run(self, lines: str) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(lines) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def process() -> Iterator[Process]:
    made = Process()
    yield made
    made.end()


@pytest.fixture
def own() -> Published:
    """A context that this process has published."""
    return Published(process_context(CHAT))


def test_another_process(process: Process) -> None:
    """The mapping is found in a process that has one."""
    assert {} == published(process.folder)
    process.run(f"it = Published(process_context({CHAT}))")
    assert CHAT == published(process.folder)


@pytest.mark.parametrize(
    ("rights", "name", "found"),
    [
        ("rw-p", "[anon:OTEL_CTX]", True),
        ("rw-s", "[anon_shmem:OTEL_CTX]", True),
        ("r--s", "/memfd:OTEL_CTX (deleted)", True),
        ("-w-s", "/memfd:OTEL_CTX (deleted)", False),
        ("rw-p", "[anon:OTEL_CTX2]", False),
        ("rw-p", "/tmp/OTEL_CTX", False),
    ],
)
def test_names_of_the_mapping(own: Published, tmp_path: Path, rights: str, name: str, found: bool) -> None:
    """Kernels with and without CONFIG_ANON_VMA_NAME show it by one of them."""
    lines = [(own.header, name), (own.payload, "")]
    (tmp_path / "maps").write_text(
        "".join(f"{address(it):x}-{address(it) + 4096:x} {rights} 00000000 00:00 0 {text}\n" for it, text in lines)
    )
    (tmp_path / "mem").symlink_to("/proc/self/mem")
    assert (CHAT if found else {}) == published(tmp_path)


def test_an_update(process: Process) -> None:
    """A context that is being written is not read; the one that was read stays, also when the process ends."""
    now = [0.0]
    contexts = ProcessContexts(Path("/proc"), lambda: now[0])

    def look(seconds: float, started: int = 5) -> dict[str, str]:
        now[0] += seconds
        return dict(contexts.attributes(process.pid, started))

    assert {} == look(0)
    process.run(f"it = Published(process_context({CHAT}))")
    assert {} == look(AGAIN_SECONDS / 2)
    assert CHAT == look(AGAIN_SECONDS / 2)
    process.run("it.write(published=0)")
    with pytest.raises(BlockingIOError):
        published(process.folder)
    assert CHAT == look(AGAIN_SECONDS)
    process.run("it = Published(process_context({'team': 'nlp'}))")
    assert {"team": "nlp"} == look(AGAIN_SECONDS)
    process.end()
    assert {"team": "nlp"} == look(AGAIN_SECONDS)
    assert {} == look(0, started=6)  # another process with its pid


@pytest.mark.parametrize(
    "wrong",
    [
        {"signature": b"OTEL_CTY"},
        {"version": 3},
        {"version": 0},
        {"size": 0},
        {"size": 3},
        {"size": MOST_PAYLOAD + 1},
        {"size": 0xFFFF_FFFF},
        {"payload": 0},
        {"payload": 1 << 63},
        {"payload": (1 << 64) - 8},
        {"payload": 0xFFFF_FFFF_FF60_0000},
    ],
)
def test_a_header_that_is_none(own: Published, wrong: dict[str, Any]) -> None:
    """Nothing is read, and nothing fails."""
    assert CHAT == published(Path("/proc/self"))
    own.write(**wrong)
    assert {} == published(Path("/proc/self"))


def test_a_payload_in_a_file(own: Published, tmp_path: Path) -> None:
    """No memory of a file is read: its file system may not answer."""
    import mmap

    payload = process_context(CHAT)
    (tmp_path / "file").write_bytes(payload)
    with (tmp_path / "file").open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), len(payload), mmap.MAP_PRIVATE)
    own.write(payload=address(mapped))
    assert {} == published(Path("/proc/self"))


def test_a_payload_that_is_unmapped(process: Process) -> None:
    """A payload beyond the end of its mapping is not read."""
    process.run(f"it = Published(process_context({CHAT})); it.write(size=mmap.PAGESIZE + 1)")
    assert {} == published(process.folder)


def test_a_list_of_mappings_without_end(tmp_path: Path) -> None:
    """Only its beginning is read."""
    line = "7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n"
    with (tmp_path / "maps").open("w") as file:
        file.write(line * (MOST_MAPS // len(line) + 1) + line.replace("\n", "[anon:OTEL_CTX]\n"))
    assert {} == published(tmp_path)


def test_a_process_that_has_ended(tmp_path: Path) -> None:
    """There is nothing to read, also where it may not be read."""
    contexts = ProcessContexts(tmp_path)
    assert {} == contexts.attributes(1 << 23, 5)
    assert {} == contexts.attributes(os.getpid(), None)
