"""Families of processes that use a GPU, which may serve its requests: same container or pod, or process tree."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from exporter.resolve import cgroup

MOST = 8192
_PARENT = re.compile(rb"\) \S (\d+) ", re.DOTALL)
_INIT = 1


@dataclass(frozen=True, slots=True)
class FamilyMember:
    """A running process: its parent, and the pod or container, or else the control group, that it is in."""

    parent: int
    group: str


def families(proc: Path, users: Collection[int]) -> set[int]:
    """Return the processes of the families of these users of GPUs, the users included; at most MOST."""
    return members(processes(proc), users) if users else set()


def members(seen: Mapping[int, FamilyMember], users: Collection[int]) -> set[int]:
    """Return who is in the group of a user, or comes from the eldest process above the user that is in its group."""
    users = [pid for pid in users if pid in seen]
    groups = {seen[pid].group for pid in users if seen[pid].group}
    known: dict[int, int] = {}
    eldest = {_eldest(seen, pid, known) for pid in users}
    children: dict[int, list[int]] = {}
    for pid, it in seen.items():
        children.setdefault(it.parent, []).append(pid)
    found: set[int] = set()
    queue = [*eldest, *(pid for pid, it in seen.items() if it.group in groups)]
    while queue and len(found) < MOST:
        pid = queue.pop()
        if pid not in found:
            found.add(pid)
            queue += children.get(pid, ())
    return found


def processes(proc: Path) -> dict[int, FamilyMember]:
    """Return all processes there are now."""
    found = {}
    with os.scandir(proc) as entries:
        names = [entry.name for entry in entries if entry.name.isdecimal()]
    for name in names:
        stat, group = _read(f"{proc}/{name}/stat"), _read(f"{proc}/{name}/cgroup").decode("utf-8", "replace")
        parent = _PARENT.match(stat, stat.rfind(b") "))
        if parent:
            found[int(name)] = FamilyMember(int(parent[1]), _group(group))
    return found


def _eldest(seen: Mapping[int, FamilyMember], pid: int, known: dict[int, int]) -> int:
    """Return the uppermost process above one that is in its group; `known` has it for processes met before."""
    path = []
    while pid not in known:
        known[pid] = pid
        path.append(pid)
        parent = seen[pid].parent
        if parent != _INIT and parent in seen and seen[parent].group == seen[pid].group:
            pid = parent
    eldest = known[pid]
    known.update(dict.fromkeys(path, eldest))
    return eldest


def _group(text: str) -> str:
    """Return the pod or the container; nothing for a process that is in none."""
    found = cgroup.parse(text)
    return found.pod_uid or found.container_id


def _read(path: str) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, 16_384)
    except OSError:
        return b""
    finally:
        os.close(file)
