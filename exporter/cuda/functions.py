"""The CUDA functions that are hooked, declared once: how each is hooked, and what it does when it succeeds.

Names, arguments and which variants exist are from cuda.h, cudaTypedefs.h and cuda_runtime_api.h of CUDA 12.9 and 13.5
(tests/program/cuda/test_functions.py). Programs and effects are those of bpf/cuda/cuda.bpf.c and bpf/cuda/functions.h.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from dataclasses import dataclass

from exporter.bpf.btf import Btf
from exporter.bpf.hook import Hook
from exporter.bpf.rehearsal import Scene

NO_ARGUMENT = 255
LAUNCHES, TRANSFERS, MEMORY = GROUPS = ("launches", "transfers", "memory")
"""Groups of functions that are left out together, in this order: enum group of bpf/cuda/functions.h."""


def layer(symbol: str) -> str:
    """Return the API of a function by its name: "driver" or "runtime"."""
    return "runtime" if symbol.startswith("cuda") else "driver"


@dataclass(frozen=True, slots=True)
class CudaFunction:
    """One hooked symbol. `bytes_at` and `host_at` are argument positions of copies; of a new context, its device's."""

    name: str
    program: str
    effect: str = "none"
    memory: str = "device"
    direction: str = "unknown"
    bytes_at: int = NO_ARGUMENT
    host_at: int = NO_ARGUMENT
    launches: str = ""
    """Kind of work that a call launches: "kernel" or "graph"; empty for none."""

    @property
    def layer(self) -> str:
        return layer(self.name)

    @property
    def group(self) -> str:
        """The functions with which it may be left out where it costs too much; empty for none."""
        if self.launches:
            return LAUNCHES
        if self.effect.startswith("copy") or self.effect == "wait":
            return TRANSFERS if self.program == "on_enter" else ""
        return MEMORY if self.effect.startswith(("allocate", "register")) or self.effect == "free" else ""

    def cookie(self, types: Btf, api: int) -> int:
        """The 64-bit number its probes carry: struct cookie of bpf/cuda/functions.h."""
        named = {
            field: types.enum(field)[f"{field}_{getattr(self, field)}"]
            for field in ("layer", "effect", "memory", "direction")
        }
        cookie = types.struct("cookie")(api=api, bytes_at=self.bytes_at, host_at=self.host_at, **named)
        return int.from_bytes(bytes(cookie), sys.byteorder)

    def hooks(self, types: Btf, api: int, all_errors: bool, bounded: Collection[str] = ()) -> list[Hook]:
        """Return what runs at it. `all_errors`: errors are counted also where the result is otherwise of no interest.

        `bounded`: the groups of functions that may be left out. Not launches if their errors count too.
        """
        cookie = self.cookie(types, api)
        group = self.group if self.group in bounded else ""
        own = f"{self.program}_of_one" if group else ""
        if self.program in ("on_enter", "on_free"):  # these count calls too
            window = "on_window" if group else ""
            return [
                Hook(self.program, cookie, numbered=True, sampled=group, of_one=own, window=window),
                Hook(
                    "on_return", cookie, returns=True, numbered=True, sampled=group, of_one="on_return" if group else ""
                ),
            ]
        failing = (
            [Hook("on_failure", cookie, returns=True, gated=True)]
            if all_errors and self.program != "on_context"
            else []
        )
        if failing:
            group = own = ""
        return [Hook(self.program, cookie, gated=True, sampled=group, of_one=own), *failing]


def scene(function: CudaFunction) -> Scene:
    """The calls tried for the cost of this function: those with the same hooks and a similar effect."""
    if function.launches:
        return ("cuLaunchKernel",)
    if function.program == "on_context":
        return ("cuCtxSetCurrent",)
    if function.program == "on_call":
        return ("cudaMemcpy",)
    if function.effect in ("create", "release", "retain", "map", "unmap"):
        return ("cuMemCreate", "cuMemRelease")
    if function.program == "on_free" or function.effect.startswith(("allocate", "register")):
        return ("cuMemAlloc_v2", "cuMemFree_v2")
    if function.effect.startswith("copy"):
        return ("cuMemcpyHtoD_v2",)
    return ("cuStreamSynchronize",) if function.effect == "wait" else ("cuArrayCreate_v2",)


def _all(
    names: str,
    program: str,
    variant: str = "",
    *,
    effect: str = "none",
    memory: str = "device",
    direction: str = "unknown",
    bytes_at: int = NO_ARGUMENT,
    host_at: int = NO_ARGUMENT,
    launches: str = "",
) -> tuple[CudaFunction, ...]:
    """Each name, and each with the suffix of its per-thread-stream variant."""
    return tuple(
        CudaFunction(name + suffix, program, effect, memory, direction, bytes_at, host_at, launches)
        for name in names.split()
        for suffix in dict.fromkeys(("", variant))
    )


def _copies(
    names: str, variant: str, direction: str = "unknown", bytes_at: int = 2, host_at: int = NO_ARGUMENT
) -> tuple[CudaFunction, ...]:
    return _all(names, "on_enter", variant, effect="copy", direction=direction, bytes_at=bytes_at, host_at=host_at)


_DRIVER = (
    *_all("cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel", "on_launch", "_ptsz", launches="kernel"),
    *_all(
        "cuLaunch cuLaunchGrid cuLaunchGridAsync cuLaunchCooperativeKernelMultiDevice", "on_launch", launches="kernel"
    ),
    *_all("cuGraphLaunch", "on_launch", "_ptsz", launches="graph"),
    *_all("cuMemAlloc_v2", "on_enter", effect="allocate"),
    *_all("cuMemAllocPitch_v2", "on_enter", effect="allocate_pitch"),
    *_all("cuMemAllocManaged", "on_enter", effect="allocate", memory="managed"),
    *_all("cuMemAllocAsync", "on_enter", "_ptsz", effect="allocate", memory="pool"),
    *_all("cuMemAllocFromPoolAsync", "on_enter", "_ptsz", effect="allocate_from", memory="pool"),
    *_all("cuMemHostAlloc cuMemAllocHost_v2", "on_enter", effect="allocate", memory="pinned_host"),
    *_all("cuMemHostRegister cuMemHostRegister_v2", "on_enter", effect="register", memory="pinned_host"),
    *_all("cuMemPoolCreate", "on_enter", effect="pool_create"),
    *_all("cuMemGetDefaultMemPool cuMemGetMemPool", "on_enter", effect="pool_at"),
    *_all("cuDeviceGetDefaultMemPool cuDeviceGetMemPool", "on_enter", effect="pool_of_device"),
    *_all("cuMemPoolImportFromShareableHandle", "on_enter", effect="pool_import"),
    *_all("cuMemPoolDestroy", "on_enter", effect="pool_destroy"),
    *_all("cuMemFree_v2", "on_free", effect="free"),
    *_all("cuMemFreeAsync", "on_free", "_ptsz", effect="free", memory="pool"),
    *_all("cuMemFreeHost cuMemHostUnregister", "on_free", effect="free", memory="pinned_host"),
    *_all("cuMemCreate", "on_enter", effect="create", memory="vmm"),
    *_all("cuMemRetainAllocationHandle", "on_enter", effect="retain"),
    *_all("cuMemMap", "on_enter", effect="map", memory="vmm"),
    *_all("cuMemUnmap", "on_enter", effect="unmap", memory="vmm"),
    *_all("cuMemRelease", "on_free", effect="release", memory="vmm"),
    *_all("cuStreamCreate cuStreamCreateWithPriority", "on_enter", effect="stream_create"),
    *_all("cuStreamDestroy cuStreamDestroy_v2", "on_enter", effect="stream_destroy"),
    *_all(
        "cuStreamBeginCapture cuStreamBeginCapture_v2 cuStreamBeginCaptureToGraph cuStreamBeginRecaptureToGraph",
        "on_enter",
        "_ptsz",
        effect="capture_begin",
    ),
    *_all("cuStreamEndCapture", "on_enter", "_ptsz", effect="capture_end"),
    *_all("cuArrayCreate_v2 cuArray3DCreate_v2 cuMipmappedArrayCreate", "on_enter"),
    *_all("cuArrayDestroy cuMipmappedArrayDestroy", "on_enter"),
    *_copies("cuMemcpy", "_ptds"),
    *_copies("cuMemcpyAsync cuMemcpyWithAttributesAsync", "_ptsz"),
    *_copies("cuMemcpyHtoD_v2", "_ptds", "h2d", host_at=1),
    *_copies("cuMemcpyHtoDAsync_v2", "_ptsz", "h2d", host_at=1),
    *_copies("cuMemcpyDtoH_v2", "_ptds", "d2h", host_at=0),
    *_copies("cuMemcpyDtoHAsync_v2", "_ptsz", "d2h", host_at=0),
    *_copies("cuMemcpyDtoD_v2", "_ptds", "d2d"),
    *_copies("cuMemcpyDtoDAsync_v2", "_ptsz", "d2d"),
    *_copies("cuMemcpyHtoA_v2", "_ptds", "h2d", bytes_at=3, host_at=2),
    *_copies("cuMemcpyHtoAAsync_v2", "_ptsz", "h2d", bytes_at=3, host_at=2),
    *_copies("cuMemcpyAtoH_v2", "_ptds", "d2h", bytes_at=3, host_at=0),
    *_copies("cuMemcpyAtoHAsync_v2", "_ptsz", "d2h", bytes_at=3, host_at=0),
    *_copies("cuMemcpyDtoA_v2 cuMemcpyAtoD_v2", "_ptds", "d2d", bytes_at=3),
    *_copies("cuMemcpyAtoA_v2", "_ptds", "d2d", bytes_at=4),
    *_copies("cuMemcpyPeer", "_ptds", "d2d", bytes_at=4),
    *_copies("cuMemcpyPeerAsync", "_ptsz", "d2d", bytes_at=4),
    *_all("cuMemcpy2D_v2 cuMemcpy2DUnaligned_v2", "on_enter", "_ptds", effect="copy_2d"),
    *_all("cuMemcpy2DAsync_v2", "on_enter", "_ptsz", effect="copy_2d"),
    *_all("cuMemcpy3D_v2 cuMemcpy3DPeer", "on_enter", "_ptds", effect="copy_3d"),
    *_all("cuMemcpy3DAsync_v2 cuMemcpy3DPeerAsync", "on_enter", "_ptsz", effect="copy_3d"),
    *_all("cuMemcpyBatchAsync cuMemcpyBatchAsync_v2", "on_enter", "_ptsz", effect="copy_batch"),
    *_all("cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_v2", "on_enter", "_ptsz", effect="copy_unread", bytes_at=0),
    *_all("cuMemcpy3DWithAttributesAsync", "on_enter", "_ptsz", effect="copy_unread"),
    *_all("cuStreamSynchronize", "on_enter", "_ptsz", effect="wait"),
    *_all("cuEventSynchronize cuCtxSynchronize cuCtxSynchronize_v2", "on_enter", effect="wait"),
    *_all("cuCtxCreate_v2", "on_enter", effect="context_create", bytes_at=2),
    *_all("cuCtxCreate_v3", "on_enter", effect="context_create", bytes_at=4),
    *_all("cuCtxCreate_v4", "on_enter", effect="context_create", bytes_at=3),
    *_all("cuCtxDestroy_v2", "on_enter", effect="context_destroy"),
    *_all("cuCtxSetCurrent", "on_context", effect="context_set"),
    *_all("cuCtxPushCurrent_v2", "on_context", effect="context_push"),
    *_all("cuCtxPopCurrent_v2", "on_context", effect="context_pop"),
    *_all("cuDevicePrimaryCtxRetain", "on_enter", effect="primary_retain"),
    *_all("cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2", "on_enter", effect="primary_release"),
    *_all("cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2", "on_enter", effect="primary_reset"),
)

_RUNTIME = (
    *_all("cudaLaunchKernel cudaLaunchKernelExC cudaLaunchCooperativeKernel", "on_launch", "_ptsz", launches="kernel"),
    *_all("cudaLaunchCooperativeKernelMultiDevice", "on_launch", launches="kernel"),
    *_all("cudaGraphLaunch", "on_launch", "_ptsz", launches="graph"),
    *_all("cudaMalloc", "on_enter", effect="allocate"),
    *_all("cudaMallocPitch", "on_enter", effect="allocate_pitch"),
    *_all("cudaMalloc3D", "on_enter", effect="allocate_extent"),
    *_all("cudaMallocManaged", "on_enter", effect="allocate", memory="managed"),
    *_all("cudaMallocAsync", "on_enter", "_ptsz", effect="allocate", memory="pool"),
    *_all("cudaMallocFromPoolAsync", "on_enter", "_ptsz", effect="allocate_from", memory="pool"),
    *_all("cudaMallocHost cudaHostAlloc", "on_enter", effect="allocate", memory="pinned_host"),
    *_all("cudaHostRegister", "on_enter", effect="register", memory="pinned_host"),
    *_all("cudaFree", "on_free", effect="free"),
    *_all("cudaFreeAsync", "on_free", "_ptsz", effect="free", memory="pool"),
    *_all("cudaFreeHost cudaHostUnregister", "on_free", effect="free", memory="pinned_host"),
    *_all(
        "cudaStreamBeginCapture cudaStreamBeginCaptureToGraph cudaStreamBeginRecaptureToGraph",
        "on_enter",
        "_ptsz",
        effect="capture_begin",
    ),
    *_all("cudaStreamEndCapture", "on_enter", "_ptsz", effect="capture_end"),
    *_all(
        "cudaMallocArray cudaMalloc3DArray cudaMallocMipmappedArray cudaFreeArray cudaFreeMipmappedArray", "on_enter"
    ),
    # Bytes of copies are counted in the driver, where each of these ends.
    *_all(
        "cudaMemcpy cudaMemcpyToSymbol cudaMemcpyFromSymbol cudaMemcpyToArray cudaMemcpyFromArray"
        " cudaMemcpyArrayToArray cudaMemcpy2D cudaMemcpy2DToArray cudaMemcpy2DFromArray cudaMemcpy2DArrayToArray"
        " cudaMemcpy3D cudaMemcpy3DPeer",
        "on_call",
        "_ptds",
    ),
    *_all(
        "cudaMemcpyAsync cudaMemcpyToSymbolAsync cudaMemcpyFromSymbolAsync cudaMemcpyToArrayAsync"
        " cudaMemcpyFromArrayAsync cudaMemcpy2DAsync cudaMemcpy2DToArrayAsync cudaMemcpy2DFromArrayAsync"
        " cudaMemcpy3DAsync cudaMemcpy3DPeerAsync cudaMemcpyBatchAsync cudaMemcpy3DBatchAsync"
        " cudaMemcpyWithAttributesAsync cudaMemcpy3DWithAttributesAsync",
        "on_call",
        "_ptsz",
    ),
    *_all("cudaMemcpyPeer cudaMemcpyPeerAsync", "on_call"),
    *_all("cudaStreamSynchronize", "on_enter", "_ptsz", effect="wait"),
    *_all("cudaEventSynchronize cudaDeviceSynchronize cudaThreadSynchronize", "on_enter", effect="wait"),
    *_all("cudaExecutionCtxSynchronize", "on_enter", effect="wait"),
    *_all("cudaDeviceReset cudaThreadExit", "on_enter", effect="device_reset"),
)

FUNCTIONS: tuple[CudaFunction, ...] = (*_DRIVER, *_RUNTIME)
"""A function's number in the kernel is its place here, counted from 1."""

UNCOVERED = {
    r"__cudaLaunchKernel(_ptsz)?": "only jumps to cudaLaunchKernel, which is hooked",
    r"cuda\w*Graph(Add|Exec|Mem|Get|Set|Kernel|Host|Child|Event|Node)\w*|cuGraph(Add|Exec|Mem|Batch)\w*": (
        "describes a graph's node: the work is done by the graph's launch, and not seen call by call"
    ),
    r"cu(da)?Device(Graph|SetGraph|GetGraph)\w*": "memory of graphs is kept by the driver",
    r"cuda\w*MemPool\w*|cuDeviceSetMemPool|cuMemSetMemPool|cuMemPool(?!Create|Destroy|ImportFrom)\w*": (
        "manages a pool: what is taken from it is counted where it is taken"
    ),
    r"cu(da)?Memset\w*": "fills memory: no copy",
    r"cu(da)?Mem(Prefetch|Discard|Advise)\w*": "moves managed pages: no copy that an application requested by size",
    r"cu(da)?LaunchHostFunc(_v2)?(_ptsz)?": "runs a function on the host: no kernel",
    r"cuMemImportFromShareableHandle|cu(da)?IpcOpenMemHandle(_v2)?": "memory that another process holds",
    r"cuMem(Address|SetAccess|Export|Get(?!(Default)?MemPool)|HostGet|Range|MapArray|BatchDecompress)\w*": (
        "neither takes nor gives memory"
    ),
    r"cu(MemAlloc(Pitch|Host)?|MemFree|Array(3D)?Create|Memcpy([23]D|[HDA]to[HDA])(Unaligned)?(Async)?)": (
        "the 32-bit interface from before CUDA 3.2, which nothing built since calls"
    ),
    r"cuCtx(Create|Destroy|PushCurrent|PopCurrent|Attach|Detach)": "the interface from before CUDA 4.0",
    r"cuGreenCtx\w*|cuCtxFromGreenCtx": (
        "green contexts: memory allocated in one is taken for its parent's; the device of their streams is not known"
    ),
    r"cudaStream(Create|Destroy)\w*": "ends in the driver, where streams are followed",
    r"cuStream(Begin|End)CaptureToCig(_ptsz)?": "captures for a graphics interface",
    r"cuFabricCpyBatchAsync(_ptsz)?": "copies between nodes: its operations are opaque",
}
"""Symbols that sound like the hooked ones and are not, by pattern, with the reason."""

_SOUNDS_LIKE = (
    r"_*cu(da)?\w*(Malloc|Alloc(?!ation)|Free(?!ze)|Launch|Memcpy|Cpy|Synchronize|Host(Un)?[Rr]egister)\w*"
    r"|cuMem\w+|cuDevice(Get|Set)(Default)?MemPool|cuCtx(Create|Destroy|SetCurrent|Push|Pop)\w*|cuDevicePrimaryCtx(Retain|Release|Reset)\w*"
    r"|cu(da)?Stream(Create|Destroy|BeginCapture|BeginRecapture|EndCapture)\w*|cuda(DeviceReset|ThreadExit)\w*|cu(Mipmapped)?Array(3D)?(Create|Destroy)\w*"
)
_COVERABLE = rf"(?!(?:{'|'.join(UNCOVERED)})$)(?:{_SOUNDS_LIKE})"
COVERABLE = re.compile(_COVERABLE)
"""Pattern of symbols that belong in FUNCTIONS: a metric counts a library's matching symbols without an entry."""
_OF_LAYER = {"driver": "(?!_*cuda)", "runtime": "(?=_*cuda)", "both": ""}


def coverable(layers: str) -> re.Pattern[str]:
    """COVERABLE, of the API layers that are probed: "driver", "runtime" or "both"."""
    return re.compile(_OF_LAYER[layers] + _COVERABLE)
