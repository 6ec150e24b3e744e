"""The device nodes that a process sees, although its root is its own to arrange: a container's may lead anywhere.

A link in it would lead out of it, a file system of its own making may never answer, an automount would be triggered, a
folder may have millions of entries. So nothing is followed, nothing is looked up that the kernel does not have in
memory, and only what the kernel keeps in memory (tmpfs, which devtmpfs is too) is listed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from itertools import islice
from pathlib import Path

MOST_ENTRIES = 16_384
_MOST_MOUNTS = 16_384
_OPENAT2 = 437  # on every architecture
_NO_MAGICLINKS, _NO_SYMLINKS, _IN_ROOT, _CACHED = 0x02, 0x04, 0x10, 0x20  # RESOLVE_*, linux/openat2.h
_IN_MEMORY = ("devtmpfs", "tmpfs")


def names(proc: Path, pid: int) -> list[str]:
    """What is in /dev of a process. Raises OSError when that cannot be had, or is no folder as device nodes are in."""
    root = os.open(proc / str(pid) / "root", os.O_PATH | os.O_DIRECTORY)
    try:
        # O_DIRECTORY would have it mounted if it is an automount
        folder = _open_in(root, b"dev", os.O_PATH | os.O_NOFOLLOW)
    finally:
        os.close(root)
    try:
        if (kind := _file_system(proc, pid, folder)) not in _IN_MEMORY:
            raise PermissionError(
                f"/dev of process {pid} is of file system {kind or 'unknown'}, which is not looked at"
            )
        return _listed(folder)
    finally:
        os.close(folder)


def _open_in(root: int, name: bytes, flags: int) -> int:
    resolve = _IN_ROOT | _NO_SYMLINKS | _NO_MAGICLINKS | _CACHED
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, 0, resolve)
    found = int(ctypes.CDLL(None, use_errno=True).syscall(_OPENAT2, root, name, how, len(how)))
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name.decode())
    return found


def _file_system(proc: Path, pid: int, folder: int) -> str:
    """The type of the file system that a folder is on, from the process's mounts: asking itself may take for ever."""
    for line in Path(f"/proc/self/fdinfo/{folder}").read_text().splitlines():
        name, _, mount = line.partition(":")
        if name == "mnt_id":
            break
    else:
        return ""
    with (proc / str(pid) / "mountinfo").open(errors="replace") as mounts:
        for line in islice(mounts, _MOST_MOUNTS):
            if line.partition(" ")[0] == mount.strip():
                return line.partition(" - ")[2].partition(" ")[0]
    return ""


def _listed(folder: int) -> list[str]:
    listed = os.open(f"/proc/self/fd/{folder}", os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.scandir(listed) as entries:
            found = [entry.name for entry in islice(entries, MOST_ENTRIES + 1)]
    finally:
        os.close(listed)
    if len(found) > MOST_ENTRIES:
        raise OSError(errno.E2BIG, f"more than {MOST_ENTRIES} entries")
    return found
