"""The device nodes that a process sees below its root directory, which the process may have arranged to be hostile.

A symbolic link may lead out of the root, a FUSE file system may never answer, a look-up may trigger an automount, a
folder may have millions of entries. Therefore no link is followed, no path is resolved that is not in the kernel's
cache, and only file systems in memory (tmpfs and devtmpfs) are listed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from itertools import islice
from pathlib import Path

from exporter.process_memory import living

MOST_ENTRIES = 16_384
_MOST_MOUNTS = 16_384
_OPENAT2 = 437  # on every architecture
_NO_MAGICLINKS, _NO_SYMLINKS, _IN_ROOT, _CACHED = 0x02, 0x04, 0x10, 0x20  # RESOLVE_*, linux/openat2.h
_IN_MEMORY = ("devtmpfs", "tmpfs")


def names(proc: Path, pid: int) -> list[str]:
    """Return the names in /dev of a process. Raises OSError when the folder cannot be read or is not in memory."""
    root = os.open(living(proc, pid) / "root", os.O_PATH | os.O_DIRECTORY)
    try:
        # O_DIRECTORY would mount an automount
        folder = _open_in(root, b"dev", os.O_PATH | os.O_NOFOLLOW)
    finally:
        os.close(root)
    try:
        if (kind := file_system(proc, pid, folder)) not in _IN_MEMORY:
            raise PermissionError(f"/dev of process {pid} is of file system {kind or 'unknown'}, which is not read")
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


def file_system(proc: Path, pid: int, folder: int) -> str:
    """Return the type of the file system of a folder, from the process's mounts: statfs() might never return."""
    for line in Path(f"/proc/self/fdinfo/{folder}").read_text().splitlines():
        name, _, mount = line.partition(":")
        if name == "mnt_id":
            break
    else:
        return ""
    with (living(proc, pid) / "mountinfo").open(errors="replace") as mounts:
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
