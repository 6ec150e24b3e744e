"""The GPUs of a process by HIP's ordinal, from its environment.

ROCr shows HIP the GPUs of ROCR_VISIBLE_DEVICES (amd_filter_device.cpp), and HIP a program those of HIP_VISIBLE_DEVICES,
or of CUDA_VISIBLE_DEVICES where that is unset or empty (clr, rocdevice.cpp). Both lists end at the first entry that is
not valid. GPU_DEVICE_ORDINAL is for HIP too by AMD's documentation, and by the source for OpenCL alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from exporter.amdgpu.kfd import KfdGpu
from exporter.resolve.environment import variable

_ROCR, _HIP, _CUDA, _ORDINAL = (
    variable(name)
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
)
_LONGEST = 8192
_NUMBER = re.compile(r"0|[1-9][0-9]{0,3}", re.ASCII)
_UUID = re.compile(r"GPU-[0-9A-F]{1,16}", re.ASCII)


def visible(environ: bytes, gpus: Sequence[KfdGpu]) -> Sequence[KfdGpu]:
    """Return GPUs by ordinal, of those that a process may open in the order of amdkfd's nodes; empty if not known."""
    if _value(environ, _ORDINAL):
        return ()
    listed = _value(environ, _ROCR)
    if listed is not None:
        gpus = _chosen(listed.upper(), gpus, blanks=True)
    listed = _value(environ, _HIP) or _value(environ, _CUDA)
    return _chosen(listed, gpus) if listed else gpus


def _value(environ: bytes, pattern: re.Pattern[bytes]) -> str | None:
    found = pattern.search(environ)
    return found[1].decode("ascii", "replace") if found else None


def _chosen(listed: str, gpus: Sequence[KfdGpu], blanks: bool = False) -> Sequence[KfdGpu]:
    """Return the GPUs of a list; none where one is there twice, which releases treat differently, or it is too long."""
    found = list(_entries(listed, gpus, blanks)) if len(listed) <= _LONGEST else []
    return found if len({gpu.id for gpu in found}) == len(found) else ()


def _entries(listed: str, gpus: Sequence[KfdGpu], blanks: bool) -> Iterator[KfdGpu]:
    for entry in listed.split(","):
        word = entry.strip() if blanks else entry
        if _NUMBER.fullmatch(word):
            matching = gpus[int(word) : int(word) + 1]
        elif _UUID.fullmatch(word.upper()):
            matching = [gpu for gpu in gpus if gpu.unique_id and f"GPU-{gpu.unique_id:016X}".startswith(word.upper())]
        else:
            return
        if len(matching) != 1:
            return
        yield matching[0]
