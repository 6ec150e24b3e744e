"""The CUDA collector's profiles where they cannot be had, and where launches are probed in windows."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.bpf.native import BpfError
from exporter.bpf.sampled_file import SampledFile
from exporter.cuda import profiling
from exporter.stack_profiles.published import StackProfiles


def test_a_node_that_cannot_has_the_reason_and_the_collector_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise BpfError(errno.EINVAL, "load stacks.bpf.o: Invalid argument\n  and the verifier's lines")

    monkeypatch.setattr(profiling, "Profiling", refuse)
    published = StackProfiles(wanted=True)
    node: Any = SimpleNamespace(stack_profiles=published)
    cuda: Any = SimpleNamespace()
    assert profiling.create(node, cuda, "driver", lambda pid, device: {}, lambda: None) is None
    assert published.source.problem() == "load stacks.bpf.o: Invalid argument"
    for profile in (published.source.inuse, published.source.alloc, published.source.launches):
        with pytest.raises(RuntimeError, match="Invalid argument"):
            profile()


class Probes:
    """Probes of files, which note what is attached and detached."""

    def __init__(self, name: str, files: Mapping[int, str], seen: list[tuple[str, str, bool]]) -> None:
        self._name, self._files, self._seen = name, files, seen

    def price(self, symbol: str) -> float | None:
        return 1e-7

    def sampled_files(self) -> Mapping[int, SampledFile]:
        return {
            key: SampledFile(
                file, ["cuLaunchKernel"], [7], lambda on, file=file: self._seen.append((self._name, file, on))
            )
            for key, file in self._files.items()
        }


def test_in_windows_stacks_come_and_go_with_the_launches() -> None:
    seen: list[tuple[str, str, bool]] = []
    both = profiling._Together(Probes("cuda", {1: "a", 2: "b"}, seen), Probes("stacks", {1: "a", 3: "c"}, seen))
    assert both.price("cuLaunchKernel") == 1e-7
    for file in both.sampled_files().values():
        file.probe(False)
    assert seen == [("cuda", "a", False), ("stacks", "a", False), ("cuda", "b", False)]
