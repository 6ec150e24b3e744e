"""The ends of queue pairs: GIDs from sysfs, and peers from the kernel's list of queue pairs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from exporter.verbs.netlink import KernelQp, queue_pairs

log = logging.getLogger(__name__)
GID_BYTES = 16
_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_REMEMBERED = 60.0
PAUSE = 60.0
"""Seconds between two dumps of the kernel's list: a driver may query its firmware for each queue pair."""
_MOST_GIDS = 4096


def gid_text(raw: bytes) -> str:
    """Return a GID as the files of /sys/class/infiniband/*/ports/*/gids have it; empty if it is zero."""
    digits = raw[:GID_BYTES].hex()
    text = ":".join(digits[at : at + 4] for at in range(0, 2 * GID_BYTES, 4))
    return text if len(raw) >= GID_BYTES and text != _NO_GID else ""


class Peers:
    """The queue pairs and GIDs of this node. `listed` returns the kernel's queue pairs. Safe from any thread."""

    def __init__(
        self,
        sysfs: Path = Path("/sys"),
        listed: Callable[[Path], list[KernelQp]] = queue_pairs,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sysfs, self._listed, self._now = sysfs, listed, now
        self._lock = threading.Lock()
        self._gids: dict[tuple[str, int, int], tuple[str, float]] = {}
        self._kernel: dict[tuple[str, int], KernelQp] = {}
        self._wanted, self._listed_at = True, -PAUSE
        self.problem = ""
        """Why the kernel's list of queue pairs is not known; empty if it is."""

    def want(self) -> None:
        """Have the next `refresh` read the kernel's list: there may be queue pairs that only the kernel knows."""
        self._wanted = True

    def refresh(self) -> None:
        """Read the kernel's list if that is wanted, once every PAUSE at most."""
        with self._lock:
            now = self._now()
            if not self._wanted or now - self._listed_at < PAUSE:
                return
            self._wanted, self._listed_at = False, now
            try:
                self._kernel = {(qp.device, qp.number): qp for qp in self._listed(self._sysfs)}
                self.problem = ""
            except OSError as error:
                self._kernel = {}
                self.problem = f"peers of queue pairs made before the exporter are not known: {error}"
                log.info("%s", self.problem)

    def kernel(self, device: str, number: int) -> KernelQp | None:
        """Return a queue pair of the kernel's list at the last `refresh`; None if it was not there."""
        return self._kernel.get((device, number))

    def of(self, pid: int) -> list[KernelQp]:
        """Return the queue pairs of one process in the kernel's list."""
        return [qp for qp in self._kernel.values() if pid and qp.pid == pid]

    def gid(self, device: str, port: int, index: int | None) -> str:
        """Return a GID of this node by its index in a port's table; empty if there is none."""
        if not device or not port or index is None:
            return ""
        key, now = (device, port, index), self._now()
        with self._lock:
            known = self._gids.get(key)
            if known is None or now - known[1] > _REMEMBERED:
                if len(self._gids) >= _MOST_GIDS:
                    self._gids.clear()
                known = self._gids[key] = self._read_gid(device, port, index), now
        return known[0]

    def _read_gid(self, device: str, port: int, index: int) -> str:
        path = self._sysfs / "class/infiniband" / device / "ports" / str(port) / "gids" / str(index)
        try:
            return gid_text(bytes.fromhex(path.read_text(errors="replace").strip().replace(":", "")))
        except (OSError, ValueError):
            return ""
