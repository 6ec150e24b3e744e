"""Detection of the end of a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from exporter import process_end
from exporter.process_end import has_ended
from tests.support import until


def test_a_process_that_nobody_waited_for_has_ended() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not has_ended(process.pid)
        process.kill()
        until(lambda: b") Z " in Path(f"/proc/{process.pid}/stat").read_bytes(), "a zombie")
        assert has_ended(process.pid)
        process.wait()
        assert has_ended(process.pid)


def test_a_process_has_ended_with_its_last_thread() -> None:
    code = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start();"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as process:
        until(lambda: b") Z " in Path(f"/proc/{process.pid}/stat").read_bytes(), "its first thread ended")
        assert not has_ended(process.pid)
        process.send_signal(signal.SIGKILL)
        until(lambda: has_ended(process.pid), "its end")


def test_without_descriptors_it_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(24, os.strerror(24))

    monkeypatch.setattr(process_end.os, "pidfd_open", refuse)
    assert not has_ended(os.getpid())
