"""The folder of a site's probes. Files that others than root can have written are refused."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from exporter.custom.definition import Definition
from exporter.custom.parse import DefinitionError, parse

MOST_PROBES = 16
MOST_BYTES = 262_144
_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}", re.ASCII)
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH
_PASSING = (
    *(errno.EAGAIN, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT),
)
"""Of a shortage, and of a file system that does not answer now."""


class FolderError(ValueError):
    """A folder, or a file in it, that cannot be used. The text has the reason and what to do.

    A `passing` reason may go away by itself.
    """

    passing = False


def _unread(error: Exception, text: str) -> FolderError:
    made = FolderError(text)
    made.passing = isinstance(error, OSError) and error.errno in _PASSING
    return made


@dataclass(frozen=True, slots=True)
class ProbeSource:
    """A probe that can be compiled: its definition and its C text, read once from the files that were examined."""

    definition: Definition
    text: str


@dataclass(frozen=True, slots=True)
class RefusedProbe:
    """A probe that cannot be compiled, and the reason."""

    name: str
    reason: str


def fingerprint(folder: Path) -> tuple[tuple[str | int, ...], ...]:
    """Return a value that changes when a file of the folder is added, changed or removed, and with owner and mode of
    a file, of the folder and of those above it.

    Empty when the folder cannot be read.
    """
    try:
        resolved = folder.resolve(strict=True)
        places = [(str(place), place.stat()) for place in (resolved, *resolved.parents)]
        files = [(entry.name, entry.stat(follow_symlinks=False)) for entry in os.scandir(folder) if _stem(entry.name)]
    except (OSError, RuntimeError):
        return ()
    owned = [(name, it.st_uid, it.st_mode) for name, it in places]
    content = [(name, it.st_uid, it.st_mode, it.st_ino, it.st_mtime_ns, it.st_size) for name, it in files]
    return (*owned, *sorted(content))


def load(folder: Path, owner: int = 0) -> list[ProbeSource | RefusedProbe]:
    """Return every probe of the folder, by name. Files of others than the user `owner` are refused.

    Raises FolderError when the folder cannot be read, or others than root and `owner` can write in it.
    """
    try:
        resolved = folder.resolve(strict=True)
        for place in (resolved, *resolved.parents):
            _check_place(place, resolved, owner)
        descriptor = os.open(resolved, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, RuntimeError) as error:
        raise _unread(error, f"{folder} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        names = {entry.name for entry in os.scandir(descriptor)}
        stems = sorted({Path(name).stem for name in names if name.endswith((".c", ".yaml"))})
        found = [_load(descriptor, stem, names, owner) for stem in stems[:MOST_PROBES]]
        found += [RefusedProbe(_shown(stem), f"only {MOST_PROBES} probes are loaded") for stem in stems[MOST_PROBES:]]
        return [*_without_duplicates(found)]
    finally:
        os.close(descriptor)


def _load(folder: int, stem: str, names: set[str], owner: int) -> ProbeSource | RefusedProbe:
    try:
        if not _NAME.fullmatch(stem):
            raise FolderError("a probe's name is up to 48 small letters, digits and underscores, a letter first")
        for name in (f"{stem}.c", f"{stem}.yaml"):
            if name not in names:
                raise FolderError(f"there is no {name} beside its other file")
        meaning, text = (_read(folder, f"{stem}{suffix}", owner) for suffix in (".yaml", ".c"))
        return ProbeSource(parse(stem, meaning), text)
    except (FolderError, DefinitionError) as error:
        if isinstance(error, FolderError) and error.passing:
            raise
        return RefusedProbe(_shown(stem), str(error))


def _without_duplicates(found: list[ProbeSource | RefusedProbe]) -> Iterator[ProbeSource | RefusedProbe]:
    """Yield the probes; one with a metric of an earlier probe is refused."""
    first: dict[str, str] = {}
    for probe in found:
        if isinstance(probe, ProbeSource):
            names = [reading.metric.name.replace(".", "_") for reading in probe.definition.readings]
            other = next((name for name in names if name in first), "")
            if other:
                yield RefusedProbe(probe.definition.name, f"its metric {other} is declared in {first[other]}.yaml too")
                continue
            first.update(dict.fromkeys(names, probe.definition.name))
        yield probe


def _check_place(place: Path, folder: Path, owner: int) -> None:
    """Raise FolderError if others can replace files in `place`, the folder or one above it.

    In a sticky folder users can replace only their own files.
    """
    found = place.stat()
    if found.st_uid not in (0, owner):
        raise FolderError(f"{place} does not belong to root, so what is in it is not loaded: chown root {place}")
    if found.st_mode & _WRITABLE and (place == folder or not found.st_mode & stat.S_ISVTX):
        raise FolderError(f"others than root can write in {place}, so nothing is loaded: chmod go-w {place}")


def _read(folder: int, name: str, owner: int) -> str:
    """Return the text of a file, examined and read through one descriptor: no other file can replace it between.

    Raises FolderError for a file that others than root can write, or that is no UTF-8 text.
    """
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        raise _unread(error, f"{name} cannot be opened ({error.strerror}); it has to be a file, no link") from error
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise FolderError(f"{name} is not a file")
        if found.st_uid != owner:
            raise FolderError(f"{name} does not belong to root: chown root it")
        if found.st_mode & _WRITABLE:
            raise FolderError(f"others than root can write {name}: chmod go-w it")
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise FolderError(f"{name} is larger than {MOST_BYTES} bytes")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FolderError(f"{name} is not UTF-8 text (byte {error.start})") from error
    if "\0" in text:
        raise FolderError(f"{name} holds a zero byte")
    return text


def _stem(name: str) -> str:
    return Path(name).stem if name.endswith((".c", ".yaml")) else ""


def _shown(stem: str) -> str:
    return stem[:48].encode("ascii", "backslashreplace").decode()
