"""What NVMe drives say of their own health: the SMART log, asked for with an ioctl, in a thread that may hang in one.

Page layout: NVM Express Base Specification 2.0, figure 207. The request: struct nvme_admin_cmd in linux/nvme_ioctl.h.
"""

from __future__ import annotations

import array
import errno
import fcntl
import logging
import os
import re
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from exporter.faults import metrics
from exporter.model import Sample

SECONDS = 60.0
"""Between two questions to the drives."""
MOST_AGE = 5 * SECONDS
MOST_DRIVES = 256
_ADMIN_COMMAND = 0xC0484E41
"""NVME_IOCTL_ADMIN_CMD: _IOWR('N', 0x41, struct nvme_admin_cmd)."""
_COMMAND = struct.Struct("=BBHIIIQQ10I")
_GET_LOG_PAGE, _SMART, _ALL_NAMESPACES = 0x02, 0x02, 0xFFFFFFFF
_LENGTH, _TIMEOUT_MS = 512, 5000
_DRIVE = re.compile(r"nvme[0-9]{1,4}", re.ASCII)

log = logging.getLogger(__name__)


def ask(path: Path) -> bytes:
    """The SMART log page of a drive, 512 bytes. Raises OSError; EPERM or EACCES without CAP_SYS_ADMIN."""
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
    """What a page says."""
    labels = {"device": device}
    yield metrics.NVME_WARNING.sample(page[0], labels)
    yield metrics.NVME_SPARE.sample(page[3] / 100, labels)
    yield metrics.NVME_USED.sample(page[5] / 100, labels)
    yield metrics.NVME_MEDIA.sample(int.from_bytes(page[160:176], "little"), labels)


class Smart:
    """Asks every drive once a minute. A drive that never answers makes what is known too old, and no scrape wait."""

    def __init__(self, sys: Path, dev: Path = Path("/dev")) -> None:
        self._sys, self._dev = sys, dev
        self._found: list[Sample] = []
        self._read_at = time.monotonic()
        self._refusal: OSError | None = OSError(errno.EAGAIN, "not asked yet", str(dev))
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvme", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Does not wait for a drive."""
        self._closing.set()

    def samples(self) -> list[Sample]:
        """The newest answers. Raises OSError when the drives may not be asked, or have not answered for minutes."""
        if self._refusal is not None:
            raise self._refusal
        if time.monotonic() - self._read_at > MOST_AGE:
            raise TimeoutError(errno.ETIMEDOUT, "a drive does not answer", str(self._dev))
        return self._found

    def look(self) -> None:
        """Asks all drives; those that do not answer are left out."""
        found: list[Sample] = []
        refusal = OSError(errno.ENOENT, "no drive", str(self._sys / "class/nvme"))
        for device in self._drives():
            try:
                found += samples(device, ask(self._dev / device))
            except OSError as error:
                refusal = OSError(error.errno, error.strerror, str(self._dev / device))
        self._found, self._read_at = found, time.monotonic()
        self._refusal = None if found else refusal

    def _drives(self) -> list[str]:
        try:
            names = sorted(it.name for it in (self._sys / "class/nvme").iterdir())
        except OSError:
            return []
        return [name for name in names if _DRIVE.fullmatch(name)][:MOST_DRIVES]

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.look()
            except Exception:
                log.exception("asking NVMe drives failed; it is tried again")
            self._closing.wait(SECONDS)
