"""Cost of one probe hit to the probed thread on this machine, measured with probes on a small trial program."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from exporter.bpf import object_path
from exporter.bpf.elf import AARCH64, X86_64
from exporter.bpf.libbpf import BpfError, Object
from exporter.bpf.placement import Kind
from exporter.bpf.trial_program import CODE, MACHINES, TrialProgram, assemble, executable
from exporter.bpf.uprobe import Point, attach, close_all
from exporter.model import Kind as MetricKind
from exporter.model import Metric, Sample, Unavailable

HIT_COST = Metric(
    "accel_exporter.probe.hit.cost",
    "Time that a hit of a small probe takes from the probed thread on this node: the minimum of many, measured at "
    "start. placement has the values of accel_exporter_probe_attached; with returns=true it is a return probe, the "
    "trap at entry included.",
    MetricKind.GAUGE,
    unit="s",
    labels=("placement", "returns"),
)

ROUNDS, CALLS, STRIDE = 16, 32, 16
FUNCTIONS_AT = 0x80
"""Offset in bytes, in the code, of the first of five functions, STRIDE bytes apart. Each of ROUNDS rounds calls each
function CALLS times."""
ENTRY = 0
"""Key of the count of entry hits (enum hit of bpf/calibrate.bpf.c)."""
PLAIN, EMULATED, STEPPED, RETURN_EMULATED, RETURN_STEPPED = range(5)

# Times every function in every round and writes the times (struct timespec) to standard output.
X86_64_LISTING = """
41 bd 10 00 00 00  mov r13d, 0x10
48 81 ec 10 05 00 00  sub rsp, 0x510
49 89 e6  mov r14, rsp
48 8d 1d 69 00 00 00  lea rbx, [rip + 0x69]
49 89 dc  mov r12, rbx
4c 8d 7b 50  lea r15, [rbx + 0x50]
e8 3c 00 00 00  call 0x5f
bd 20 00 00 00  mov ebp, 0x20
41 ff d4  call r12
ff cd  dec ebp
75 f9  jne 0x28
49 83 c4 10  add r12, 0x10
4d 39 fc  cmp r12, r15
75 e6  jne 0x1e
41 ff cd  dec r13d
75 da  jne 0x17
e8 1d 00 00 00  call 0x5f
bf 01 00 00 00  mov edi, 1
48 89 e6  mov rsi, rsp
ba 10 05 00 00  mov edx, 0x510
b8 01 00 00 00  mov eax, 1
0f 05  syscall
31 ff  xor edi, edi
b8 e7 00 00 00  mov eax, 0xe7
0f 05  syscall
bf 01 00 00 00  mov edi, 1
4c 89 f6  mov rsi, r14
b8 e4 00 00 00  mov eax, 0xe4
0f 05  syscall
49 83 c6 10  add r14, 0x10
c3  ret
"""
X86_64_FUNCTIONS = {
    "emulated": "55  push rbp\n48 89 e5  mov rbp, rsp\n5d  pop rbp\nc3  ret",
    "stepped": "f3 0f 1e fa  endbr64\n55  push rbp\n48 89 e5  mov rbp, rsp\n5d  pop rbp\nc3  ret",
}
AARCH64_LISTING = """
15 02 80 52  mov w21, #0x10
ff 43 14 d1  sub sp, sp, #0x510
f6 03 00 91  mov x22, sp
b7 03 00 10  adr x23, #0x80
f3 03 17 aa  mov x19, x23
f8 42 01 91  add x24, x23, #0x50
13 00 00 94  bl #0x64
14 04 80 52  mov w20, #0x20
60 02 3f d6  blr x19
94 06 00 71  subs w20, w20, #1
c1 ff ff 54  b.ne #0x20
73 42 00 91  add x19, x19, #0x10
7f 02 18 eb  cmp x19, x24
21 ff ff 54  b.ne #0x18
b5 06 00 71  subs w21, w21, #1
a1 fe ff 54  b.ne #0x10
09 00 00 94  bl #0x64
20 00 80 d2  mov x0, #1
e1 03 00 91  mov x1, sp
02 a2 80 d2  mov x2, #0x510
08 08 80 d2  mov x8, #0x40
01 00 00 d4  svc #0
00 00 80 d2  mov x0, #0
c8 0b 80 d2  mov x8, #0x5e
01 00 00 d4  svc #0
20 00 80 d2  mov x0, #1
e1 03 16 aa  mov x1, x22
28 0e 80 d2  mov x8, #0x71
01 00 00 d4  svc #0
d6 42 00 91  add x22, x22, #0x10
c0 03 5f d6  ret
"""
AARCH64_FUNCTIONS = {
    "emulated": "01 00 00 14  b #4\nc0 03 5f d6  ret",
    "stepped": "fd 7b bf a9  stp x29, x30, [sp, #-0x10]!\nfd 7b c1 a8  ldp x29, x30, [sp], #0x10\nc0 03 5f d6  ret",
}
_PARTS = {X86_64: (X86_64_LISTING, X86_64_FUNCTIONS), AARCH64: (AARCH64_LISTING, AARCH64_FUNCTIONS)}


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that a call takes longer with an entry probe, or with a return probe alone (which traps at entry too).

    None: return probes do not work for programs that the exporter starts.
    """

    emulated: float
    stepped: float
    return_emulated: float | None
    return_stepped: float | None

    def of(self, kind: Kind, returns: bool) -> float | None:
        """The cost of one hit at such a place, in seconds."""
        if returns:
            return self.return_emulated if kind == "emulated" else self.return_stepped
        return self.emulated if kind == "emulated" else self.stepped

    def samples(self) -> Iterator[Sample]:
        kinds: tuple[Kind, Kind] = ("emulated", "stepped")
        for kind in kinds:
            for returns in (False, True):
                cost = self.of(kind, returns)
                if cost is not None:
                    yield HIT_COST.sample(cost, {"placement": kind, "returns": str(returns).lower()})


def image(machine: int) -> bytes:
    """The program that is measured; its five functions differ only in what is attached to them."""
    listing, functions = _PARTS[machine]
    kinds = ("emulated", "emulated", "stepped", "emulated", "stepped")
    code = assemble(listing).ljust(FUNCTIONS_AT, b"\0")
    return executable(machine, code + b"".join(assemble(functions[kind]).ljust(STRIDE, b"\0") for kind in kinds))


def calibrate() -> Costs:
    """Measures in about 60 ms, half of them waiting for the kernel to detach.

    Raises Unavailable where probes cannot be tried.
    """
    machine = MACHINES.get(os.uname().machine)
    if machine is None:
        raise Unavailable(f"the cost of a probe cannot be measured on {os.uname().machine}")
    try:
        with Object(object_path("calibrate")) as loaded, TrialProgram(image(machine)) as program:
            costs = _measure(loaded, program, returns=True) or _measure(loaded, program, returns=False)
    except BpfError as error:
        raise Unavailable(f"the cost of a probe cannot be measured: {error}") from error
    if costs is None:
        raise Unavailable("the cost of a probe cannot be measured: the probed program ended early")
    return costs


def _measure(loaded: Object, program: TrialProgram, returns: bool) -> Costs | None:
    """Return what the probes cost; None if the program did not survive them."""
    hits = loaded.maps["hits"]
    before: int = hits.get(ENTRY) or 0
    links = []
    try:
        links.append(attach(loaded.programs["on_entry"], program.path, _points(EMULATED, STEPPED)))
        if returns:
            places = _points(RETURN_EMULATED, RETURN_STEPPED)
            links.append(attach(loaded.programs["on_return"], program.path, places, returns=True))
        status, written = program.run()
    finally:
        close_all(links)
    if status:
        return None
    if (hits.get(ENTRY) or 0) - before != 2 * ROUNDS * CALLS:
        raise Unavailable("probes attach but do not fire on this kernel")
    times = _least(written)
    costs = [max(0.0, time - times[PLAIN]) / CALLS for time in times]
    back = (costs[RETURN_EMULATED], costs[RETURN_STEPPED]) if returns else (None, None)
    return Costs(costs[EMULATED], costs[STEPPED], *back)


def _points(*functions: int) -> list[Point]:
    return [Point(CODE + FUNCTIONS_AT + STRIDE * function) for function in functions]


def _least(written: bytes) -> list[float]:
    """The shortest time in seconds of CALLS calls of each function."""
    stamps = [seconds + nanoseconds * 1e-9 for seconds, nanoseconds in struct.iter_unpack("=qq", written)]
    times = [after - before for before, after in pairwise(stamps)]
    return [min(times[function :: len(times) // ROUNDS]) for function in range(len(times) // ROUNDS)]
