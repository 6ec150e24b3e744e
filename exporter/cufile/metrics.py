"""The metrics of the probes of GPUDirect Storage."""

from __future__ import annotations

from exporter.model import Kind, Metric

_REQUEST = ("operation", "api", "filesystem")

REQUESTS = Metric(
    "cufile.requests",
    "Reads and writes that returned, failed ones included, by function (api); a batch counts as its entries, 1024 at "
    "most. Without return probes: reads and writes that were called. `filesystem` is the kernel's name for the file's "
    "type of file system; unknown where the handle was registered before the exporter saw the process, or is of no "
    "file of the kernel.",
    Kind.COUNTER,
    labels=_REQUEST,
    process=True,
)
IO = Metric(
    "cufile.io",
    "Bytes that cuFileRead, cuFileWrite, cuFileReadv and cuFileWritev returned. Absent where return probes may not be "
    "used.",
    Kind.COUNTER,
    "By",
    labels=_REQUEST,
    process=True,
)
SUBMITTED = Metric(
    "cufile.submitted",
    "Bytes named by accepted asynchronous calls and batch entries; without lengths over 128 TiB, which stand for "
    "unknown ones. How many of them were moved is unknown. Absent where return probes may not be used.",
    Kind.COUNTER,
    "By",
    labels=_REQUEST,
    process=True,
)
DURATION = Metric(
    "cufile.request.duration",
    "Time in cuFileRead, cuFileWrite, cuFileReadv and cuFileWritev, failed calls included. Absent where return probes "
    "may not be used.",
    Kind.HISTOGRAM,
    "s",
    labels=_REQUEST,
    process=True,
)
ERRORS = Metric(
    "cufile.errors",
    "Calls that failed, by function (api), number (code) and constant of CUfileOpError in cufile.h (error; absent "
    "where there is none). Code -1 is a read or write that failed with errno: error is then errno, because the value "
    "belongs to the thread and is not read. Entries of an accepted batch and asynchronous requests fail later and are "
    "not counted.",
    Kind.COUNTER,
    labels=("api", "code", "error"),
    process=True,
)
LAST_ERROR = Metric(
    "cufile.last_error.timestamp",
    "Unix time of the newest call that failed with this error.",
    Kind.GAUGE,
    "s",
    labels=("api", "code", "error"),
    process=True,
)
