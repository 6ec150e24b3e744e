"""Trace contexts of threads in the BPF map of OpenTelemetry eBPF Instrumentation (OBI), which pins it for others.

https://github.com/open-telemetry/opentelemetry-ebpf-instrumentation/blob/main/devdocs/trace-profile-correlation.md
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import re
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

from exporter.bpf.native import BpfError, library

AGAIN_SECONDS = 30.0
"""Time after which the file is opened again: OBI may have started, or have made another map."""
_LRU_HASH, _KEY_BYTES, _VALUE_BYTES = 9, 8, 24
_READ_ONLY = 1 << 3
"""BPF_F_RDONLY of enum bpf_map_update flags in linux/bpf.h."""
_FIELD = re.compile(r"^(map_type|key_size|value_size):\s*(\d+)$", re.MULTILINE)
_KEY = struct.Struct("=Q")
_ABSENT = (errno.ENOENT, errno.ENOTDIR)

Context = tuple[str, str]
"""Trace id and span id, 32 and 16 lower-case hex digits."""
log = logging.getLogger(__name__)


class _Options(ctypes.Structure):
    """struct bpf_obj_get_opts of libbpf's bpf.h."""

    _fields_ = [("sz", ctypes.c_size_t), ("file_flags", ctypes.c_uint32), ("unused", ctypes.c_uint32)]


class ObiContexts:
    """The context that a thread has now. The map is only read. Safe from any thread."""

    def __init__(self, path: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._path, self._now = path, now
        self._lock = threading.Lock()
        self._map = -1
        self._opened = -AGAIN_SECONDS
        self._refusal = ""

    def of(self, pid: int, tid: int) -> Context | None:
        """Return the context of a thread; None if there is none, or no map of the known shape."""
        value = ctypes.create_string_buffer(_VALUE_BYTES)
        with self._lock:
            if self._now() - self._opened >= AGAIN_SECONDS:
                self._open()
            if self._map < 0 or library().bpf_map_lookup_elem(self._map, _KEY.pack(pid << 32 | tid), value):
                return None
        return context(value.raw)

    def close(self) -> None:
        """Close the map; the next query opens it again."""
        with self._lock:
            self._close()
            self._opened = -AGAIN_SECONDS

    def _open(self) -> None:
        self._close()
        self._opened = self._now()
        refusal = ""
        try:
            self._path.lstat()  # most nodes have none, and need no libbpf for that
            self._map = _open_map(self._path)
        except OSError as error:
            if error.errno not in _ABSENT:
                refusal = str(error).partition("\n")[0]
        if refusal and refusal != self._refusal:
            log.warning("trace contexts of OBI are not read: %s", refusal)
        self._refusal = refusal

    def _close(self) -> None:
        if self._map >= 0:
            os.close(self._map)
        self._map = -1


def _open_map(path: Path) -> int:
    """Return a descriptor of a pinned map of the known shape. Raises OSError."""
    options = _Options(sz=ctypes.sizeof(_Options), file_flags=_READ_ONLY)
    found = int(library().bpf_obj_get_opts(os.fsencode(path), ctypes.byref(options)))
    if found < 0:
        raise BpfError(-found, f"open {path}: {os.strerror(-found)}")
    try:
        shape = {name: int(value) for name, value in _FIELD.findall(Path(f"/proc/self/fdinfo/{found}").read_text())}
        if shape != {"map_type": _LRU_HASH, "key_size": _KEY_BYTES, "value_size": _VALUE_BYTES}:
            raise BpfError(errno.EINVAL, f"{path} is no map of type LRU_HASH with keys of 8 bytes and values of 24")
    except BaseException:
        os.close(found)
        raise
    return found


def context(value: bytes) -> Context | None:
    """Return a value of the map; None for ids that are none (W3C Trace Context)."""
    trace, span = value[:16], value[16:24]
    return (trace.hex(), span.hex()) if any(trace) and any(span) else None
