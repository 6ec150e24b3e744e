"""Uprobe sessions (Linux 6.13): programs that choose at a call whether its return is probed (bpf/returns.bpf.h)."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from types import MappingProxyType

from exporter.bpf import multi, object_path
from exporter.bpf.native import BpfError

_NONE: Mapping[str, int] = MappingProxyType({})
_finding = threading.Lock()


def places() -> Mapping[str, int]:
    """Return where this kernel has the calls that wait for return probes: constants of bpf/returns.bpf.h, in bytes.

    Empty where it has no sessions, no type information, other structures, or a verifier that refuses to read them.
    BpfError for what may pass.
    """
    if multi.refusal(multi.SESSION):
        return _NONE
    with _finding:
        return places_in_kernel()


@functools.cache
def places_in_kernel() -> Mapping[str, int]:
    from exporter.bpf.libbpf import Object  # which needs this module

    try:
        with Object(object_path("session"), multi=False) as finder:
            finder.programs["find"].run()
            found = finder.globals()
        if not found or not all(found.values()):
            return _NONE
        Object(object_path("calibrate"), multi=False, constants=found).close()  # the verifier takes programs with these
    except BpfError as error:
        if not error.lacking:
            raise
        return _NONE
    return MappingProxyType(found)
