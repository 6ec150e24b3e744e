"""A file system in user space (FUSE) with one file, of which nothing is ever read: as a hung NFS or CSI mount.

Speaks the kernel's protocol itself (include/uapi/linux/fuse.h): names, sizes and opening are answered at once, READ
never, and no FLUSH either.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from exporter.bpf import file_worker
from exporter.bpf.file_worker import WORKER
from tests.support import until

NAME = "libhung.so"
_ROOT, _FILE = 1, 2
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _RELEASE, _FLUSH, _INIT, _OPENDIR = 1, 2, 3, 14, 15, 18, 25, 26, 27
_INTERRUPT, _BATCH_FORGET, _ACCESS = 36, 42, 34
_IN = struct.Struct("=IIQQIIII")
_OUT = struct.Struct("=IiQ")
_FOLDER, _REGULAR = 0o40755, 0o100755
_MNT_DETACH = 2


def missing() -> str:
    """Why there is no FUSE here; empty when there is."""
    if os.geteuid():
        return "mounting takes root"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"no /dev/fuse: {error.strerror}"
    return ""


class Hung:
    """Mounted while it is used as a context manager, in a thread. With `content`, reads are answered until `hang`."""

    def __init__(self, folder: Path, content: bytes = b"", size: int = 1 << 20) -> None:
        self._folder, self._content, self._size = folder, content, len(content) or size
        self.path = folder / NAME
        self.hangs = not content

    def __enter__(self) -> Hung:
        self._folder.mkdir()
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"hung", str(self._folder).encode(), b"fuse", 0, options.encode()):
            os.close(self._device)
            raise OSError(ctypes.get_errno(), "cannot mount FUSE")
        self._mounted = True
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ends the connection, which lets everybody go who waits, and unmounts."""
        if self._mounted:
            self._mounted = False
            self._thread.join()
            os.close(self._device)
            ctypes.CDLL(None).umount2(str(self._folder).encode(), _MNT_DETACH)

    def _serve(self) -> None:
        ready = select.poll()
        ready.register(self._device, select.POLLIN)
        while self._mounted:
            if not ready.poll(50):
                continue
            try:
                request = os.read(self._device, 1 << 17)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue
                return
            _, code, unique, node, *_ = _IN.unpack_from(request)
            answer = self._answer(code, node, request[_IN.size :])
            if answer is not None:
                failed, body = answer
                with suppress(OSError):
                    os.write(self._device, _OUT.pack(_OUT.size + len(body), -failed, unique) + body)

    def _answer(self, code: int, node: int, body: bytes) -> tuple[int, bytes] | None:
        """Error number and content; None for no answer."""
        if code == _INIT:
            return 0, struct.pack("=IIIIHHIIHHI7I", 7, 31, 1 << 17, 0, 12, 9, 1 << 16, 1, 32, 0, 0, *[0] * 7)
        if code == _LOOKUP:
            known = body.rstrip(b"\0") == NAME.encode()
            return (
                (0, struct.pack("=QQQQII", _FILE, 0, 3600, 3600, 0, 0) + self._attributes(_FILE)) if known else (2, b"")
            )
        if code == _GETATTR:
            return 0, struct.pack("=QII", 3600, 0, 0) + self._attributes(node)
        if code in (_OPEN, _OPENDIR):
            return 0, struct.pack("=QII", 1, 0, 0)
        if code == _READ:
            if self.hangs:
                return None
            _, offset, size = struct.unpack_from("=QQI", body)
            return 0, self._content[offset : offset + size]
        if code in (_FORGET, _BATCH_FORGET, _INTERRUPT) or code == _FLUSH and self.hangs:
            return None
        return (0, b"") if code in (_RELEASE, _FLUSH, _ACCESS) else (errno.ENOSYS, b"")

    def _attributes(self, node: int) -> bytes:
        """struct fuse_attr."""
        mode, size = (_FOLDER, 4096) if node == _ROOT else (_REGULAR, self._size)
        then = 1_700_000_000
        return struct.pack(
            "=6Q10I", node, size, (size + 511) // 512, then, then, then, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0
        )


@pytest.fixture
def hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hung]:
    """A file on a mount that never answers a READ."""
    if reason := missing():
        pytest.skip(reason)
    monkeypatch.setattr(file_worker, "REST", 0.0)  # the mount of another test may have had this device number
    with Hung(tmp_path / "mount") as made:
        yield made
        made.end()
    until(lambda: not WORKER.abandoned, "the child that was abandoned ended")
