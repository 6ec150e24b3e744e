"""The resource that the OpenTelemetry SDK of a process publishes in the process's memory (OTEP 4719, version 2).

https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4719-process-ctx.md

A mapping with a known name begins with a header that points to a message of Protocol Buffers. All of it may be written
by the process at any time, and is checked: only anonymous memory is read, and no more than a few kilobytes of it.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from exporter import process_memory
from exporter.kubernetes.protobuf import fields, messages
from exporter.model import Labels
from exporter.stacks.memory import Memory, Unreadable

AGAIN_SECONDS = 30.0
"""Time after which a process is read again: an SDK may publish late, and change what it has published."""
MOST_PROCESSES, MOST_ATTRIBUTES, MOST_TRIES = 2048, 64, 3
MOST_MAPS, MOST_PAYLOAD, MOST_VALUE = 4 << 20, 65_536, 255
NAMES = (b"[anon_shmem:OTEL_CTX]", b"[anon:OTEL_CTX]", b"/memfd:OTEL_CTX", b"/memfd:OTEL_CTX (deleted)")
SIGNATURE, VERSION = b"OTEL_CTX", 2
HEADER = struct.Struct("=8sIIQQ")
"""Signature, version, size of the payload, time of publication (0 while it is written), address of the payload."""
_MAPPING = re.compile(rb"([0-9a-f]{1,16})-([0-9a-f]{1,16}) (r)?\S* [0-9a-f]+ \S+ (\d+) *(.*)")
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}", re.ASCII)
_AT_ONCE = 1 << 16
_INT, _SIGN = 1 << 64, 1 << 63


@dataclass(frozen=True, slots=True)
class _Published:
    """The attributes that were read of a process; `started` is its start time in clock ticks after boot."""

    started: int | None
    read: float
    attributes: Labels


class ProcessContexts:
    """The attributes that processes publish, as last read while each lived. Safe from any thread."""

    def __init__(self, proc: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._proc, self._now = proc, now
        self._lock = threading.Lock()
        self._known: OrderedDict[int, _Published] = OrderedDict()

    def attributes(self, pid: int, started: int | None) -> Labels:
        """Return the resource attributes that a process publishes, none where there are none. Never raises."""
        now = self._now()
        with self._lock:
            known = self._known.get(pid)
        same = known if known and known.started == started else None
        if same and now - same.read < AGAIN_SECONDS:
            return same.attributes
        try:
            found: Labels = process_memory.patiently(self._proc, pid, published)
        except OSError:  # it has ended, or does not answer, or may not be read
            found = same.attributes if same else {}
        with self._lock:
            self._known[pid] = _Published(started, now, found)
            self._known.move_to_end(pid)
            while len(self._known) > MOST_PROCESSES:
                self._known.popitem(last=False)
        return found


def published(folder: Path) -> Labels:
    """Return the attributes that the process of a folder in /proc publishes; none if they are malformed.

    Raises OSError if the process cannot be read, or is writing them.
    """
    maps = _maps(folder)
    if SIGNATURE not in maps:  # of nearly all processes
        return {}
    mappings = list(_anonymous(maps))
    headers = [it for it in mappings if it.name in NAMES and it.end - it.start >= HEADER.size]
    if not headers:
        return {}
    memory = Memory(os.open(folder / "mem", os.O_RDONLY | os.O_CLOEXEC))
    try:
        for it in headers:
            if (payload := _payload(memory, it.start, mappings)) is not None:
                return attributes(payload)
    finally:
        memory.close()
    return {}


@dataclass(frozen=True, slots=True)
class _Mapping:
    start: int
    end: int
    name: bytes


def _maps(folder: Path) -> bytes:
    """Return /proc/PID/maps, at most MOST_MAPS bytes of it."""
    parts, left = [], MOST_MAPS
    with (folder / "maps").open("rb", buffering=0) as file:
        while left > 0 and (part := file.read(min(left, _AT_ONCE))):
            parts.append(part)
            left -= len(part)
    return b"".join(parts)


def _anonymous(maps: bytes) -> Iterator[_Mapping]:
    """Yield readable mappings of memory that is in no file system and of no device."""
    for line in maps.split(b"\n")[:-1]:
        found = _MAPPING.fullmatch(line)
        if found and found[3] and (found[4] == b"0" or found[5].startswith(b"/memfd:")):
            yield _Mapping(int(found[1], 16), int(found[2], 16), found[5])


def _payload(memory: Memory, header: int, mappings: list[_Mapping]) -> bytes | None:
    """Return what the header at an address points to, read while it did not change; None where it is no header.

    Raises BlockingIOError if it is being written.
    """
    for _ in range(MOST_TRIES):
        try:
            before = memory.read(header, HEADER.size)
            signature, version, size, at, address = HEADER.unpack(before)
            if signature != SIGNATURE or version != VERSION or not 0 < size <= MOST_PAYLOAD:
                return None
            if not any(it.start <= address and address + size <= it.end for it in mappings):
                return None
            payload = memory.read(address, size)
            if at and memory.read(header, HEADER.size) == before:
                return payload
        except Unreadable:
            return None
    raise BlockingIOError(errno.EAGAIN, "the process is writing what it publishes")


def attributes(payload: bytes) -> Labels:
    """Return the resource attributes of a ProcessContext, or of a Resource, which the first text has in its place.

    Attributes that are malformed are left out, all of them if the message is.
    """
    for resources in (_resources, lambda message: [message]):
        try:
            found = dict(_pairs(resources(memoryview(payload))))
        except ValueError:
            continue
        if found:
            return found
    return {}


def _resources(message: memoryview) -> list[memoryview]:
    return list(messages(message, 1))


def _pairs(resources: list[memoryview]) -> Iterator[tuple[str, str]]:
    """Yield the first attributes. Raises ValueError for a malformed message."""
    pairs = [pair for resource in resources for pair in messages(resource, 1)]
    for pair in pairs[:MOST_ATTRIBUTES]:
        keys, values = list(messages(pair, 1)), list(messages(pair, 2))
        if not keys:
            raise ValueError("an attribute without a key")
        key = bytes(keys[-1][: MOST_VALUE + 1]).decode("utf-8")
        value = _text(values[-1]) if values else ""
        if value and _KEY.fullmatch(key):
            yield key, value


def _text(value: memoryview) -> str:
    """Return a string, boolean or number (AnyValue) as text, other values and what cannot be printed as none."""
    text = ""
    for number, content in fields(value):
        if number == 1 and not isinstance(content, int):
            text = bytes(content[: 4 * MOST_VALUE]).decode("utf-8", "replace")[:MOST_VALUE]
        elif number == 2 and isinstance(content, int):
            text = "true" if content else "false"
        elif number == 3 and isinstance(content, int):
            text = str((content & (_INT - 1)) - (_INT if content & _SIGN else 0))
        elif number == 4 and not isinstance(content, int) and len(content) == 8:
            text = repr(struct.unpack("<d", content)[0])
    return text if text.isprintable() else ""
