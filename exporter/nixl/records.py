"""Rows of the maps of bpf/nixl.bpf.c."""

from __future__ import annotations

from typing import Protocol

from exporter.call_collector import CountedMap, Duration


class Operation(Protocol):
    """struct duration_key: an operation of a backend."""

    operation: int
    backend: int


class TransferKey(Operation, Protocol):
    """struct transfer_key: an operation of a backend with one agent."""

    peer: bytes


class Transfers(Protocol):
    """struct transfers: by how they ended, and bytes of those that succeeded."""

    begun: int
    succeeded: int
    failed: int
    released: int
    unseen: int
    bytes: int
    unsized: int


TRANSFERS = CountedMap[TransferKey, Transfers]("transfers")
DURATIONS = CountedMap[Operation, Duration]("durations")
