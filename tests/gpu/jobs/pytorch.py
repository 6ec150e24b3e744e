"""The job on a GPU: a transformer block with AdamW, eager, compiled and in a CUDA graph, counted by torch.profiler."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tests.gpu.jobs.protocol import Loop, serve

try:
    import torch
    from torch.profiler import ProfilerActivity, profile
except ImportError as error:
    raise SystemExit(f"PyTorch cannot be imported ({error}): carry its wheels, see tests/gpu/README.md") from error

WIDTH, LENGTH, BATCH = 1024, 512, 8
PINNED, PAGEABLE = 8 << 20, 3 << 20


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no GPU")
    torch.manual_seed(0)
    trainer = Trainer()
    loops: dict[str, Loop] = {
        "eager": lambda steps: counted(trainer.step, steps),
        "plain": lambda steps: plain(trainer.step, steps),
        "tiny": lambda steps: plain(trainer.tiny, steps),
        "copies": copies,
    }
    why = []
    costly: dict[str, Callable[[], Loop]] = {
        "compiled": lambda: partial(counted, trainer.compiled()),
        "graphs": lambda: partial(counted, trainer.graph()),
        "collectives": collectives,
    }
    for name in costly.keys() & set(sys.argv):
        try:
            loops[name] = costly[name]()
        except Exception as error:  # what lacks differs from build to build; the reason is printed
            why.append(f"{name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    serve(loops, uuid if uuid.startswith("GPU-") else f"GPU-{uuid}", "; ".join(why))


class Trainer:
    """One model and its optimiser."""

    def __init__(self) -> None:
        self._model = torch.nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, batch_first=True, dropout=0.0).cuda()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4, capturable=True)
        self._batch = torch.randn(BATCH, LENGTH, WIDTH, device="cuda")
        self._small = torch.zeros(32, device="cuda")

    def step(self, model: Callable[[Any], Any] | None = None) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        (model or self._model)(self._batch).square().mean().backward()
        self._optimizer.step()

    def tiny(self) -> None:
        for _ in range(1000):
            self._small.add_(1)

    def compiled(self) -> Callable[[], None]:
        model = torch.compile(self._model)
        for _ in range(3):
            self.step(model)
        return lambda: self.step(model)

    def graph(self) -> Callable[[], None]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        replay: Callable[[], None] = graph.replay
        return replay


def plain(step: Callable[[], None], steps: int) -> Mapping[str, Any]:
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return {}


def counted(step: Callable[[], None], steps: int) -> Mapping[str, Any]:
    """The launches that CUPTI saw through torch.profiler: none is lost in a window as short as this."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        plain(step, steps)
    calls = Counter(re.sub(r"_ptsz$", "", event.name) for event in seen.events())
    return {
        "runtime_launches": sum(calls[it] for it in ("cudaLaunchKernel", "cudaLaunchKernelExC", _COOPERATIVE)),
        "driver_launches": sum(calls[it] for it in ("cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel")),
        "graph_launches": calls["cudaGraphLaunch"],
        "reserved": torch.cuda.memory_reserved(),
    }


_COOPERATIVE = "cudaLaunchCooperativeKernel"


def copies(steps: int) -> Mapping[str, Any]:
    """Known bytes, pinned and pageable; buffers are made before the first byte is counted."""
    pinned = torch.empty(PINNED, dtype=torch.uint8, pin_memory=True)
    pageable = torch.empty(PAGEABLE, dtype=torch.uint8)
    device = torch.empty(PINNED, dtype=torch.uint8, device="cuda")
    for _ in range(steps):
        device.copy_(pinned, non_blocking=True)
        pinned.copy_(device, non_blocking=True)
        device[:PAGEABLE].copy_(pageable)
        pageable.copy_(device[:PAGEABLE])
    torch.cuda.synchronize()
    moved = {"h2d pinned": PINNED, "d2h pinned": PINNED, "h2d pageable": PAGEABLE, "d2h pageable": PAGEABLE}
    return {"copied": {route: size * steps for route, size in moved.items()}}


def collectives() -> Loop:
    """One rank that is all of its communicator."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    data = torch.ones(1 << 20, device="cuda")
    torch.distributed.all_reduce(data)

    def loop(steps: int) -> Mapping[str, Any]:
        for _ in range(steps):
            torch.distributed.all_reduce(data)
        torch.cuda.synchronize()
        return {"AllReduce": {"calls": steps, "bytes": steps * data.nbytes}, "rank": 0, "nranks": 1}

    return loop


if __name__ == "__main__":
    main()
