"""Detection of multi-uprobe links in the kernel."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest

from exporter.bpf import multi


@pytest.fixture(autouse=True)
def untried() -> Iterator[None]:
    """Clear earlier results before and after each test."""
    multi.lasting_refusal.cache_clear()
    yield
    multi.lasting_refusal.cache_clear()


class Kernel:
    """A kernel that answers the commands of bpf() with these errnos in turn; 0 is success."""

    def __init__(self, *answers: int) -> None:
        self._answers = list(answers)

    def bpf(self, command: int, attributes: bytes) -> int:
        if code := self._answers.pop(0):
            raise OSError(code, os.strerror(code))
        return os.open("/dev/null", os.O_RDONLY)


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EMFILE, errno.ENOMEM])
@pytest.mark.parametrize("loaded", [False, True], ids=["program", "link"])
def test_a_shortage_is_not_remembered(monkeypatch: pytest.MonkeyPatch, code: int, loaded: bool) -> None:
    """A kernel that could not answer is tried again, and its answer is then kept."""
    first = (0, code) if loaded else (code,)
    monkeypatch.setattr(multi, "bpf", Kernel(*first, 0, errno.EBADF).bpf)
    assert (code, 0, 0) == (multi.refusal(), multi.refusal(), multi.refusal())
    assert multi.supported()


@pytest.mark.parametrize("code", [errno.EPERM, errno.EINVAL])
def test_a_refusal_is_remembered(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A feature that the kernel does not permit, or does not have, is tried once."""
    monkeypatch.setattr(multi, "bpf", Kernel(code).bpf)
    assert (code, code) == (multi.refusal(), multi.refusal())
    assert not multi.supported()
