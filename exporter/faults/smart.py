"""Health of NVMe drives from their SMART logs, read with an ioctl in a thread, which may hang in that ioctl.

Page layout: NVM Express Base Specification 2.0, figure 207. The request: struct nvme_admin_cmd in linux/nvme_ioctl.h.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from exporter.background.poller import Poller
from exporter.faults import metrics
from exporter.model import Sample

SECONDS = 60.0
"""Interval between two reads of the drives' logs."""
MOST_AGE = 5 * SECONDS
MOST_DRIVES = 256
_ADMIN_COMMAND = 0xC0484E41
"""NVME_IOCTL_ADMIN_CMD: _IOWR('N', 0x41, struct nvme_admin_cmd)."""
_COMMAND = struct.Struct("=BBHIIIQQ10I")
_GET_LOG_PAGE, _SMART, _ALL_NAMESPACES = 0x02, 0x02, 0xFFFFFFFF
_LENGTH, _TIMEOUT_MS = 512, 5000
_DRIVE = re.compile(r"nvme[0-9]{1,4}", re.ASCII)


def read_log_page(path: Path) -> bytes:
    """Return the SMART log page of a drive, 512 bytes. Raises OSError; EPERM or EACCES without CAP_SYS_ADMIN."""
    page = array.array("B", bytes(_LENGTH))
    address, _ = page.buffer_info()
    which = (_LENGTH // 4 - 1) << 16 | _SMART
    command = bytearray(
        _COMMAND.pack(
            *(_GET_LOG_PAGE, 0, 0, _ALL_NAMESPACES, 0, 0, 0, address, 0, _LENGTH),
            *(which, 0, 0, 0, 0, 0, _TIMEOUT_MS, 0),
        )
    )
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if status := fcntl.ioctl(descriptor, _ADMIN_COMMAND, command):
            raise OSError(errno.EIO, f"the drive answered with status {status:#x}", str(path))
    finally:
        os.close(descriptor)
    return page.tobytes()


def samples(device: str, page: bytes) -> Iterator[Sample]:
    """Yield the values of a drive's SMART log page."""
    labels = {"device": device}
    yield metrics.NVME_WARNING.sample(page[0], labels)
    yield metrics.NVME_SPARE.sample(page[3] / 100, labels)
    yield metrics.NVME_USED.sample(page[5] / 100, labels)
    yield metrics.NVME_MEDIA.sample(int.from_bytes(page[160:176], "little"), labels)


class Smart(Poller[list[Sample]]):
    """All NVMe drives, polled once a minute."""

    def __init__(self, sys: Path, dev: Path = Path("/dev")) -> None:
        super().__init__("nvme", self.query, SECONDS, patience=MOST_AGE)
        self._sys, self._dev = sys, dev

    def query(self) -> list[Sample]:
        """Return the values of the drives that answer. Raises OSError when no drive answers."""
        found: list[Sample] = []
        refusal = OSError(errno.ENOENT, "no drive", str(self._sys / "class/nvme"))
        for device in self._drives():
            try:
                found += samples(device, read_log_page(self._dev / device))
            except OSError as error:
                refusal = OSError(error.errno, error.strerror, str(self._dev / device))
        if found:
            return found
        raise refusal

    def _drives(self) -> list[str]:
        try:
            names = sorted(it.name for it in (self._sys / "class/nvme").iterdir())
        except OSError:
            return []
        return [name for name in names if _DRIVE.fullmatch(name)][:MOST_DRIVES]
