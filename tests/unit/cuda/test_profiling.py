"""The CUDA collector's profiles where they cannot be had, and where launches are probed in windows."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.bpf.native import BpfError
from exporter.cuda import profiling
from exporter.stack_profiles.published import StackProfiles


def test_a_node_that_cannot_has_the_reason_and_the_collector_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise BpfError(errno.EINVAL, "load stacks.bpf.o: Invalid argument\n  and the verifier's lines")

    monkeypatch.setattr(profiling, "CudaProfiling", refuse)
    published = StackProfiles(wanted=True)
    node: Any = SimpleNamespace(stack_profiles=published)
    cuda: Any = SimpleNamespace()
    assert profiling.create(node, cuda, "driver", lambda pid, device: {}, lambda: None, lambda pid: 0) is None
    assert published.source.problem() == "load stacks.bpf.o: Invalid argument"
    for profile in (published.source.inuse, published.source.alloc, published.source.launches):
        with pytest.raises(RuntimeError, match="Invalid argument"):
            profile()
