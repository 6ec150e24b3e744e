"""Reads and writes with GPUDirect Storage until it is ended: python -m tests.standins.cufile_job LIBRARY.

Ten times a second: reads of a data set, an asynchronous read, a batch, and a read that fails.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import time
from ctypes import byref, c_int, c_int64, c_size_t, c_uint64, c_void_p

BYTES = 1 << 20


class Descriptor(ctypes.Structure):
    _fields_ = (("type", c_int), ("fd", c_uint64), ("operations", c_void_p))


class Entry(ctypes.Structure):
    _fields_ = (
        *(("mode", c_int), ("memory", c_void_p), ("file_offset", c_int64), ("memory_offset", c_int64)),
        *(("size", c_size_t), ("handle", c_void_p), ("opcode", c_int), ("cookie", c_void_p)),
    )


def main() -> None:
    cufile, memory, handle = ctypes.CDLL(sys.argv[1]), ctypes.create_string_buffer(BYTES), c_void_p()
    time.sleep(3)  # until the library is probed: a handle from before is of an unknown file
    with tempfile.TemporaryFile() as data:
        os.ftruncate(data.fileno(), BYTES)
        cufile.cuFileHandleRegister(byref(handle), byref(Descriptor(1, data.fileno(), None)))
        zero, done = c_int64(0), c_int64(0)
        batch = (Entry * 2)(*(Entry(1, ctypes.addressof(memory), 0, 0, 4096, handle, it, None) for it in (0, 1)))
        while True:
            for size in (1000, 30_000, BYTES):
                cufile.cuFileRead(handle, memory, c_size_t(size), zero, zero)
            cufile.cuFileWrite(handle, memory, c_size_t(BYTES), zero, zero)
            cufile.cuFileReadAsync(handle, memory, byref(c_size_t(BYTES)), byref(zero), byref(zero), byref(done), None)
            cufile.cuFileBatchIOSubmit(None, 2, batch, 0)
            cufile.cuFileRead(None, memory, c_size_t(1), zero, zero)
            time.sleep(0.1)


if __name__ == "__main__":
    main()
