"""Processes and files in which OpenSSL is probed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from exporter.bpf.elf import Function
from exporter.bpf.find_places import Places
from exporter.bpf.libbpf import BpfError, Link
from exporter.bpf.library import Library
from exporter.bpf.placement import Placement
from exporter.bpf.safety import Protection
from exporter.bpf.uprobe import Point
from exporter.serving import tls
from exporter.serving.tls import ALL, PROGRAMS, TlsProbes

OPEN, SHUT = Protection(seccomp=False, shadow_stack=False), Protection(seccomp=True, shadow_stack=False)


class Kernel:
    """Attached links: (program, process, returns) of each. `followed` are the followed processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, each: bool = True) -> None:
        self.links: list[tuple[str, int, bool]] = []
        self.cookies: dict[str, set[int]] = {}
        self.followed: set[int] = set()
        self.sheltered: set[int] = set()
        self.refused = ""
        monkeypatch.setattr(tls.uprobe, "attach", self._attach)
        monkeypatch.setattr(tls.uprobe, "attach_to", self._attach_to)
        monkeypatch.setattr(tls, "find_places", self._places)
        monkeypatch.setattr(tls, "protection", lambda proc, pid: SHUT if pid in self.sheltered else OPEN)
        programs: Any = {name: name for name in PROGRAMS}
        self.tls = TlsProbes(programs, self.followed.__contains__, self._allowed, Path("/proc"), each)
        symbols = {name: Function(name, 16 * at, 16, 16 * at, 1) for at, name in enumerate(TlsProbes.symbols, 1)}
        self.library = Library((1, 2), "/usr/lib/libssl.so.3", "/proc/self/fd/9", 62, "", symbols)
        self.link = self.tls.attach(self.library)

    def start(self, *pids: int) -> None:
        for pid in pids:
            self.tls.process_started(pid, self.library, True)

    @property
    def probed(self) -> list[int]:
        """The processes, each once where all programs are attached."""
        found = {pid: sum(it[1] == pid for it in self.links) for _, pid, _ in self.links}
        assert set(found.values()) <= {len(PROGRAMS)}
        return sorted(found)

    def _attach(self, program: str, path: str, points: Sequence[Point], returns: bool) -> Link:
        return self._attach_to(program, path, points, ALL, returns)

    def _attach_to(self, program: str, path: str, points: Sequence[Point], pid: int, returns: bool) -> Link:
        if program == self.refused:
            raise BpfError(28, "no space")
        made = (program, pid, returns)
        self.links.append(made)
        self.cookies[program] = {point.cookie for point in points}
        return Link(lambda: self.links.remove(made))

    @staticmethod
    def _places(library: Library, symbols: Sequence[str]) -> Places:
        found = {name: Placement(library.functions[name].offset, "emulated", moved=False) for name in symbols}
        return Places(found, {}, {})

    @staticmethod
    def _allowed(users: Collection[Protection]) -> tuple[bool, str]:
        return (False, "seccomp") if SHUT in users else (True, "")


def test_processes_that_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only these have probes, from when both is known, to their end."""
    kernel = Kernel(monkeypatch)
    kernel.start(5, 6)
    assert [] == kernel.probed
    kernel.followed.add(5)
    kernel.tls.followed()
    kernel.followed.add(7)
    kernel.start(7)
    assert [5, 7] == kernel.probed
    assert kernel.links[0] == ("on_tls_read", 5, True)
    assert {0, 1} == kernel.cookies["on_tls_call"] and {0} == kernel.cookies["on_tls_end"]
    kernel.tls.processes_ended([5, 6])
    assert [7] == kernel.probed
    kernel.link.close()
    assert [] == kernel.probed


def test_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without links of single processes the file is probed while a followed process maps it."""
    kernel = Kernel(monkeypatch, each=False)
    kernel.followed.add(5)
    kernel.start(5, 6)
    assert [ALL] == kernel.probed
    kernel.tls.processes_ended([5])
    assert [] == kernel.probed


def test_many_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound all processes are probed in place of each."""
    kernel = Kernel(monkeypatch)
    pids = range(1, tls.MOST + 2)
    kernel.followed.update(pids)
    kernel.start(*pids)
    assert [ALL] == kernel.probed
    kernel.tls.processes_ended([1])
    assert [*pids][1:] == kernel.probed


def test_return_probes_that_could_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that would not survive has none, nor has any with it where all are probed; the reason is shown."""
    kernel = Kernel(monkeypatch)
    kernel.sheltered.add(6)
    kernel.followed.update((5, 6))
    kernel.start(5, 6)
    assert [5] == kernel.probed
    assert ["OpenSSL in /usr/lib/libssl.so.3: no return probes: seccomp"] == list(kernel.tls.problems())
    assert {0} == {it.value for it in kernel.tls.collect()}

    every = Kernel(monkeypatch, each=False)
    every.sheltered.add(6)
    every.followed.add(5)
    every.start(5)
    assert [ALL] == every.probed
    every.start(6)
    assert [] == every.probed


def test_refusal(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A program that is refused leaves nothing attached; the reason is logged once, and it is tried again."""
    kernel = Kernel(monkeypatch)
    kernel.refused = "on_tls_call"
    kernel.followed.update((5, 6))
    kernel.start(5, 6)
    assert [] == kernel.probed
    assert 1 == caplog.text.count("TLS of a server is not followed")
    kernel.refused = ""
    kernel.tls.followed()
    assert [5, 6] == kernel.probed
    assert {1} == {it.value for it in kernel.tls.collect()}
