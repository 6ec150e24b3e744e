"""Functions of AMD's HIP by what they do, with their parameters in hip_runtime_api.h; a library of them all.

Nothing here is from bpf/hip/functions.h, which these declarations test; tests/bpf/test_hip_real.py compares both with
AMD's headers.
"""

from __future__ import annotations

from tests.bpf.declared import Declarations, Function

PARAMETERS = {
    "made": r"(void ?\*|hipStream_t|hipDeviceptr_t) ?\* ?\w+",
    "made_3d": r"hipPitchedPtr ?\* ?\w+",
    "extent": r"hipExtent \w+",
    "pitch": r"size_t ?\* ?pitch",
    "bytes": r"size_t (size|sizeBytes?|ByteCount|count|width)",
    "width": r"size_t [wW]idth(InBytes)?",
    "height": r"size_t [hH]eight",
    "address": r"void ?\* ?\w+",
    "stream": r"hipStream_t \w+",
    "device": r"int deviceId",
    "kind": r"(enum )?hipMemcpyKind kind( =.*)?",
    "copy_2d": r"const hip_Memcpy2D ?\* ?\w+",
    "copy_3d": r"const (struct )?hipMemcpy3DParms ?\* ?\w+",
    "count": r"size_t (count|numOps)",
    "dim3": r"dim3 \w+",
    "config": r"const (hipLaunchConfig_t|HIP_LAUNCH_CONFIG) ?\* ?\w+",
    "_": r".+",
}
"""Declarations in the headers by the word that a parameter has here; `_` is of no interest."""
FUNCTIONS = Declarations()
"""All that follow, by name."""
_declare = FUNCTIONS.declare

ALLOCATIONS = {
    "device": _declare("hipMalloc(made bytes) hipExtMallocWithFlags(made bytes _)"),
    "managed": _declare("hipMallocManaged(made bytes _)"),
    "pool": _declare("hipMallocAsync(made bytes stream)"),
    "pinned_host": _declare("""
        hipHostMalloc(made bytes _) hipHostAlloc(made bytes _) hipMallocHost(made bytes) hipMemAllocHost(made bytes)
    """),
}
"""By the kind of memory."""
FROM_POOLS = _declare("hipMallocFromPoolAsync(made bytes _ stream)")
"""Allocations on the device of a pool, which is not known."""
REGISTRATIONS = _declare("hipHostRegister(address bytes _)")
ROWS = _declare("hipMallocPitch(made pitch width height) hipMemAllocPitch(made pitch width height _)")
BLOCKS = _declare("hipMalloc3D(made_3d extent)")
FREES = {
    "device": _declare("hipFree(address)"),
    "pool": _declare("hipFreeAsync(address stream)"),
    "pinned_host": _declare("hipHostFree(address) hipFreeHost(address) hipHostUnregister(address)"),
}
OF_UNKNOWN_SIZE = _declare("""
    hipMallocArray hipMalloc3DArray hipMallocMipmappedArray hipArrayCreate hipArray3DCreate hipMipmappedArrayCreate
    hipFreeArray hipFreeMipmappedArray hipArrayDestroy hipMipmappedArrayDestroy
    hipMemCreate hipMemRelease hipMemMap hipMemUnmap
""")
"""Arrays and physical memory, which are calls without bytes."""

COPIES = {
    "h2d": _declare("""
        hipMemcpyHtoD(_ _ bytes) hipMemcpyHtoDAsync(_ _ bytes stream)
        hipMemcpyHtoA(_ _ _ bytes) hipMemcpyHtoAAsync(_ _ _ bytes stream)
    """),
    "d2h": _declare("""
        hipMemcpyDtoH(_ _ bytes) hipMemcpyDtoHAsync(_ _ bytes stream)
        hipMemcpyAtoH(_ _ _ bytes) hipMemcpyAtoHAsync(_ _ _ bytes stream)
    """),
    "d2d": _declare("""
        hipMemcpyDtoD(_ _ bytes) hipMemcpyDtoDAsync(_ _ bytes stream) hipMemcpyAtoD(_ _ _ bytes)
        hipMemcpyDtoA(_ _ _ bytes) hipMemcpyAtoA(_ _ _ _ bytes)
        hipMemcpyPeer(_ _ _ _ bytes) hipMemcpyPeerAsync(_ _ _ _ bytes stream)
    """),
}
"""By the direction that their names have."""
COPIES_BY_KIND = _declare("""
    hipMemcpy/spt(_ _ bytes kind) hipMemcpyAsync/spt(_ _ bytes kind stream) hipMemcpyWithStream(_ _ bytes kind stream)
    hipMemcpyToSymbol/spt(_ _ bytes _ kind) hipMemcpyToSymbolAsync/spt(_ _ bytes _ kind stream)
    hipMemcpyFromSymbol/spt(_ _ bytes _ kind) hipMemcpyFromSymbolAsync/spt(_ _ bytes _ kind stream)
    hipMemcpyToArray(_ _ _ _ bytes kind) hipMemcpyFromArray/spt(_ _ _ _ bytes kind)
""")
COPIES_OF_ROWS = _declare("""
    hipMemcpy2D/spt(_ _ _ _ bytes height kind) hipMemcpy2DAsync/spt(_ _ _ _ bytes height kind stream)
    hipMemcpy2DToArray/spt(_ _ _ _ _ bytes height kind) hipMemcpy2DToArrayAsync/spt(_ _ _ _ _ bytes height kind stream)
    hipMemcpy2DFromArray/spt(_ _ _ _ _ bytes height kind)
    hipMemcpy2DFromArrayAsync/spt(_ _ _ _ _ bytes height kind stream)
    hipMemcpy2DArrayToArray(_ _ _ _ _ _ bytes height kind)
""")
COPIES_BY_DESCRIPTION = _declare("""
    hipMemcpyParam2D(copy_2d) hipMemcpyParam2DAsync(copy_2d stream) hipDrvMemcpy2DUnaligned(copy_2d)
""")
"""Copies of which the direction is not known: the constants in hip_Memcpy2D are not the same in all releases."""
COPIES_OF_BLOCKS = _declare("hipMemcpy3D/spt(copy_3d) hipMemcpy3DAsync/spt(copy_3d stream)")
UNREAD = _declare("""
    hipDrvMemcpy3D(_) hipDrvMemcpy3DAsync(_ stream) hipMemcpy3DPeer(_) hipMemcpy3DPeerAsync(_ stream)
    hipMemcpyBatchAsync(_ _ _ count _ _ _ _ stream) hipMemcpy3DBatchAsync(count _ _ _ stream)
""")
"""Copies of which the exporter does not read the bytes."""
WAITS = _declare("""
    hipDeviceSynchronize hipCtxSynchronize hipStreamSynchronize/spt(stream) hipEventSynchronize
""")

KERNELS = _declare("""
    hipLaunchKernel/spt(_ dim3 dim3 _ _ stream) hipExtLaunchKernel(_ dim3 dim3 _ _ stream _ _ _)
    hipLaunchCooperativeKernel/spt(_ dim3 dim3 _ _ stream)
    hipLaunchKernelExC(config _ _) hipDrvLaunchKernelEx(config _ _ _)
    hipModuleLaunchKernel(_ _ _ _ _ _ _ _ stream _ _) hipModuleLaunchCooperativeKernel(_ _ _ _ _ _ _ _ stream _)
    hipExtModuleLaunchKernel(_ _ _ _ _ _ _ _ stream _ _ _ _ _)
    hipHccModuleLaunchKernel(_ _ _ _ _ _ _ _ stream _ _ _ _)
""")
KERNELS_OF_CXX = _declare("""
    _Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j
    (_ _ _ _ _ _ _ _ stream _ _ _ _ _)
    _Z24hipHccModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_
    (_ _ _ _ _ _ _ _ stream _ _ _ _)
""")
"""Launches by the names of HIP 5."""
KERNELS_ON_SEVERAL = _declare("""
    hipLaunchCooperativeKernelMultiDevice hipExtLaunchMultiKernelMultiDevice
    hipModuleLaunchCooperativeKernelMultiDevice
""")
GRAPHS = _declare("hipGraphLaunch/spt(_ stream)")

DEVICES = _declare("hipSetDevice(device)")
CONTEXTS = _declare("hipCtxCreate hipCtxDestroy hipCtxSetCurrent hipCtxPushCurrent hipCtxPopCurrent")
"""Changes of the device to one that is not known."""
STREAMS = _declare("""
    hipStreamCreate(made) hipStreamCreateWithFlags(made _) hipStreamCreateWithPriority(made _ _)
    hipExtStreamCreateWithCUMask(made _ _)
""")
STREAM_ENDS = _declare("hipStreamDestroy(stream)")
CAPTURES = _declare("hipStreamBeginCapture/spt(stream _) hipStreamBeginCaptureToGraph(stream _ _ _ _ _)")
CAPTURE_ENDS = _declare("hipStreamEndCapture/spt(stream _)")
RESETS = _declare("hipDeviceReset")

PITCH = 512
_HEAD = f"""
typedef unsigned long word;
int result;
word calls[256];
static word newest = 0x7f0000000000;
static word more(void) {{ return newest += 0x10000; }}
struct extent {{ word width, height, depth; }};
#define PITCH {PITCH}
"""


def source() -> str:
    """Return the C source of a library with all of them.

    Each counts its calls and returns `result`. If that is 0 it gives something new, with an address of its own.
    """
    return _HEAD + "\n".join(_body(number, it) for number, it in enumerate(FUNCTIONS.values()))


def _body(number: int, function: Function) -> str:
    gives, takes = "", "void"
    if function.parameters[:2] == ("made", "pitch"):
        gives, takes = "*made = more(); *pitch = PITCH;", "word *made, word *pitch"
    elif function.parameters[:1] == ("made",):
        gives, takes = "*made = more();", "word *made"
    elif function.parameters[:1] == ("made_3d",):
        gives, takes = "made[0] = more(); made[1] = PITCH;", "word *made, struct extent extent"
    return f"int {function.name}({takes}) {{ calls[{number}]++; if (!result) {{ {gives} }} return result; }}"
