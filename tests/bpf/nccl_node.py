"""The NCCL collector on real processes with stand-in libraries, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from exporter.bpf.targets import Targets
from exporter.collectors.nccl import FLAGS, Nccl
from exporter.governor.governor import Governor
from exporter.model import Span
from exporter.node import Node
from exporter.nvml.gpus import Gpus
from exporter.resolve.process import ProcessTable
from tests.bpf.cuda_node import BUILD, WITHIN, Observed, Script, build_standins, started
from tests.nodes import make_node

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


class NcclNode(Observed):
    """A running collector, the node it runs on, and questions to it."""

    def __init__(self, nccl: Nccl, targets: Targets, spans: list[Span], node: Node) -> None:
        super().__init__(nccl, targets, spans)  # type: ignore[arg-type]  # it uses what every BPF collector has
        self.nccl, self.node = nccl, node

    def spans_of(self, pid: int) -> list[Span]:
        return [span for span in self.spans if span.process["pid"] == str(pid)]


@contextmanager
def observe(
    gpus: Gpus | None = None, wants_spans: bool = True, governor: Governor | None = None, **settings: Any
) -> Iterator[NcclNode]:
    """The collector with these settings (dashes as underscores), attached to what runs and what comes."""
    spans: list[Span] = []
    targets = Targets()
    defaults = {flag.name: flag.default for flag in FLAGS}
    chosen = {key.replace("_", "-"): value for key, value in settings.items()}
    assert chosen.keys() <= defaults.keys()
    shared = {"gpus": gpus or Gpus(), "wants_spans": wants_spans, "governor": governor or Governor(0)}
    node = make_node(defaults | chosen, ProcessTable(), targets, spans.append, **shared)
    nccl = Nccl(node)
    nccl.start()
    try:
        targets.start()
        try:
            assert targets.scanned.wait(WITHIN)
            yield NcclNode(nccl, targets, spans, node)
        finally:
            targets.close()
    finally:
        nccl.close()
