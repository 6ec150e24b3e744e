"""2. Do the pointers that cuGetProcAddress_v2 gives, which libcudart calls, lead to the symbols that are hooked?

As a program (`python -m tests.gpu.pointers LIBRARY`) it prints both as JSON, from a process that loads the driver.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from collections.abc import Iterator

from exporter.cuda.functions import FUNCTIONS
from tests.gpu.machine import Machine
from tests.gpu.outcome import Row, equal, expect

NUMBER = 2
FLAGS = {"default": 0, "per-thread default stream": 2}
VARIANT = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")
SHOWN = 12


def run(machine: Machine) -> Iterator[Row]:
    compared = machine.python("tests.gpu.pointers", str(machine.library("libcuda.so.1")))
    yield expect(
        NUMBER,
        "hooked driver symbols",
        compared["exported"] > 0,
        f"{compared['exported']} of {compared['known']} exported",
    )
    for flags, given in compared["given"].items():
        differ = sorted(name for name, hooked in given.items() if not hooked)
        yield expect(NUMBER, f"pointers requested ({flags})", bool(given), f"{len(given)} given")
        more = f" and {len(differ) - SHOWN} more" if len(differ) > SHOWN else ""
        yield equal(NUMBER, f"of these not hooked ({flags})", "none", (", ".join(differ[:SHOWN]) or "none") + more)


def compare(path: str) -> dict[str, object]:
    """Return the names that give a pointer, and whether to a hooked symbol; for the versions 12.0 and the driver's."""
    driver = ctypes.CDLL(path)
    driver.cuInit(0)  # fails without a GPU; the pointers are there all the same
    names = [function.name for function in FUNCTIONS if function.layer == "driver"]
    exported = {address for name in names if (address := _address(driver, name))}
    version = ctypes.c_int(0)
    if _address(driver, "cuDriverGetVersion"):
        driver.cuDriverGetVersion(ctypes.byref(version))
    given: dict[str, dict[str, bool]] = {flags: {} for flags in FLAGS}
    for base in sorted({VARIANT.sub("", name) for name in names}):
        for flags, number in FLAGS.items():
            for requested in {12000, version.value or 12000}:
                pointer, status = ctypes.c_void_p(), ctypes.c_int()
                arguments = (ctypes.byref(pointer), requested, ctypes.c_uint64(number), ctypes.byref(status))
                if driver.cuGetProcAddress_v2(base.encode(), *arguments) == 0 and pointer.value:
                    given[flags][f"{base} {requested}"] = pointer.value in exported
    return {"known": len(names), "exported": sum(map(bool, (_address(driver, it) for it in names))), "given": given}


def _address(library: ctypes.CDLL, name: str) -> int | None:
    function = getattr(library, name, None)
    return ctypes.cast(function, ctypes.c_void_p).value if function is not None else None


if __name__ == "__main__":
    print(json.dumps(compare(sys.argv[1])))
