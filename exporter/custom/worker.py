"""The child that compiles one probe with bcc and reads its maps: `exporter.custom.worker JSON`.

It runs under an interpreter that has bcc, which need not be the exporter's (Debian's python3 by default), so what it
imports of this package needs nothing but the standard library of Python 3.9. The parent attaches to libraries: it gets
the descriptors of the loaded programs. Tracepoints are attached here.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import resource
import select
import socket
import sys
import time
from contextlib import suppress
from typing import Any

from exporter.background.child import die_with_parent, private_output
from exporter.custom import tracefs
from exporter.custom.messages import Failed, Order, Read, Records, Rows, Shape, Started, encode
from exporter.custom.tables import Table, plain

MEMORY = 4 << 30
"""Address space at most: a C file that makes the compiler run away ends this process and nothing else."""
SAID = 16_384
MOST_AT_ONCE = 500
POLL_SECONDS = 0.2
MOST_PROGRAMS = 200
"""A message takes no more descriptors than 253 (SCM_MAX_FD)."""
_UPROBE_MULTI, _KPROBE = 48, 2  # BPF_TRACE_UPROBE_MULTI, BPF_PROG_TYPE_KPROBE

USDT = """
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


class Stop(Exception):
    """It cannot go on, or is to end: nothing to say (no reason), or why."""

    def __init__(self, reason: str = "", details: str = "") -> None:
        super().__init__(reason)
        self.reason, self.details = reason, details


class Said:
    """What libraries write to standard error, for the message that tells of it."""

    def __init__(self) -> None:
        self._file = os.memfd_create("said")
        os.dup2(self._file, 2)

    def take(self) -> str:
        size = os.lseek(self._file, 0, os.SEEK_END)
        text = os.pread(self._file, SAID, 0).decode("utf-8", "replace")
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        return (text + ("…" if size > SAID else "")).strip()


class Worker:
    """One probe, compiled and loaded when made; Stop when that is not possible."""

    def __init__(self, order: Order, output: int) -> None:
        self._order, self._output = order, output
        self._said = Said()
        self._bpf: Any = self._compile()
        self._tables = {name: self._table(name) for name in order.maps}
        self._kept: dict[str, list[list[Any]]] = {}
        self._lost = dict.fromkeys(order.buffers, 0)
        self._limited = self._window = self._in_window = 0
        self._gone: dict[int, float] = {}
        self._bury_at = 0.0
        self._polls = {self._listen_to(name) for name in order.buffers}
        for name in order.programs:
            self._program(name)
        attached = {event: self._attach(event, program) for event, program in order.tracepoints}
        programs = self._send_programs()
        shapes = {name: table.shape() for name, table in self._tables.items()}
        shapes.update({name: self._record_shape(name) for name in order.buffers})
        with suppress(Exception):  # as much memory as can be had back from the compiler
            self._bpf.free_bcc_memory()
            ctypes.CDLL(None).malloc_trim(0)
        self._tell(Started(programs, shapes, attached))

    def run(self) -> None:
        """Reads and listens until the parent is gone or says so (Stop)."""
        due = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= due:
                self._read()
                due = max(due + self._order.interval, now)
            wait = max(0.0, min(due - time.monotonic(), POLL_SECONDS if self._polls else due))
            if self._polls:
                for poll in self._polls:
                    getattr(self._bpf, poll)(int(wait * 1000 / len(self._polls)))
                self._flush()
                wait = 0.0
            readable, _, _ = select.select([0], [], [], wait)
            if readable and not os.read(0, 4096):
                raise Stop

    def _send_programs(self) -> list[str]:
        """Their names, in the order in which their descriptors were sent."""
        loaded = [(name.decode(), int(function.fd)) for name, function in self._bpf.funcs.items()]
        if len(loaded) > MOST_PROGRAMS:
            raise Stop(f"{self._order.name}.c has more than {MOST_PROGRAMS} programs")
        descriptors = [descriptor for _, descriptor in loaded]
        if self._order.usdt:
            descriptors.append(int(self._bpf[b"accel_usdt"].map_fd))
        with socket.socket(fileno=self._order.channel) as channel:
            if descriptors:
                channel.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])
        return [name for name, _ in loaded]

    def _compile(self) -> Any:
        order = self._order
        try:
            import bcc  # type: ignore[import-not-found]

            make = bcc.BPF
        except (ImportError, AttributeError) as error:
            remedy = "install python3-bpfcc (Debian, Ubuntu) or python3-bcc (Fedora, RHEL), or say --custom.python"
            raise Stop(f"{sys.executable} has no bcc: {remedy}", str(error)) from error
        with os.fdopen(order.source, encoding="utf-8") as file:
            text = f'{USDT if order.usdt else ""}#line 1 "{order.name}.c"\n{file.read()}'
        if order.headers:
            os.environ["BCC_KERNEL_SOURCE"] = order.headers
        try:
            return make(text=text.encode())
        except Exception as error:
            said = self._said.take()
            if order.tracepoints and (reason := tracefs.missing()):
                raise Stop(f"{order.name}.c: {reason}: {tracefs.MOUNT}", said) from error
            reason = "the compiler refuses it" if "ompile" in str(error) else f"it cannot be loaded: {error}"
            raise Stop(f"{order.name}.c: {reason}", said) from error

    def _table(self, name: str) -> Table:
        try:
            return Table(name, self._bpf[name.encode()])
        except KeyError:
            raise Stop(f"{self._order.name}.c has no map {name}, which {self._order.name}.yaml names") from None
        except IndexError as error:
            raise Stop(f"{self._order.name}.c: map {name} cannot be read: {error}") from None

    def _program(self, name: str) -> None:
        """Loads it for what the parent is going to attach it to."""
        how = {"attach_type": _UPROBE_MULTI} if self._order.multi else {}
        try:
            self._bpf.load_func(name.encode(), _KPROBE, **how)
        except TypeError as error:
            raise Stop("this bcc cannot load programs for multi-uprobe links: 0.23 or newer is needed") from error
        except Exception as error:
            if "nknown program" in str(error):
                problem = f"{self._order.name}.c has no function {name}, which {self._order.name}.yaml names"
                raise Stop(problem) from error
            raise Stop(f"{self._order.name}.c: the kernel refuses {name}: {error}", self._said.take()) from error

    def _attach(self, event: str, program: str) -> str:
        """Why the tracepoint is not attached to; empty when it is."""
        named = program or "tracepoint__" + event.replace(":", "__")
        if not program:  # bcc attaches these by their name
            functions = [self._function(number) for number in range(self._functions())]
            return "" if named in functions else f"{self._order.name}.c has no TRACEPOINT_PROBE for it"
        if reason := tracefs.missing():
            return f"{reason}: {tracefs.MOUNT}"
        try:
            self._bpf.attach_tracepoint(tp=event.encode(), fn_name=program.encode())
        except Exception as error:
            said = self._said.take().splitlines()
            return f"{error}{': ' + said[-1] if said else ''}"[:500]
        return ""

    def _functions(self) -> int:
        from bcc import lib

        return int(lib.bpf_num_functions(self._bpf.module))

    def _function(self, number: int) -> str:
        from bcc import lib

        return str(lib.bpf_function_name(self._bpf.module, number).decode())

    def _listen_to(self, name: str) -> str:
        """Which poll of bcc's serves the buffer."""
        try:
            table = self._bpf[name.encode()]
        except KeyError:
            raise Stop(f"{self._order.name}.c has no buffer {name}, which {self._order.name}.yaml names") from None
        read = plain(self._record(name, table))[1]

        def take(_: object, data: int, __: int) -> int:
            self._take(name, read(table.event(data)))
            return 0

        def lose(count: int) -> None:
            self._lost[name] += count

        if hasattr(table, "open_ring_buffer"):
            table.open_ring_buffer(take)
            return "ring_buffer_poll"
        if hasattr(table, "open_perf_buffer"):
            table.open_perf_buffer(take, page_cnt=64, lost_cb=lose)
            return "perf_buffer_poll"
        raise Stop(f"{self._order.name}.c: {name} is a {type(table).__name__}, no ring or perf buffer")

    def _record(self, name: str, table: Any) -> Any:
        from bcc.table import _get_event_class  # type: ignore[import-not-found]

        try:
            return _get_event_class(table)
        except Exception as error:
            problem = f"{self._order.name}.c: the type of {name}'s records is not known to bcc: submit a struct to it"
            raise Stop(problem, str(error)) from error

    def _record_shape(self, name: str) -> Shape:
        table = self._bpf[name.encode()]
        return Shape(type(table).__name__, 0, None, plain(self._record(name, table))[0])

    def _take(self, buffer: str, row: list[Any]) -> None:
        second = int(time.monotonic())
        if second != self._window:
            self._window, self._in_window = second, 0
        self._in_window += 1
        if self._in_window > self._order.records_per_second:
            self._limited += 1
            return
        rows = self._kept.setdefault(buffer, [])
        rows.append(row)
        if len(rows) >= MOST_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        kept, self._kept = self._kept, {}
        for buffer, rows in kept.items():
            self._tell(Records(buffer, rows))

    def _read(self) -> None:
        self._bury()
        for table in self._tables.values():
            self._tell(table.read())
        self._tell(Read(self._lost, self._limited))

    def _bury(self) -> None:
        """Deletes the rows of processes that ended a while ago: hash maps would fill up with them."""
        now = time.monotonic()
        if now < self._bury_at:
            return
        self._bury_at = now + self._order.kept_seconds / 10
        mortal = [(self._tables[name], field) for name, field in self._order.mortal.items()]
        pids = {pid for table, field in mortal for pid in table.pids(field)}
        self._gone = {pid: self._gone.get(pid, now) for pid in pids if not self._alive(pid)}
        due = {pid for pid, since in self._gone.items() if now - since >= self._order.kept_seconds}
        for table, field in mortal if due else ():
            table.delete(due.__contains__, field)

    def _alive(self, pid: int) -> bool:
        return os.path.exists(f"{self._order.proc}/{pid}")  # noqa: PTH110  # of every pid, at every reading

    def _tell(self, message: Started | Rows | Read | Records) -> None:
        line = encode(message)
        while line:
            line = line[os.write(self._output, line) :]


def main(argument: str) -> None:
    order = Order(**json.loads(argument))
    die_with_parent(order.parent)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.nice(10)  # compiling takes seconds, and jobs run here
    output = private_output()
    try:
        Worker(order, output).run()
    except (Stop, BrokenPipeError) as error:
        if isinstance(error, Stop) and error.reason:
            os.write(output, encode(Failed(error.reason, error.details)))
    except Exception as error:  # the parent says it: nobody reads what this process writes elsewhere
        os.write(output, encode(Failed(f"{type(error).__name__}: {error}")))
        raise


if __name__ == "__main__":
    main(sys.argv[1])
