"""Who is at the ends of queue pairs: GIDs from sysfs, peers that only the kernel knows from its own list."""

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
"""Seconds between two questions to the kernel: a driver may ask its firmware for each queue pair."""
_MOST_GIDS = 4096


def gid_text(raw: bytes) -> str:
    """A GID as the files of /sys/class/infiniband/*/ports/*/gids have it; empty if it is zero."""
    digits = raw[:GID_BYTES].hex()
    text = ":".join(digits[at : at + 4] for at in range(0, 2 * GID_BYTES, 4))
    return text if len(raw) >= GID_BYTES and text != _NO_GID else ""


class Peers:
    """Safe from any thread. `listed` gives the kernel's queue pairs (exporter.verbs.netlink)."""

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
        self._wanted, self._asked = True, -PAUSE
        self.problem = ""
        """Why the kernel does not tell of its queue pairs; empty if it does."""

    def want(self) -> None:
        """There may be queue pairs that only the kernel knows: it is to be asked again."""
        self._wanted = True

    def refresh(self) -> None:
        """Asks the kernel if that is wanted, and not more often than every PAUSE."""
        with self._lock:
            now = self._now()
            if not self._wanted or now - self._asked < PAUSE:
                return
            self._wanted, self._asked = False, now
            try:
                self._kernel = {(it.device, it.number): it for it in self._listed(self._sysfs)}
                self.problem = ""
            except OSError as error:
                self._kernel = {}
                self.problem = f"peers of queue pairs made before the exporter are not known: {error}"
                log.info("%s", self.problem)

    def kernel(self, device: str, number: int) -> KernelQp | None:
        """A queue pair as the kernel had it at the last `refresh`."""
        return self._kernel.get((device, number))

    def of(self, pid: int) -> list[KernelQp]:
        """Those of one process."""
        return [it for it in self._kernel.values() if pid and it.pid == pid]

    def gid(self, device: str, port: int, index: int | None) -> str:
        """A GID of this node by its place in a port's table; empty if there is none."""
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
