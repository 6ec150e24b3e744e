"""A custom probe's C file as bcc compiles and loads it. The worker imports this module: Python 3.9 and bcc only."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from exporter.custom import tracefs
from exporter.custom.messages import Shape, WorkerConfig
from exporter.custom.tables import CompiledMap, plain

MOST_OUTPUT = 16_384
_UPROBE_MULTI, _KPROBE = 48, 2  # BPF_TRACE_UPROBE_MULTI, BPF_PROG_TYPE_KPROBE

_USDT = """
struct accel_usdt_arg { u64 value; u32 kind; u32 from; u32 size; u32 is_signed; };
struct accel_usdt_args { struct accel_usdt_arg of[12]; };
BPF_ARRAY(accel_usdt, struct accel_usdt_args, 256);
static inline int usdt_arg(void *ctx, u32 number, u64 *value) {
    u32 at = bpf_get_attach_cookie(ctx);
    struct accel_usdt_args *args = accel_usdt.lookup(&at);
    u64 found = 0;
    *value = 0;
    if (!args || number < 1 || number > 12)
        return -1;
    struct accel_usdt_arg *arg = &args->of[number - 1];
    if (arg->kind == 0)
        return -1;
    if (arg->kind == 1)
        found = arg->value;
    else if (bpf_probe_read_kernel(&found, 8, ctx + (arg->from & 511)))
        return -1;
    if (arg->kind == 3 && bpf_probe_read_user(&found, 8, (void *)(found + arg->value)))
        return -1;
    u32 shift = 64 - 8 * (arg->size & 15);
    found <<= shift & 63;
    *value = arg->is_signed ? (u64)((s64)found >> (shift & 63)) : found >> (shift & 63);
    return 0;
}
"""

_NO_PROGRAMS = "BPF_PROG_ARRAY(accel_none, 1);\n"
_KERNEL_STACK = " { volatile int accel_never = 0; if (accel_never) accel_none.call(%s, 0); }"
"""A tail call that is never made, at the beginning of a program: see use_kernel_stack() of bpf/probe.h."""


class Stop(Exception):
    """The end of the worker: a reason with details, or neither when the parent requested it."""

    def __init__(self, reason: str = "", details: str = "") -> None:
        super().__init__(reason)
        self.reason, self.details = reason, details


class StandardError:
    """The process's standard error, where the compiler and libbpf write, kept in memory."""

    def __init__(self) -> None:
        self._file = os.memfd_create("stderr")
        os.dup2(self._file, 2)

    def take(self) -> str:
        """Return what was written since the last call, at most MOST_OUTPUT bytes of it."""
        size = os.lseek(self._file, 0, os.SEEK_END)
        text = os.pread(self._file, MOST_OUTPUT, 0).decode("utf-8", "replace")
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        return (text + ("…" if size > MOST_OUTPUT else "")).strip()


class Compiled:
    """A C file, compiled. Its methods raise Stop when the file does not match the configuration."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config, self._file = config, f"{config.name}.c"
        self._stderr = StandardError()
        self._bpf: Any = self._compile()

    def table(self, name: str) -> CompiledMap:
        """Return the map of this name."""
        try:
            return CompiledMap(name, self._bpf[name.encode()])
        except KeyError:
            raise Stop(f"{self._file} has no map {name}, which {self._config.name}.yaml names") from None
        except IndexError as error:
            raise Stop(f"{self._file}: map {name} cannot be read: {error}") from None

    def load(self, program: str) -> None:
        """Load a program with the type of link that the parent attaches it with."""
        how = {"attach_type": _UPROBE_MULTI} if self._config.multi else {}
        try:
            self._bpf.load_func(program.encode(), _KPROBE, **how)
        except TypeError as error:
            raise Stop("this bcc cannot load programs for multi-uprobe links: 0.23 or newer is needed") from error
        except Exception as error:
            if "nknown program" in str(error):
                problem = f"{self._file} has no function {program}, which {self._config.name}.yaml names"
                raise Stop(problem) from error
            raise Stop(f"{self._file}: the kernel refuses {program}: {error}", self._stderr.take()) from error

    def attach_tracepoint(self, event: str, program: str) -> str:
        """Return why the tracepoint is not attached; empty if it is."""
        if not program:  # bcc attaches these by their name
            found = "tracepoint__" + event.replace(":", "__") in self._functions()
            return "" if found else f"{self._file} has no TRACEPOINT_PROBE for it"
        if reason := tracefs.missing():
            return f"{reason}: {tracefs.MOUNT}"
        try:
            self._bpf.attach_tracepoint(tp=event.encode(), fn_name=program.encode())
        except Exception as error:
            output = self._stderr.take().splitlines()
            return f"{error}{': ' + output[-1] if output else ''}"[:500]
        return ""

    def programs(self) -> dict[str, int]:
        """Return the descriptors of all loaded programs, those of tracepoints too, by name."""
        return {name.decode(): int(function.fd) for name, function in self._bpf.funcs.items()}

    def usdt_arguments(self) -> int:
        """Return the descriptor of the map of USDT arguments."""
        return int(self._bpf[b"accel_usdt"].map_fd)

    def listen(
        self, buffer: str, receive: Callable[[list[Any]], None], lost: Callable[[int], None]
    ) -> Callable[[int], Any]:
        """Open a ring or perf buffer. `receive` gets records, as lists of fields, and `lost` counts of lost records.

        Returns the function that polls the buffer, for at most the milliseconds of its argument.
        """
        try:
            table = self._bpf[buffer.encode()]
        except KeyError:
            raise Stop(f"{self._file} has no buffer {buffer}, which {self._config.name}.yaml names") from None
        read = plain(self._record(buffer, table))[1]

        def take(_: object, data: int, __: int) -> int:
            receive(read(table.event(data)))
            return 0

        poll: Callable[[int], Any]
        if hasattr(table, "open_ring_buffer"):
            table.open_ring_buffer(take)
            poll = self._bpf.ring_buffer_poll
        elif hasattr(table, "open_perf_buffer"):
            table.open_perf_buffer(take, page_cnt=64, lost_cb=lost)
            poll = self._bpf.perf_buffer_poll
        else:
            raise Stop(f"{self._file}: {buffer} is a {type(table).__name__}, no ring or perf buffer")
        return poll

    def record_shape(self, buffer: str) -> Shape:
        """Return the fields of the buffer's records, as those of a value."""
        table = self._bpf[buffer.encode()]
        return Shape(type(table).__name__, 0, None, plain(self._record(buffer, table))[0])

    def free_memory(self) -> None:
        """Return to the kernel as much of the compiler's memory as possible."""
        with suppress(Exception):
            self._bpf.free_bcc_memory()
            ctypes.CDLL(None).malloc_trim(0)

    def _compile(self) -> Any:
        config = self._config
        try:
            import bcc  # type: ignore[import-not-found]

            make = bcc.BPF
        except (ImportError, AttributeError) as error:
            remedy = "install python3-bpfcc (Debian, Ubuntu) or python3-bcc (Fedora, RHEL), or set --custom.python"
            raise Stop(f"{sys.executable} has no bcc: {remedy}", str(error)) from error
        with os.fdopen(config.source, encoding="utf-8") as file:
            source = on_kernel_stack(file.read(), config.programs)
        text = f'{_NO_PROGRAMS}{_USDT if config.usdt else ""}#line 1 "{self._file}"\n{source}'
        if config.headers:
            os.environ["BCC_KERNEL_SOURCE"] = config.headers
        try:
            return make(text=text.encode())
        except Exception as error:
            output = self._stderr.take()
            if config.tracepoints and (reason := tracefs.missing()):
                raise Stop(f"{self._file}: {reason}: {tracefs.MOUNT}", output) from error
            reason = "the compiler refuses it" if "ompile" in str(error) else f"it cannot be loaded: {error}"
            raise Stop(f"{self._file}: {reason}", output) from error

    def _functions(self) -> set[str]:
        from bcc import lib

        module = self._bpf.module
        return {lib.bpf_function_name(module, number).decode() for number in range(lib.bpf_num_functions(module))}

    def _record(self, buffer: str, table: Any) -> Any:
        from bcc.table import _get_event_class  # type: ignore[import-not-found]

        try:
            return _get_event_class(table)
        except Exception as error:
            problem = f"{self._file}: the type of {buffer}'s records is not known to bcc: submit a struct to it"
            raise Stop(problem, str(error)) from error


def on_kernel_stack(source: str, programs: Iterable[str]) -> str:
    """Return a C file in which functions of these names have no private stack, which is the processor's.

    A function that a macro of the file writes is left as it is.
    """
    for name in programs:
        head = re.compile(rf"\b{re.escape(name)}\s*\([\w\s]*\*\s*(\w+)[^(){{}};]*\)\s*\{{")
        source = head.sub(lambda found: found[0] + _KERNEL_STACK % found[1], source, count=1)
    return source
