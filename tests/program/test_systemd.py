"""Notifications to systemd."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.systemd import Notifier

pytestmark = pytest.mark.evidence(feature="systemd", on="stand-in")


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "notify"))
        bound.settimeout(5)
        yield bound


def test_messages(inbox: socket.socket) -> None:
    """Ready, alive and stopping are one datagram each; reloading carries the time that systemd wants with it."""
    notifier = Notifier({"NOTIFY_SOCKET": inbox.getsockname()})
    notifier.ready()
    notifier.reloading()
    notifier.alive()
    notifier.stopping()

    ready, reloading, alive, stopping = (inbox.recv(4096) for _ in range(4))

    assert (b"READY=1", b"WATCHDOG=1", b"STOPPING=1") == (ready, alive, stopping)
    assert reloading.startswith(b"RELOADING=1\nMONOTONIC_USEC=")


def test_abstract_socket() -> None:
    """An address that begins with @ is in the abstract name space."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(f"\0accel-exporter-test-{os.getpid()}")
        bound.settimeout(5)
        Notifier({"NOTIFY_SOCKET": f"@accel-exporter-test-{os.getpid()}"}).ready()

        assert b"READY=1" == bound.recv(4096)


@pytest.mark.parametrize(
    ("environ", "interval"),
    [
        ({}, 0.0),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "30000000"}, 15.0),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"}, 0.0),
        ({"WATCHDOG_USEC": "30000000"}, 0.0),
    ],
)
def test_watchdog(environ: dict[str, str], interval: float) -> None:
    """Signs of life are due twice in the time systemd allows, when it allows one and means this process."""
    assert interval == Notifier(environ).interval


def test_nobody_there(tmp_path: Path) -> None:
    """A socket that is gone, or none at all, changes nothing."""
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()
    Notifier({}).ready()
