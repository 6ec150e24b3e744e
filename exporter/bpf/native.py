"""libbpf.so.1 through ctypes: its functions, its messages, and the one error all BPF work raises."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exporter import descriptors
from exporter.model import Unavailable

LOG_LINES = 8
INSTALL = "install libbpf 1.1 or newer (package libbpf1 on Debian and Ubuntu)"
_MESSAGE_BYTES = 1024
_VERIFIER_BYTES = 1 << 20
_PRINT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
EVENT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

# Without these, bpf() answers EPERM (capability.h; capabilities(7)).
_CAPABILITIES = {"CAP_BPF": 39, "CAP_PERFMON": 38}
_CAP_SYS_ADMIN = 21
NOT_SUPPORTED = 524
"""ENOTSUPP, which never reaches user space's table."""
_LACKING = frozenset(
    {
        *(errno.EPERM, errno.EACCES),
        *(errno.EINVAL, errno.E2BIG, errno.ENOSYS, errno.EOPNOTSUPP, NOT_SUPPORTED),
        *(errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.ENXIO),
    }
)
"""Permissions; what an old kernel has not; objects, libraries, tracepoints and types that are not there."""


class BpfError(OSError):
    """Something the kernel or libbpf refused. The message has what was attempted and what to do."""

    def __str__(self) -> str:
        return str(self.strerror or super().__str__())

    @property
    def lacking(self) -> bool:
        """True if the node lacks what was attempted; false for faults and for a shortage of memory or descriptors."""
        return self.errno in _LACKING


class _Uprobe(ctypes.Structure):
    """struct bpf_uprobe_opts of libbpf.h."""

    _fields_ = [
        ("sz", ctypes.c_size_t),
        ("ref_ctr_offset", ctypes.c_size_t),
        ("bpf_cookie", ctypes.c_uint64),
        ("retprobe", ctypes.c_bool),
        ("func_name", ctypes.c_char_p),
    ]


class _TestRun(ctypes.Structure):
    """struct bpf_test_run_opts of bpf.h."""

    _fields_ = [
        ("sz", ctypes.c_size_t),
        ("data_in", ctypes.c_void_p),
        ("data_out", ctypes.c_void_p),
        ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32),
        ("ctx_in", ctypes.c_void_p),
        ("ctx_out", ctypes.c_void_p),
        ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32),
        ("retval", ctypes.c_uint32),
        ("repeat", ctypes.c_int),
        ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
        ("batch_size", ctypes.c_uint32),
    ]


UprobeOptions, TestRunOptions = _Uprobe, _TestRun

_P, _S, _I, _U32, _U64 = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64
_FUNCTIONS: dict[str, tuple[Any, ...]] = {  # result, then arguments
    "bpf_object__open_file": (_P, _S, _P),
    "bpf_object__load": (_I, _P),
    "bpf_object__close": (None, _P),
    "bpf_object__btf": (_P, _P),
    "bpf_object__next_map": (_P, _P, _P),
    "bpf_object__next_program": (_P, _P, _P),
    "btf__raw_data": (_P, _P, ctypes.POINTER(_U32)),
    "bpf_map__name": (_S, _P),
    "bpf_map__fd": (_I, _P),
    "bpf_map__reuse_fd": (_I, _P, _I),
    "bpf_map__type": (_I, _P),
    "bpf_map__max_entries": (_U32, _P),
    "bpf_map__set_max_entries": (_I, _P, _U32),
    "bpf_map__key_size": (_U32, _P),
    "bpf_map__value_size": (_U32, _P),
    "bpf_map__set_value_size": (_I, _P, _U32),
    "bpf_map__initial_value": (_P, _P, ctypes.POINTER(ctypes.c_size_t)),
    "bpf_program__name": (_S, _P),
    "bpf_program__section_name": (_S, _P),
    "bpf_program__fd": (_I, _P),
    "bpf_program__attach": (_P, _P),
    "bpf_program__attach_uprobe_opts": (_P, _P, _I, _S, ctypes.c_size_t, ctypes.POINTER(_Uprobe)),
    "bpf_program__set_expected_attach_type": (_I, _P, _I),
    "bpf_program__set_autoload": (_I, _P, ctypes.c_bool),
    "bpf_prog_test_run_opts": (_I, _I, ctypes.POINTER(_TestRun)),
    "bpf_enable_stats": (_I, _I),
    "bpf_obj_get_opts": (_I, _S, _P),
    "bpf_obj_get_info_by_fd": (_I, _I, _P, ctypes.POINTER(_U32)),
    "bpf_iter_create": (_I, _I),
    "bpf_link__destroy": (_I, _P),
    "bpf_link_create": (_I, _I, _I, _I, _P),
    "bpf_map_get_next_key": (_I, _I, _P, _P),
    "bpf_map_lookup_elem": (_I, _I, _P, _P),
    "bpf_map_update_elem": (_I, _I, _P, _P, _U64),
    "bpf_map_delete_elem": (_I, _I, _P),
    "bpf_map_lookup_and_delete_elem": (_I, _I, _P, _P),
    "bpf_map_lookup_batch": (_I, _I, _P, _P, _P, _P, ctypes.POINTER(_U32), _P),
    "bpf_map_update_batch": (_I, _I, _P, _P, ctypes.POINTER(_U32), _P),
    "bpf_map_delete_batch": (_I, _I, _P, ctypes.POINTER(_U32), _P),
    "libbpf_num_possible_cpus": (_I,),
    "libbpf_set_print": (_P, _PRINT),
    "ring_buffer__new": (_P, _I, EVENT, _P, _P),
    "ring_buffer__consume": (_I, _P),
    "ring_buffer__free": (None, _P),
}


class NativeLibrary:
    """The libbpf of this machine. Functions are attributes under their C names; those returning int give -errno."""

    def __init__(self) -> None:
        try:
            library = ctypes.CDLL("libbpf.so.1", use_errno=True)
            for name, (result, *arguments) in _FUNCTIONS.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise BpfError(
                errno.ENOENT,
                f"cannot use libbpf.so.1 ({error}): {INSTALL}",
            ) from error
        self._functions = library
        self._logged = threading.local()
        """Messages are logged in the thread of the call that they are of."""
        format_message = ctypes.CDLL(None).vsnprintf
        format_message.argtypes = (_P, ctypes.c_size_t, _S, _P)

        def keep(level: int, template: bytes, arguments: int) -> int:
            if level == 0:  # LIBBPF_WARN; the rest is chatter
                size = _VERIFIER_BYTES if b"LOG --" in template else _MESSAGE_BYTES
                text = ctypes.create_string_buffer(size)
                format_message(text, size, template, arguments)
                self._messages().extend(
                    line for line in text.value.decode(errors="replace").splitlines() if line.strip()
                )
            return 0

        self._keep = _PRINT(keep)  # libbpf holds only the address
        library.libbpf_set_print(self._keep)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._functions, name)

    def _messages(self) -> deque[str]:
        lines: deque[str] = vars(self._logged).setdefault("lines", deque(maxlen=LOG_LINES))
        return lines

    def forget_messages(self) -> None:
        self._messages().clear()

    def messages(self) -> str:
        """The last lines that libbpf and the verifier logged, to end an error message with; empty without any."""
        return "".join(f"\n  {line}" for line in self._messages())


@functools.cache
def library() -> NativeLibrary:
    """Opens libbpf at first use; BpfError if this machine has none."""
    return NativeLibrary()


def failure(code: int, attempted: str, details: str = "") -> BpfError:
    """The error for a positive errno: what was attempted, the system's message, and what to do if it was permission."""
    reason = os.strerror(code) if code != NOT_SUPPORTED else "not supported by this kernel"
    if code in (errno.EPERM, errno.EACCES) and (missing := missing_capabilities()):
        reason += f": run as root or grant {' and '.join(missing)}"
    elif code == errno.EPERM:
        reason += ": the capabilities are there, so look at the user namespace, seccomp profile and kernel lockdown"
    elif code == errno.EMFILE:
        reason += f": {descriptors.RAISE}"
    return BpfError(code, f"{attempted}: {reason}{details}")


def not_started(what: str, error: BpfError) -> Unavailable | BpfError:
    """Return what a collector raises that cannot start: Unavailable where the node lacks what the collector needs."""
    if error.lacking:
        return Unavailable(f"{what}: {error}", "see accel-exporter doctor")
    return BpfError(error.errno or errno.EIO, f"{what}: {error}")


def check(result: int | None, attempted: str, details: Callable[[], str] = str) -> int:
    """A libbpf result if it is a success, else BpfError; None is a null pointer with errno set."""
    if result is None or result < 0:
        raise failure(-result if result else ctypes.get_errno() or errno.EINVAL, attempted, details())
    return result


def require_descriptors(count: int, attempted: str) -> None:
    """Raises BpfError where the limit of open files leaves probes fewer descriptors than this, or they are unknown."""
    if descriptors.room() < count:
        if reason := descriptors.uncountable():
            raise BpfError(errno.ENOENT, f"{attempted}: {reason}")
        raise failure(errno.EMFILE, attempted)


def missing_capabilities(status: Path = Path("/proc/self/status")) -> list[str]:
    """Return the names of the capabilities for BPF that this process lacks; CAP_SYS_ADMIN stands for all."""
    for line in status.read_text().splitlines():
        if line.startswith("CapEff:"):
            held = int(line.split()[1], 16)
            if not held >> _CAP_SYS_ADMIN & 1:
                return [name for name, bit in _CAPABILITIES.items() if not held >> bit & 1]
    return []
