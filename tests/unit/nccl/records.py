"""Records as bpf/nccl/nccl.bpf.c sends them, for tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from exporter.nccl.samples import Kinds

NAMES = ("AllReduce", "AlltoAll", "Send", "Recv", "PutSignal", "GroupEnd", "Init", "Destroy")
KINDS = Kinds(dict(enumerate(NAMES)), group_end=NAMES.index("GroupEnd"), none=99)
CREATION = 2


def record(kind: str = "AllReduce", rank: int = 0, **fields: Any) -> Any:
    """A call on a communicator of eight ranks that was seen from its creation on, by process 100 + rank."""
    who = SimpleNamespace(hash=fields.pop("hash", 0xABC), rank=rank, nranks=fields.pop("nranks", 8), device=0)
    defaults = {"start_ns": 1000, "end_ns": 2000, "group_ns": 0, "communicator": 5, "sequence": 0, "bytes": 0}
    defaults |= {"stream": 0, "tgid": 100 + rank, "tid": 100 + rank, "code": 0, "type": -1, "peer": -1, "api": 1}
    defaults |= {
        "kind": NAMES.index(kind),
        "origin": CREATION,
        "depth": 0,
        "captured": 0,
        "partial": 0,
        "comm": b"python\0",
    }
    assert fields.keys() <= defaults.keys()
    return SimpleNamespace(who=who, **(defaults | fields))
