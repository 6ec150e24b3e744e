"""User to which a process is accounted, chosen such that one user cannot pose as many.

Root of a container can run processes under any uid (CAP_SETUID), the owner of a user namespace under all uids mapped
into the namespace (newuidmap(1)). Neither can leave the cgroup that the container engine or systemd-logind made, nor
transfer ownership of the namespace (ioctl_ns(2)). In a path of cgroups the outermost container counts, as its root may
make further containers below.
"""

from __future__ import annotations

import os
import re
import struct
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path

User = int | bytes
NOBODY: User = -1
"""The user of a process that ended before it was looked at."""

_OWN = Path("/proc/self/ns/user")
_GROUP_BYTES, _STATUS_BYTES = 1 << 12, 1 << 12
_REAL = re.compile(rb"^Uid:\t(\d+)", re.MULTILINE)
_LOGIN = re.compile(rb"^\d+:[^:]*:/(?:\.\./)*user\.slice/user-([1-9]\d{0,9})\.slice(?:/|$)", re.MULTILINE)
_CONTAINER = re.compile(
    rb"^\d+:[^:]*:(/[^\n]*?(?:"
    rb"(?<=/machine\.slice/)[^/\n]+"
    rb"|(?<=/)lxc(?:\.payload\.|/)[^/\n]+"
    rb"|(?<=[/-])pod(?:[0-9a-f]{32}|[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})"
    rb"|(?<=[/:-])[0-9a-f]{64}"
    rb"))(?:\.slice|\.scope)?(?:[/:]|$)",
    re.MULTILINE,
)
_PARENT, _OWNER = 0xB702, 0xB704
"""NS_GET_PARENT, NS_GET_OWNER_UID."""
_DEEPEST = 32
"""Levels of user namespaces that the kernel allows."""


def user_of(proc: Path, pid: int) -> User:
    """Return who a process counts to: a uid, or the name of its container, user namespace or cgroup.

    The first of these that there is: the user of its login session; its outermost container; the owner of its
    user namespace, or the namespace where root owns it; its real uid, or the cgroup where that is root.
    """
    folder = proc / str(pid)
    try:
        with (folder / "cgroup").open("rb") as file:
            group = file.read(_GROUP_BYTES)
        if found := _LOGIN.search(group):
            return int(found[1])
        if found := _CONTAINER.search(group):
            return found[1]
        with suppress(OSError):  # kernels without user namespaces
            if owner := _namespace(folder / "ns/user"):
                return owner
        with (folder / "status").open("rb") as file:
            found = _REAL.search(file.read(_STATUS_BYTES))
        return int(found[1]) or group if found else NOBODY
    except OSError:
        return NOBODY


def _namespace(place: Path) -> User:
    """Return the owner of a user namespace, of several in each other the outermost; 0 for the exporter's own one."""
    own = _OWN.stat().st_ino
    if place.stat().st_ino == own:
        return 0
    inside = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for _ in range(_DEEPEST):
            try:
                outside = ioctl(inside, _PARENT)
            except PermissionError:  # the outermost, or one outside the exporter's own
                break
            if os.fstat(outside).st_ino == own:
                os.close(outside)
                break
            os.close(inside)
            inside = outside
        [owner] = struct.unpack("=I", ioctl(inside, _OWNER, bytes(4)))
        return owner or b"user namespace %d" % os.fstat(inside).st_ino
    finally:
        os.close(inside)
