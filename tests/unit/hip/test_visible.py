"""The order of a process's GPUs, from ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.amdgpu.kfd import KfdGpu
from exporter.hip.visible import visible

GPUS = [
    KfdGpu(10 + at, unique, {"card": f"card{at}"}) for at, unique in enumerate((0xABC0, 0xABC1, 0, 0xF000000000000000))
]


def order(**variables: str) -> list[int]:
    """The places of the visible GPUs."""
    environ = b"\0".join(f"{name}={value}".encode() for name, value in variables.items())
    return [gpu.id - 10 for gpu in visible(b"HOME=/\0" + environ + b"\0", GPUS)]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, [2, 0]),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "3"}, [3]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "3"}, [1]),
        ({"HIP_VISIBLE_DEVICES": "1,7,0"}, [1]),
        ({"HIP_VISIBLE_DEVICES": "1, 0"}, [1]),
        ({"HIP_VISIBLE_DEVICES": "-1,0"}, []),
        ({"HIP_VISIBLE_DEVICES": "1,1"}, []),
        ({"HIP_VISIBLE_DEVICES": "01"}, []),
        ({"HIP_VISIBLE_DEVICES": "GPU-000000000000abc1,0"}, [1, 0]),
        ({"ROCR_VISIBLE_DEVICES": " 3 , 0"}, [3, 0]),
        ({"ROCR_VISIBLE_DEVICES": "3,gpu-f0"}, []),
        ({"ROCR_VISIBLE_DEVICES": "gpu-f0, 0"}, [3, 0]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-0000"}, []),  # two begin so
        ({"ROCR_VISIBLE_DEVICES": "GPU-0000000000000000"}, []),  # has none
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
        ({"ROCR_VISIBLE_DEVICES": "3,2,1", "HIP_VISIBLE_DEVICES": "2,0"}, [1, 3]),
        ({"ROCR_VISIBLE_DEVICES": "3", "HIP_VISIBLE_DEVICES": "3"}, []),
        ({"ROCR_VISIBLE_DEVICES": "2,2"}, []),
        ({"GPU_DEVICE_ORDINAL": "1"}, []),
        ({"GPU_DEVICE_ORDINAL": ""}, [0, 1, 2, 3]),
        ({"HIP_VISIBLE_DEVICES": "0," * 5000}, []),
        ({"HIP_VISIBLE_DEVICES": "9" * 5000}, []),
        ({"NOT_HIP_VISIBLE_DEVICES": "1"}, [0, 1, 2, 3]),
    ],
    ids=lambda case: str(case)[:60],
)
def test_lists(variables: dict[str, str], expected: list[int]) -> None:
    """Lists end at the first entry that is not valid; what releases treat differently is not known."""
    assert expected == order(**variables)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes(rocr: bytes, hip: bytes) -> None:
    """Whatever the variables are, GPUs are some of those, none of them twice."""
    found = visible(b"ROCR_VISIBLE_DEVICES=" + rocr + b"\0HIP_VISIBLE_DEVICES=" + hip, GPUS)
    assert len({gpu.id for gpu in found}) == len(found) and all(gpu in GPUS for gpu in found)
