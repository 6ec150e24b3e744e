"""Rows of the maps of bpf/cufile.bpf.c."""

from __future__ import annotations

from typing import Protocol

from exporter.call_collector import CountedMap, Duration


class Filesystem(Protocol):
    """struct filesystem."""

    name: bytes


class IoKey(Protocol):
    """struct io_key: requests by function, operation and file system."""

    api: int
    opcode: int
    filesystem: Filesystem


class Io(Protocol):
    """struct io."""

    requests: int
    succeeded: int
    bytes: int
    took: Duration


IO = CountedMap[IoKey, Io]("io")
