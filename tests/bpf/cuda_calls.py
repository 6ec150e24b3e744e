"""Functions of CUDA by what they do, with their parameters in cuda.h and cuda_runtime_api.h; a library of them all.

Nothing here is from the exporter's own table of functions, which these declarations test. Parameters are written where
the exporter reads some of them; tests/program/cuda/test_functions.py compares them with NVIDIA's headers.
"""

from __future__ import annotations

from tests.bpf.declared import Declarations, Function

PARAMETERS = {
    "made": r"(CUdeviceptr|CUcontext|CUstream|CUmemoryPool|CUmemGenericAllocationHandle) \*\w+|void \*\*\w+",
    "made_3d": r"struct cudaPitchedPtr\* ?\w+",
    "extent": r"struct cudaExtent \w+",
    "pitch": r"size_t \*p?[pP]itch",
    "bytes": r"size_t (bytesize|ByteCount|size)",
    "width": r"size_t [wW]idth(InBytes)?",
    "height": r"size_t [hH]eight",
    "offset": r"size_t (offset|dstOffset|srcOffset)",
    "address": r"CUdeviceptr d?ptr|void \*(p|ptr|devPtr|addr)",
    "handle": r"CUmemGenericAllocationHandle handle",
    "pool": r"(CUmemoryPool|cudaMemPool_t) \w+",
    "stream": r"(CUstream|cudaStream_t) \w+",
    "context": r"CUcontext \w+",
    "device": r"CUdevice dev",
    "properties": r"const CUmem(AllocationProp|PoolProps) \*\w+",
    "location": r"CUmemLocation \*location",
    "type": r"CUmemAllocationType type",
    "array": r"CUarray \w+",
    "target": r"CUdeviceptr dst(Device)?",
    "source": r"CUdeviceptr src(Device)?",
    "host_target": r"void \*dstHost",
    "host_source": r"const void \*srcHost",
    "copy_2d": r"const CUDA_MEMCPY2D \*pCopy",
    "copy_3d": r"const CUDA_MEMCPY3D \*pCopy",
    "copy_3d_peer": r"const CUDA_MEMCPY3D_PEER \*pCopy",
    "targets": r"CUdeviceptr \*dsts",
    "sources": r"CUdeviceptr \*srcs",
    "sizes": r"size_t \*sizes",
    "count": r"size_t (count|numOps)",
    "_": r".+",
}
"""Declarations in the headers by the word that a parameter has here; `_` is of no interest."""


FUNCTIONS = Declarations()
"""All that follow, by name."""
_declare = FUNCTIONS.declare

KERNELS = _declare("""
    cuLaunchKernel/ptsz cuLaunchKernelEx/ptsz cuLaunchCooperativeKernel/ptsz cuLaunch cuLaunchGrid cuLaunchGridAsync
    cuLaunchCooperativeKernelMultiDevice
    cudaLaunchKernel/ptsz cudaLaunchKernelExC/ptsz cudaLaunchCooperativeKernel/ptsz
    cudaLaunchCooperativeKernelMultiDevice
""")
GRAPHS = _declare("cuGraphLaunch/ptsz cudaGraphLaunch/ptsz")
WAITS = _declare("""
    cuStreamSynchronize/ptsz cuEventSynchronize cuCtxSynchronize cuCtxSynchronize_v2
    cudaStreamSynchronize/ptsz cudaEventSynchronize cudaDeviceSynchronize cudaThreadSynchronize
    cudaExecutionCtxSynchronize
""")
ARRAYS = _declare("""
    cuArrayCreate_v2 cuArray3DCreate_v2 cuMipmappedArrayCreate cuArrayDestroy cuMipmappedArrayDestroy
    cudaMallocArray cudaMalloc3DArray cudaMallocMipmappedArray cudaFreeArray cudaFreeMipmappedArray
""")
"""Arrays are of a layout that only the driver knows: calls, and no bytes."""
COPIES_OF_THE_RUNTIME = _declare("""
    cudaMemcpy/ptds cudaMemcpyToSymbol/ptds cudaMemcpyFromSymbol/ptds cudaMemcpyToArray/ptds cudaMemcpyFromArray/ptds
    cudaMemcpyArrayToArray/ptds cudaMemcpy2D/ptds cudaMemcpy2DToArray/ptds cudaMemcpy2DFromArray/ptds
    cudaMemcpy2DArrayToArray/ptds cudaMemcpy3D/ptds cudaMemcpy3DPeer/ptds
    cudaMemcpyAsync/ptsz cudaMemcpyToSymbolAsync/ptsz cudaMemcpyFromSymbolAsync/ptsz cudaMemcpyToArrayAsync/ptsz
    cudaMemcpyFromArrayAsync/ptsz cudaMemcpy2DAsync/ptsz cudaMemcpy2DToArrayAsync/ptsz cudaMemcpy2DFromArrayAsync/ptsz
    cudaMemcpy3DAsync/ptsz cudaMemcpy3DPeerAsync/ptsz cudaMemcpyBatchAsync/ptsz cudaMemcpy3DBatchAsync/ptsz
    cudaMemcpyWithAttributesAsync/ptsz cudaMemcpy3DWithAttributesAsync/ptsz cudaMemcpyPeer cudaMemcpyPeerAsync
""")
"""Copies of which the bytes are counted where they end, in the driver."""

ALLOCATIONS = {
    "device": _declare("cuMemAlloc_v2(made bytes) cudaMalloc(made bytes)"),
    "managed": _declare("cuMemAllocManaged(made bytes _) cudaMallocManaged(made bytes _)"),
    "pool": _declare("""
        cuMemAllocAsync/ptsz(made bytes stream) cuMemAllocFromPoolAsync/ptsz(made bytes pool stream)
        cudaMallocAsync/ptsz(made bytes stream) cudaMallocFromPoolAsync/ptsz(made bytes pool stream)
    """),
    "pinned_host": _declare("""
        cuMemHostAlloc(made bytes _) cuMemAllocHost_v2(made bytes)
        cudaMallocHost(made bytes) cudaHostAlloc(made bytes _)
    """),
    "vmm": _declare("cuMemCreate(made bytes properties _)"),
}
"""By the kind of memory."""
REGISTRATIONS = _declare("""
    cuMemHostRegister(address bytes _) cuMemHostRegister_v2(address bytes _) cudaHostRegister(address bytes _)
""")
ROWS = _declare("cuMemAllocPitch_v2(made pitch width height _) cudaMallocPitch(made pitch width height)")
"""Allocations of rows, each as long as the driver wants it."""
BLOCKS = _declare("cudaMalloc3D(made_3d extent)")
FREES = {
    "device": _declare("cuMemFree_v2(address) cudaFree(address)"),
    "pool": _declare("cuMemFreeAsync/ptsz(address stream) cudaFreeAsync/ptsz(address stream)"),
    "pinned_host": _declare("""
        cuMemFreeHost(address) cuMemHostUnregister(address) cudaFreeHost(address) cudaHostUnregister(address)
    """),
}
RELEASES = _declare("cuMemRelease(handle)")
RETENTIONS = _declare("cuMemRetainAllocationHandle(made address)")
MAPPINGS = _declare("cuMemMap(address bytes offset handle _)")
UNMAPPINGS = _declare("cuMemUnmap(address bytes)")

COPIES = {
    "h2d": _declare("""
        cuMemcpyHtoD_v2/ptds(target host_source bytes) cuMemcpyHtoDAsync_v2/ptsz(target host_source bytes stream)
        cuMemcpyHtoA_v2/ptds(array offset host_source bytes)
        cuMemcpyHtoAAsync_v2/ptsz(array offset host_source bytes stream)
    """),
    "d2h": _declare("""
        cuMemcpyDtoH_v2/ptds(host_target source bytes) cuMemcpyDtoHAsync_v2/ptsz(host_target source bytes stream)
        cuMemcpyAtoH_v2/ptds(host_target array offset bytes)
        cuMemcpyAtoHAsync_v2/ptsz(host_target array offset bytes stream)
    """),
    "d2d": _declare("""
        cuMemcpyDtoD_v2/ptds(target source bytes) cuMemcpyDtoDAsync_v2/ptsz(target source bytes stream)
        cuMemcpyDtoA_v2/ptds(array offset source bytes) cuMemcpyAtoD_v2/ptds(target array offset bytes)
        cuMemcpyAtoA_v2/ptds(array offset array offset bytes) cuMemcpyPeer/ptds(target context source context bytes)
        cuMemcpyPeerAsync/ptsz(target context source context bytes stream)
    """),
}
"""By the direction that their names have."""
COPIES_BY_ADDRESS = _declare("""
    cuMemcpy/ptds(target source bytes) cuMemcpyAsync/ptsz(target source bytes stream)
    cuMemcpyWithAttributesAsync/ptsz(target source bytes _ stream)
""")
COPIES_BY_DESCRIPTION = _declare("""
    cuMemcpy2D_v2/ptds(copy_2d) cuMemcpy2DUnaligned_v2/ptds(copy_2d) cuMemcpy2DAsync_v2/ptsz(copy_2d stream)
    cuMemcpy3D_v2/ptds(copy_3d) cuMemcpy3DAsync_v2/ptsz(copy_3d stream)
    cuMemcpy3DPeer/ptds(copy_3d_peer) cuMemcpy3DPeerAsync/ptsz(copy_3d_peer stream)
""")
BATCHES = _declare("""
    cuMemcpyBatchAsync/ptsz(targets sources sizes count _ _ _ _ stream)
    cuMemcpyBatchAsync_v2/ptsz(targets sources sizes count _ _ _ stream)
""")
UNREAD = _declare("""
    cuMemcpy3DBatchAsync/ptsz(count _ _ _ stream) cuMemcpy3DBatchAsync_v2/ptsz(count _ _ stream)
    cuMemcpy3DWithAttributesAsync/ptsz(_ _ stream)
""")
"""Copies of three dimensions of which the exporter does not read the description."""

CAPTURES = _declare("""
    cuStreamBeginCapture/ptsz(stream) cuStreamBeginCapture_v2/ptsz(stream _)
    cuStreamBeginCaptureToGraph/ptsz(stream _ _ _ _ _) cuStreamBeginRecaptureToGraph/ptsz(stream _ _ _ _)
    cudaStreamBeginCapture/ptsz(stream _) cudaStreamBeginCaptureToGraph/ptsz(stream _ _ _ _ _)
    cudaStreamBeginRecaptureToGraph/ptsz(stream _ _ _)
""")
CAPTURE_ENDS = _declare("cuStreamEndCapture/ptsz(stream _) cudaStreamEndCapture/ptsz(stream _)")

CONTEXTS = _declare("""
    cuCtxCreate_v2(made _ device) cuCtxCreate_v3(made _ _ _ device) cuCtxCreate_v4(made _ _ device)
""")
CONTEXT_ENDS = _declare("cuCtxDestroy_v2(context)")
CHANGES = _declare("cuCtxSetCurrent(context) cuCtxPushCurrent_v2(context) cuCtxPopCurrent_v2(made)")
"""Frequent calls, which are followed and not counted."""
RETAINED = _declare("cuDevicePrimaryCtxRetain(made device)")
RELEASED = _declare("cuDevicePrimaryCtxRelease(device) cuDevicePrimaryCtxRelease_v2(device)")
RESETS = _declare("cuDevicePrimaryCtxReset(device) cuDevicePrimaryCtxReset_v2(device)")
RESETS_OF_THE_RUNTIME = _declare("cudaDeviceReset cudaThreadExit")
STREAMS = _declare("cuStreamCreate(made _) cuStreamCreateWithPriority(made _ _)")
STREAM_ENDS = _declare("cuStreamDestroy(stream) cuStreamDestroy_v2(stream)")
POOLS = _declare("""
    cuMemPoolCreate(made properties) cuMemGetDefaultMemPool(made location type) cuMemGetMemPool(made location type)
""")
POOLS_OF_DEVICES = _declare("cuDeviceGetDefaultMemPool(made device) cuDeviceGetMemPool(made device)")
IMPORTED_POOLS = _declare("cuMemPoolImportFromShareableHandle(made _ _ _)")
POOL_ENDS = _declare("cuMemPoolDestroy(pool)")


def layer(name: str) -> str:
    return "runtime" if name.startswith("cuda") else "driver"


SIZES = tuple(range(1000, 1023))
"""Bytes of the calls that are made of each function, 23 of them."""
FAILING, CODES = 3, (2, 999)
"""Further calls of each function, which fail with one of these codes."""
FAILED, TOO_MUCH = 5000, 1 << 40
"""Bytes of calls beside one that fails, and of calls that count nowhere."""
PITCH, PRIMARY = 512, 0x5000_0000_0000


def code(name: str) -> int:
    """Return the code with which some calls of a function fail: one, since a process has a row for each that occurs."""
    return CODES[list(FUNCTIONS).index(name) % len(CODES)]


_HEAD = f"""
typedef unsigned long word;
int result;
word calls[256];
static word newest;
static word more(void) {{ return newest += 0x10000; }}
struct extent {{ word width, height, depth; }};
int start(word at) {{ newest = at; return 0; }}
#define PITCH {PITCH}
#define PRIMARY {PRIMARY:#x}
"""


def source(of: str) -> str:
    """Return the C source of a library with the functions of a layer.

    Each counts its calls and returns `result`. If that is 0 it gives something new, with an address of its own; but a
    device has one primary context, and a handle is mapped at the address of its own number.
    """
    functions = [it for it in FUNCTIONS.values() if layer(it.name) == of]
    return _HEAD + "\n".join(_body(number, it) for number, it in enumerate(functions))


def _body(number: int, function: Function) -> str:
    gives, takes = "", "void"
    if function.name == "cuDevicePrimaryCtxRetain":
        gives, takes = "*made = PRIMARY + device;", "word *made, int device"
    elif function.name == "cuMemRetainAllocationHandle":
        gives, takes = "*made = address;", "word *made, word address"
    elif function.parameters[:2] == ("made", "pitch"):
        gives, takes = "*made = more(); *pitch = PITCH;", "word *made, word *pitch"
    elif function.parameters[:1] == ("made",):
        gives, takes = "*made = more();", "word *made"
    elif function.parameters[:1] == ("made_3d",):
        gives, takes = "made[0] = more(); made[1] = PITCH;", "word *made, struct extent extent"
    return f"int {function.name}({takes}) {{ calls[{number}]++; if (!result) {{ {gives} }} return result; }}"
