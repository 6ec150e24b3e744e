"""Files that are written to, as the kernel reports it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.bpf import overwrites
from exporter.bpf.overwrites import UNFOLLOWED, Overwrites


@pytest.fixture
def followed() -> Iterator[Overwrites]:
    made = Overwrites()
    yield made
    made.close()


def test_a_write_is_reported_once(followed: Overwrites, tmp_path: Path) -> None:
    """A file that is written 23 times is reported once, another one not at all."""
    written, read = tmp_path / "written", tmp_path / "read"
    for path in (written, read):
        path.write_bytes(b"before")
    first, second = (followed.follow(str(path), 7) for path in (written, read))
    assert UNFOLLOWED not in (first, second)
    assert first != second
    read.read_bytes()
    assert not followed.drain()
    for _ in range(23):
        written.write_bytes(b"after")
    assert {first} == followed.drain()
    written.write_bytes(b"later")
    assert not followed.drain()


def test_a_forgotten_file_is_not_reported(followed: Overwrites, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"before")
    watch = followed.follow(str(file), 7)
    followed.forget(watch)
    followed.forget(watch)
    followed.forget(UNFOLLOWED)
    file.write_bytes(b"after")
    assert not followed.drain()


def test_a_file_that_cannot_be_followed(followed: Overwrites, tmp_path: Path) -> None:
    assert UNFOLLOWED == followed.follow(str(tmp_path / "absent"), 7)


def test_a_file_system_that_does_not_answer(
    followed: Overwrites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search goes on, and files of other devices are followed."""
    file, answer = tmp_path / "file", threading.Event()
    file.write_bytes(b"before")
    monkeypatch.setattr(overwrites, "SECONDS", 0.05)
    add = followed._add
    monkeypatch.setattr(followed, "_add", lambda path: answer.wait() and 0 if path == "stuck" else add(path))
    assert [UNFOLLOWED] * 2 == [followed.follow("stuck", 1) for _ in range(2)]
    monkeypatch.setattr(overwrites, "SECONDS", 60.0)
    assert followed.follow(str(file), 2) != UNFOLLOWED
    answer.set()


def test_a_kernel_that_refuses(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """No instance is left for this user: a warning, and nothing is followed."""

    class Refusing:
        def inotify_init1(self, flags: int) -> int:
            return -1

    monkeypatch.setattr(overwrites.ctypes, "CDLL", lambda *_, **__: Refusing())
    refused = Overwrites()
    assert UNFOLLOWED == refused.follow("/bin/sh", 1)
    assert not refused.drain()
    refused.forget(UNFOLLOWED)
    refused.close()
    assert "overwritten in place" in caplog.text
