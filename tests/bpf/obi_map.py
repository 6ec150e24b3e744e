"""The map that OpenTelemetry eBPF Instrumentation pins, in a BPF file system of its own."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Self

from exporter.bpf.native import check, library

LRU_HASH, HASH = 9, 1


class ObiMap:
    """A pinned map at `path`, which others may open. Needs root."""

    def __init__(self, folder: Path, kind: int = LRU_HASH, key: int = 8, value: int = 24) -> None:
        self._folder = folder / "bpf"
        self._folder.mkdir()
        subprocess.run(["mount", "-t", "bpf", "bpf", self._folder], check=True)
        self.path = self._folder / "otel" / "traces_ctx_v1"
        self.path.parent.mkdir()
        self.fd = check(_libbpf().bpf_map_create(kind, b"traces_ctx_v1", key, value, 64, None), "create a map")
        check(_libbpf().bpf_obj_pin(self.fd, os.fsencode(self.path)), "pin a map")

    def set(self, pid: int, tid: int, trace: str, span: str) -> None:
        key, value = (pid << 32 | tid).to_bytes(8, "little"), bytes.fromhex(trace + span)
        check(library().bpf_map_update_elem(self.fd, key, value, 0), "write a context")

    def delete(self, pid: int, tid: int) -> None:
        library().bpf_map_delete_elem(self.fd, (pid << 32 | tid).to_bytes(8, "little"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
        subprocess.run(["umount", self._folder], check=True)


def _libbpf() -> ctypes.CDLL:
    return ctypes.CDLL("libbpf.so.1", use_errno=True)
