"""Structures of bpf/cuda/cuda.h as ctypes has them: the records of `cuda_spans` and `context_ends`."""

from __future__ import annotations

from typing import Protocol

Text = bytes
"""Another name: a field is called `bytes` too."""


class CudaSpan(Protocol):
    """struct span: one call."""

    start_ns: int
    end_ns: int
    bytes: int
    address: int
    context: int
    tgid: int
    tid: int
    code: int
    api: int
    memory: int
    direction: int
    host: int
    device: int

    @property
    def comm(self) -> Text: ...


class ContextEnd(Protocol):
    """struct context_end: a context that took with it what was allocated in it before."""

    context: int
    before_ns: int
    tgid: int
