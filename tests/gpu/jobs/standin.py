"""The dry run's job: it calls the stand-in libraries as a framework would, and counts what it does."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from tests.gpu.jobs.protocol import serve
from tests.standins.nvml import UUID

BLOCK, BATCH = 64 << 20, 1 << 20
H2D, D2H = 1, 2


class Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]


class Cuda:
    def __init__(self) -> None:
        self._runtime = ctypes.CDLL("libcudart.so.12")
        self.reserved = 0
        self._pinned, self._device = ctypes.c_void_p(), ctypes.c_void_p()
        self._pageable = ctypes.create_string_buffer(BATCH)

    def train(self, steps: int, launches: int, graphs: int) -> Mapping[str, Any]:
        """Each step allocates a block that stays, launches, and copies one batch each way."""
        one = Dim3(1, 1, 1)
        if not self._pinned:
            self._call("cudaMallocHost", ctypes.byref(self._pinned), ctypes.c_size_t(BATCH))
        for _ in range(steps):
            self._call("cudaMalloc", ctypes.byref(self._device), ctypes.c_size_t(BLOCK))
            self.reserved += BLOCK
            self._copy(self._device, self._pinned, H2D)
            self._copy(self._device, self._pageable, H2D)
            self._copy(self._pinned, self._device, D2H)
            for _ in range(launches):
                self._call("cudaLaunchKernel", None, one, one, None, ctypes.c_size_t(0), None)
            for _ in range(graphs):
                self._call("cudaGraphLaunch", None, None)
            self._call("cudaDeviceSynchronize")
        copied = {"h2d pinned": BATCH * steps, "h2d pageable": BATCH * steps, "d2h pinned": BATCH * steps}
        return {
            "runtime_launches": launches * steps,
            "driver_launches": 0,
            "graph_launches": graphs * steps,
            "copied": copied,
            "reserved": self.reserved,
        }

    def tiny(self, steps: int) -> Mapping[str, Any]:
        one = Dim3(1, 1, 1)
        for _ in range(100 * steps):
            self._call("cudaLaunchKernel", None, one, one, None, ctypes.c_size_t(0), None)
        return {}

    def _copy(self, to: Any, source: Any, direction: int) -> None:
        self._call("cudaMemcpyAsync", to, source, ctypes.c_size_t(BATCH), direction, None)

    def _call(self, function: str, *arguments: Any) -> None:
        result = getattr(self._runtime, function)(*arguments)
        if result:
            raise SystemExit(f"{function} returned {result}")


class Nccl:
    """A communicator of one rank."""

    COUNT, FLOAT, SUM = 1 << 20, 7, 0

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnccl.so.2")
        self._communicator = ctypes.c_void_p()
        self._call("ncclCommInitAll", ctypes.byref(self._communicator), 1, None)

    def collectives(self, steps: int) -> Mapping[str, Any]:
        for _ in range(steps):
            self._call(
                "ncclAllReduce", None, None, ctypes.c_size_t(self.COUNT), self.FLOAT, self.SUM, self._communicator, None
            )
        rank, ranks = ctypes.c_int(-1), ctypes.c_int(-1)
        self._call("ncclCommUserRank", self._communicator, ctypes.byref(rank))
        self._call("ncclCommCount", self._communicator, ctypes.byref(ranks))
        all_reduce = {"calls": steps, "bytes": steps * self.COUNT * 4}
        return {"AllReduce": all_reduce, "rank": rank.value, "nranks": ranks.value}

    def _call(self, function: str, *arguments: Any) -> None:
        result = getattr(self._library, function)(*arguments)
        if result:
            raise SystemExit(f"{function} returned {result}")


if __name__ == "__main__":
    cuda = Cuda()
    nccl = {"collectives": Nccl().collectives} if "collectives" in sys.argv else {}
    loops = {"eager": partial(cuda.train, launches=23, graphs=0), "graphs": partial(cuda.train, launches=0, graphs=3)}
    serve(
        {**loops, **nccl, "plain": cuda.tiny, "tiny": cuda.tiny},
        UUID.format(0),
        "only a machine with a GPU and PyTorch can: here is no compiler for kernels",
    )
