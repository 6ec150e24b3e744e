"""The NCCL collector on real processes with stand-in libraries, for tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from exporter.collectors.nccl import FLAGS, Nccl
from exporter.governor.governor import Governor
from exporter.model import Span
from exporter.nvml.gpus import Gpus
from tests.bpf.cuda_node import BUILD, Script, build_standins, started
from tests.bpf.observed import Observed, running
from tests.support import until

__all__ = ["BUILD", "NcclNode", "Rank", "build_standins", "observe", "started"]

PRELUDE = """
from ctypes import c_char, c_int
class Id(ctypes.Structure): _fields_ = [('internal', c_char * 128)]
class Config(ctypes.Structure):
    _fields_ = [('size', c_size_t), ('magic', c_int), ('version', c_int), ('blocking', c_int)]
def init(rank, nranks, name, library=None):
    comm = c_void_p()
    lib_ = library or lib
    assert not lib_.ncclCommInitRank(byref(comm), nranks, Id(name), rank)
    return comm
def reduce_all(comm, count, type=7, library=None):
    return (library or lib).ncclAllReduce(None, None, size(count), type, 0, comm, c_void_p(0x51))
"""


class Rank(Script):
    """A Python process that calls a stand-in NCCL through ctypes; `run` executes lines in it and gives their `out`."""

    def __init__(self, library: str | Path = "libnccl.so.2", libraries: Path = BUILD) -> None:
        super().__init__(library, libraries)
        self.run(PRELUDE)


ENDS_STALL = "\nimport signal; signal.signal(signal.SIGUSR1, lambda *_: None)"
"""Lines after which `end_stall` ends a call that stalls."""


def end_stall(rank: Rank) -> None:
    """End a call that was begun and stalls, once it sleeps: a signal before that ends nothing."""
    until(lambda: Path(f"/proc/{rank.pid}/stat").read_text().rpartition(") ")[2].startswith("S"), "it sleeps")
    os.kill(rank.pid, signal.SIGUSR1)
    rank.answer()


class NcclNode(Observed):
    """A running collector, the node it runs on, and questions to it."""

    def spans_of(self, pid: int) -> list[Span]:
        return [span for span in self.spans if span.process["pid"] == str(pid)]


@contextmanager
def observe(
    gpus: Gpus | None = None, wants_spans: bool = True, governor: Governor | None = None, **settings: Any
) -> Iterator[NcclNode]:
    """The collector with these settings (dashes as underscores), attached to what runs and what comes."""
    shared = {"gpus": gpus or Gpus(), "wants_spans": wants_spans, "governor": governor or Governor(0)}
    with running(Nccl, FLAGS, shared=shared, **settings) as observed:
        yield NcclNode(observed.collector, observed.targets, observed.spans, observed.node)
