"""Names of the numbers of nccl.h: results and data types."""

from __future__ import annotations

_RESULTS = (
    "ncclSuccess",
    "ncclUnhandledCudaError",
    "ncclSystemError",
    "ncclInternalError",
    "ncclInvalidArgument",
    "ncclInvalidUsage",
    "ncclRemoteError",
    "ncclInProgress",
    "ncclTimeout",
)
_TYPES = (
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float8e4m3",
    "float8e5m2",
)


def result(code: int) -> str:
    """The constant of an ncclResult_t; empty for one that is not known."""
    return _RESULTS[code] if 0 <= code < len(_RESULTS) else ""


def data_type(number: int) -> str:
    """The name of an ncclDataType_t without its prefix; empty for one that is not known."""
    return _TYPES[number] if 0 <= number < len(_TYPES) else ""
