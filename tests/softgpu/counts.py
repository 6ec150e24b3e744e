"""Counts by the soft GPU's libraries of their own calls (counts.h), of a process that runs or has ended."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

_ROW = struct.Struct("=56sQQq")
_MEMORY, _GPU, _COPIED, _RECORDED = "memory ", "gpu ", "copied ", "recorded "


class Count(NamedTuple):
    """Of a function: calls and failures. Of memory and GPUs: allocations, bytes in use. Of copies: number, bytes."""

    calls: int
    failures: int
    bytes: int


class Counts:
    """The counts of one process by one library, "libcuda" or "libcudart", at the time of reading."""

    def __init__(self, folder: Path, pid: int, library: str = "libcuda") -> None:
        file = folder / f"{pid}.{library}"
        rows = _ROW.iter_unpack(file.read_bytes()) if file.exists() else ()
        self._rows = {name.rstrip(b"\0").decode(): Count(*values) for name, *values in rows if name[0]}

    def calls(self, function: str) -> int:
        return self._rows.get(function, Count(0, 0, 0)).calls

    @property
    def functions(self) -> dict[str, Count]:
        """The rows of functions."""
        return {name: row for name, row in self._rows.items() if " " not in name}

    @property
    def memory(self) -> dict[str, int]:
        """Bytes in use by kind of memory, those that are not 0."""
        found = {name.removeprefix(_MEMORY): row.bytes for name, row in self._rows.items() if name.startswith(_MEMORY)}
        return {kind: size for kind, size in found.items() if size}

    @property
    def gpus(self) -> dict[int, int]:
        """Bytes in use on each GPU, by NVML's number, on which there were any, without those of pinned host memory."""
        return {int(name.removeprefix(_GPU)): row.bytes for name, row in self._rows.items() if name.startswith(_GPU)}

    def busy_seconds(self, gpu: int) -> float:
        """For how long kernels ran on a GPU, or are to run yet."""
        return self._rows.get(f"busy {gpu}", Count(0, 0, 0)).bytes / 1e9

    @property
    def copied(self) -> dict[str, int]:
        """Bytes copied, by direction and host memory: "h2d pinned", "d2d"."""
        return self._bytes(_COPIED)

    @property
    def recorded(self) -> dict[str, int]:
        """The same of copies that the capture of a stream recorded."""
        return self._bytes(_RECORDED)

    def _bytes(self, kind: str) -> dict[str, int]:
        return {name.removeprefix(kind): row.bytes for name, row in self._rows.items() if name.startswith(kind)}

    @property
    def missing(self) -> list[str]:
        """Functions of the driver that were looked up and that nobody has written."""
        return sorted(name.removeprefix("missing ") for name in self._rows if name.startswith("missing "))
