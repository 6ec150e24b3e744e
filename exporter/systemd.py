"""Notifications to systemd: sd_notify(3), one datagram a message. Without NOTIFY_SOCKET nothing is sent."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping

log = logging.getLogger(__name__)


class Notifier:
    """The service's notifications to systemd; sending never raises or blocks."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        timeout = environ.get("WATCHDOG_USEC", "") if ours else ""
        self.interval = int(timeout) / 2e6 if timeout.isdecimal() and self._address else 0.0
        """Interval of `alive` in seconds for systemd's WatchdogSec=; 0 without a watchdog."""

    def ready(self) -> None:
        """Report the end of start-up or of a reload."""
        self._send("READY=1")

    def reloading(self) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as line:
                line.sendto(message.encode(), self._address)
        except OSError as error:
            log.debug("systemd cannot be notified of %s: %s", message.partition("=")[0], error)
