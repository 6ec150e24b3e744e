"""The order in which providers are searched, and the time that each user gets of it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from exporter.bpf import shares
from exporter.bpf.library import Library, file_of
from exporter.bpf.shares import CREDIT, Shares
from exporter.verbs.code import analysis
from exporter.verbs.code.analysis import Analysis
from exporter.verbs.code.providers import ProviderFunctions, ProviderNames

HOSTILE, HARMLESS = 66, 7


class Worker:
    """Stands for the process that reads files; each call of it takes seconds of the processor's time."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.used = seconds, 0.0
        self.may_begin = threading.Event()

    def call(self, function: Any, *_: object) -> object:
        assert self.may_begin.wait(60)
        if function is analysis.digest:
            return ""
        self.used += self.seconds
        return ProviderFunctions({}, {})

    def spent(self) -> float:
        return self.used


def library(name: str) -> Library:
    return Library((0, 0), name, name, 62, "", {})


def test_a_users_share(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user with endless providers takes no time from others; what is beyond the share waits, and is not forgotten."""
    worker, order, changed = Worker(CREDIT / 2), [], threading.Condition()
    monkeypatch.setattr(analysis, "WORKER", worker)
    monkeypatch.setattr(shares, "WORKER", worker)
    monkeypatch.setattr(analysis, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(shares, "REFILL", 0.0)
    monkeypatch.setattr(Shares, "user", lambda _, pid: pid)

    def done(found: Library, _: ProviderFunctions) -> None:
        with changed:
            order.append(found.path)
            changed.notify()

    def wait_for(count: int) -> None:
        with changed:
            assert changed.wait_for(lambda: len(order) >= count, 60)

    subject = Analysis(tmp_path, tmp_path, Shares(tmp_path), done)
    kept = [library(f"hostile{number}.so") for number in range(9)]
    mine = library("mine.so")
    for it in kept:
        subject.want(it, HOSTILE)
    subject.want(mine, HARMLESS)
    worker.may_begin.set()
    wait_for(3)
    assert ["hostile0.so", "mine.so", "hostile1.so"] == order
    late = library("late.so")
    subject.want(late, HARMLESS)  # nobody else has any time left
    wait_for(4)
    assert "late.so" == order[-1]
    for it in kept[3:]:
        subject.forget(it)
    monkeypatch.setattr(shares, "REFILL", 1e6)
    wait_for(5)
    assert "hostile2.so" == order[-1]


class Reader:
    """Stands for the process that reads files: opens them here, by the size of the file alone."""

    def call(self, function: Any, *files: Any) -> bool:
        assert function is analysis.is_copy
        one, other = (Path(it.path).stat() for it in files)
        return one.st_size == other.st_size


def test_names_are_those_that_the_process_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The provider's name is that of the process looked at; one in a user namespace of its own does not count."""
    monkeypatch.setattr(analysis, "WORKER", Reader())
    files = {"libc.so.6": b"c", "libmlx5.so.1.24.44.0": b"mlx5", "libibverbs.so.1.14.44.0": b"verbs12"}
    folder, lines = tmp_path / "7", []
    for name in ("ns", "map_files"):
        (folder / name).mkdir(parents=True)
    for number, (name, content) in enumerate(files.items(), 1):
        (tmp_path / name).write_bytes(content)
        (folder / f"map_files/{number}000-{number}fff").symlink_to(tmp_path / name)
        lines += [f"{number}000-{number}fff {mode} 00000000 08:01 {number} /lib/{name}\n" for mode in ("r--p", "r-xp")]
    (folder / "maps").write_text("".join(lines))
    provider = Library((1, 1), "/forged.so", str(tmp_path / "libmlx5.so.1.24.44.0"), 62, "", {}, owner=0)
    subject = Analysis(tmp_path, tmp_path, Shares(tmp_path), lambda *_: None)
    request = analysis.Request(provider, 7, 0)
    (folder / "ns/user").touch()
    assert (None, ProviderNames()) == subject.seen(request, file_of(provider))
    (folder / "ns/user").unlink()
    (folder / "ns/user").symlink_to("/proc/self/ns/user")
    verbs, names = subject.seen(request, file_of(provider))
    assert ProviderNames("libmlx5.so.1.24.44.0", "libibverbs.so.1.14.44.0") == names
    assert verbs and str(folder / "map_files/3000-3fff") == verbs.path
