"""Find files of debug information in the root of an observed process: debug files, and their supplementary files.

Debian, Ubuntu and RHEL install debug files by build id. dwz moves what several debug files have in common into a
supplementary file, in a folder .dwz. debuginfod's clients (gdb, perf, elfutils) keep both by build id in a cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_REQUEST = re.compile(rb"(\d{1,9}) (\d{1,9}) ([0-9a-f]{8,64})(?: ([\w.+~/-]{1,200}))?", re.ASCII)
_INSTALLED = ("usr", "lib", "debug")
_DWZ = ".dwz"
_MOST_ENVIRONMENT = 1 << 17
_MOST_NAMES = 32
"""Folders in a path."""
_CACHES = (("DEBUGINFOD_CACHE_PATH", ""), ("XDG_CACHE_HOME", "debuginfod_client"), ("HOME", ".cache/debuginfod_client"))
"""Variables and what follows them, in the order of debuginfod_find_debuginfo(3)."""


class WantedFile(NamedTuple):
    """A file of debug information: its build id, and its path below the folder .dwz if it is a supplementary one."""

    build_id: str
    dwz: str = ""


class Request(NamedTuple):
    """A file of debug information that the mapped file `number` of the process `pid` refers to."""

    pid: int
    number: int
    wanted: WantedFile


def message(request: Request) -> bytes:
    """Return a request as bytes, without a path that has other characters than packages use."""
    text = f"{request.pid} {request.number} {request.wanted.build_id}".encode()
    whole = text + b" " + request.wanted.dwz.encode()
    return whole if _REQUEST.fullmatch(whole) else text


def request(data: bytes) -> Request | None:
    """Return the request in bytes of a process that is not trusted; None where there is none."""
    if not (found := _REQUEST.fullmatch(data)):
        return None
    pid, number, build_id, dwz = (it.decode() for it in found.groups(b""))
    return Request(int(pid), int(number), WantedFile(build_id, dwz))


def below_dwz(path: str) -> str:
    """Return the part of the path of a supplementary file that is below the folder .dwz; empty without this folder.

    The path is that in .gnu_debugaltlink: absolute, or relative to the folder of the file that refers to it.
    """
    return path.rpartition(f"/{_DWZ}/")[2] if f"/{_DWZ}/" in path else ""


def places(request: Request) -> Iterator[Sequence[str]]:
    """Yield the places of a file, as names of folders and a file from the root of the process."""
    build_id, dwz = request.wanted
    if dwz:
        yield from _path(*_INSTALLED, _DWZ, dwz)
    yield (*_INSTALLED, ".build-id", build_id[:2], f"{build_id[2:]}.debug")
    for cache in _caches(request.pid):
        yield from _path(cache, build_id, "debuginfo")


def _caches(pid: int) -> Iterator[str]:
    """Yield the folders of debuginfod's clients for the user of a process, by the variables that it began with."""
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            pairs = [it.partition(b"=") for it in file.read(_MOST_ENVIRONMENT).split(b"\0")]
    except OSError:
        return
    variables = {name.decode(errors="replace"): value.decode(errors="surrogateescape") for name, _, value in pairs}
    for name, folder in _CACHES:
        if variables.get(name, "").startswith("/"):
            yield f"{variables[name]}/{folder}"


def _path(*parts: str) -> Iterator[Sequence[str]]:
    """Yield the names in a path, unless it leads upwards or is too long."""
    names = [it for it in "/".join(parts).split("/") if it not in ("", ".")]
    if ".." not in names and len(names) <= _MOST_NAMES:
        yield names
