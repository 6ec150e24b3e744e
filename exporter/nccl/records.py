"""Structures of bpf/nccl/nccl.h as ctypes has them: the records of `nccl_spans`."""

from __future__ import annotations

from typing import Protocol

Text = bytes
"""Another name: a field is called `bytes` too."""


class Identity(Protocol):
    """struct identity: a rank of a communicator. `hash` is 0 where it is not known."""

    hash: int
    rank: int
    nranks: int
    device: int


class NcclSpan(Protocol):
    """struct span: one call."""

    start_ns: int
    end_ns: int
    group_ns: int
    communicator: int
    sequence: int
    bytes: int
    stream: int
    tgid: int
    tid: int
    code: int
    type: int
    peer: int
    api: int
    kind: int
    origin: int
    depth: int
    captured: int
    partial: int

    @property
    def who(self) -> Identity: ...
    @property
    def comm(self) -> Text: ...
