"""Lines for Python in a virtual machine."""

from __future__ import annotations

LOAD = """
import os
from pathlib import Path
from exporter.bpf.libbpf import BpfError, Object
without = ("on_data",) if os.uname().release.startswith("6.1.") else ()  # its tracepoint is new in 6.3
found = sorted(Path("exporter/bpf/objects", os.uname().machine).glob("*.o"))
for path in found:
    try:
        if path.name == "serving.bpf.o":
            Object(path, without=without).close()
            Object(path, constants={"tls": 1}, without=without).close()
        else:
            Object(path).close()
        print(path.name, "loaded")
    except BpfError as error:
        print(path.name, str(error)[-900:])
"""
"""Loads each object, and prints its name with `loaded`, or with the error. It has no single quote."""
