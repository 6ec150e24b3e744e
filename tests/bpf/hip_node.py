"""The HIP collector on real processes, with a stand-in library or AMD's, for tests."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from exporter.collectors.hip import FLAGS, Hip
from exporter.governor.governor import Governor
from tests.bpf.cuda_node import Script
from tests.bpf.observed import Observed, running

ALLOCATED = "gpu_hip_memory_allocations_bytes_total"
FREED = "gpu_hip_memory_frees_bytes_total"
USED = "gpu_hip_memory_usage_bytes"
UNTRACKED = "gpu_hip_memory_untracked_bytes_total"
UNSEEN = "gpu_hip_memory_frees_unseen_total"
COPIED = "gpu_hip_memory_copies_bytes_total"
UNREAD = "gpu_hip_memory_copies_unread_total"
CALLS = "gpu_hip_api_calls_total"
ERRORS = "gpu_hip_api_errors_total"
LAUNCHES = "gpu_hip_kernel_launch_calls_total"
GRAPHS = "gpu_hip_graph_launch_calls_total"
WAIT = "hipStreamSynchronize"
LAST_LAUNCH = "gpu_hip_last_launch_timestamp_seconds"
WAITED = "gpu_hip_sync_wait_seconds"
EXTENDED = "_Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j"
"""hipExtModuleLaunchKernel, as C++ has it in HIP 5."""

PRELUDE = """
from ctypes import c_int, c_uint32
class Dim3(ctypes.Structure): _fields_ = [('x', c_uint32), ('y', c_uint32), ('z', c_uint32)]
class Extent(ctypes.Structure): _fields_ = [('width', c_size_t), ('height', c_size_t), ('depth', c_size_t)]
class Pitched(ctypes.Structure):
    _fields_ = [('ptr', c_void_p), ('pitch', c_size_t), ('xsize', c_size_t), ('ysize', c_size_t)]
class Copy3D(ctypes.Structure):
    _fields_ = [('source_array', c_void_p), ('source', c_size_t * 3), ('source_at', Pitched),
                ('target_array', c_void_p), ('target', c_size_t * 3), ('target_at', Pitched),
                ('extent', Extent), ('kind', c_int)]
class Copy2D(ctypes.Structure): _fields_ = [('ends', c_size_t * 14), ('width', c_size_t), ('height', c_size_t)]
one = Dim3(1, 1, 1)
ext = getattr(lib, 'EXTENDED')
def launch(): return lib.hipLaunchKernel(None, one, one, None, size(0), None)
def module(): return lib.hipModuleLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None)
def extended(): return ext(None, 1, 1, 1, 1, 1, 1, size(0), None, None, None, None, None, 0)
def in_threads(count, work):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for it in threads: it.start()
    for it in threads: it.join()
memory = ctypes.create_string_buffer(1 << 16)
"""


class HipScript(Script):
    """A Python process that calls a libamdhip64 through ctypes; `run` executes lines in it and gives their `out`."""

    def __init__(self, library: str | Path = "libamdhip64.so.5", extended: str = EXTENDED, **arguments: Any) -> None:
        super().__init__(library, **arguments)
        self.run(PRELUDE.replace("EXTENDED", extended))


class Hasty(Hip):
    """Soon sees what amdkfd lists."""

    kfd_interval = 0.05


def observe(
    kind: type[Hip] = Hip, governor: Governor | None = None, sys: Path = Path("/sys"), **settings: int
) -> AbstractContextManager[Observed]:
    """The collector, attached to what runs and what comes; soon detached from what earlier tests used."""
    return running(kind, FLAGS, grace=1.0, shared={"governor": governor or Governor(0), "sys": sys}, **settings)
