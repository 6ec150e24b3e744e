"""Cost of a call with all programs of a probe at a symbol, measured with probes on a small trial program.

Costs from calibrate.py are of a trap with a minimal program. Here a second, small copy of the probe's own object is
attached, with the hooks and cookies that libraries get. The copy has maps of its own, so no trial call is counted.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from exporter.bpf.elf import AARCH64, X86_64
from exporter.bpf.hook import Hook
from exporter.bpf.libbpf import BpfError, Object
from exporter.bpf.trial_program import CODE, MACHINES, TrialProgram, assemble, executable
from exporter.bpf.uprobe import Point, attach, close_all
from exporter.model import Unavailable

Scene = tuple[str, ...]
"""One or two symbols that are called one after the other; each is charged its share."""

ROUNDS, CALLS, SLOTS = 16, 32, 16
SLOTS_AT, STRIDE = 0x100, 0x40
FUNCTIONS_AT = (0x20, 0x30)
"""Offsets in bytes, in a slot, of the two functions that the slot calls; those of the last slot are never probed."""
COUNTS_AT = 0x10000
REQUEST_AT = 0x100000
"""The second argument as an address."""
REQUEST = struct.pack("<QQQIII", 0, 0, REQUEST_AT + 0x40, 1, 0, 0)
"""Contents of memory at REQUEST_AT, zero-padded: struct ibv_send_wr and ibv_recv_wr with one empty segment."""
MOST_ROWS = 1024
"""Of a map of the copy."""

# Calls each slot CALLS times in each of ROUNDS and writes the thread's own CPU time (struct timespec) at every turn to
# standard output. The second argument is a mebibyte, REQUEST_AT as an address. That is read first: to read memory that
# is not there yet takes a program half a microsecond longer. The others point to memory full of pointers to its
# beginning, a page behind a multiple of two mebibytes, and at COUNTS_AT of it are such a pointer, a 0 and a 2 of 32
# bits.
X86_64_LISTING = """
48 8b 04 25 00 00 10 00  mov rax, qword ptr [1048576]
41 bd 10 00 00 00  mov r13d, 16
48 81 ec 10 20 22 00  sub rsp, 2236432
48 81 e4 00 00 e0 ff  and rsp, -2097152
48 81 c4 00 10 00 00  add rsp, 4096
48 89 e7  mov rdi, rsp
b9 00 40 00 00  mov ecx, 16384
48 89 f8  mov rax, rdi
f3 48 ab  rep stosq qword ptr es:[rdi], rax
49 89 fe  mov r14, rdi
48 b8 00 00 00 00 02 00 00 00  movabs rax, 8589934592
48 89 84 24 08 00 01 00  mov qword ptr [rsp + 65544], rax
48 8d 1d b3 00 00 00  lea rbx, [rip + 179]
49 89 dc  mov r12, rbx
4c 8d bb 00 04 00 00  lea r15, [rbx + 1024]
e8 55 00 00 00  call 0xb1
bd 20 00 00 00  mov ebp, 32
48 89 e7  mov rdi, rsp
be 00 00 10 00  mov esi, 1048576
48 89 e2  mov rdx, rsp
48 89 e1  mov rcx, rsp
49 89 e0  mov r8, rsp
49 89 e1  mov r9, rsp
41 ff d4  call r12
ff cd  dec ebp
75 e5  jne 0x61
49 83 c4 40  add r12, 64
4d 39 fc  cmp r12, r15
75 d2  jne 0x57
41 ff cd  dec r13d
75 c3  jne 0x4d
e8 22 00 00 00  call 0xb1
bf 01 00 00 00  mov edi, 1
48 8d b4 24 00 00 02 00  lea rsi, [rsp + 131072]
ba 10 10 00 00  mov edx, 4112
b8 01 00 00 00  mov eax, 1
0f 05  syscall
31 ff  xor edi, edi
b8 e7 00 00 00  mov eax, 231
0f 05  syscall
bf 03 00 00 00  mov edi, 3
4c 89 f6  mov rsi, r14
b8 e4 00 00 00  mov eax, 228
0f 05  syscall
49 83 c6 10  add r14, 16
c3  ret
"""
X86_64_SLOT = """
48 83 ec 08  sub rsp, 8
e8 17 00 00 00  call 0x120
e8 22 00 00 00  call 0x130
48 83 c4 08  add rsp, 8
c3  ret
"""
X86_64_FUNCTION = "55  push rbp\n31 c0  xor eax, eax\n5d  pop rbp\nc3  ret"
AARCH64_LISTING = """
09 02 a0 d2  mov x9, #1048576
29 01 40 f9  ldr x9, [x9]
15 02 80 52  mov w21, #16
09 02 84 d2  mov x9, #8208
49 04 a0 f2  movk x9, #34, lsl #16
ff 63 29 cb  sub sp, sp, x9
ea 03 00 91  mov x10, sp
4a a9 6b 92  and x10, x10, #0xffffffffffe00000
4a 05 40 91  add x10, x10, #1, lsl #12 // =4096
5f 01 00 91  mov sp, x10
0b 00 88 52  mov w11, #16384
ec 03 00 91  mov x12, sp
4c 85 00 f8  str x12, [x10], #8
6b 05 00 71  subs w11, w11, #1
a1 ff ff 54  b.ne 0x2c
f6 03 0a aa  mov x22, x10
4c 00 c0 d2  mov x12, #8589934592
eb 43 40 91  add x11, sp, #16, lsl #12 // =65536
6c 05 00 f9  str x12, [x11, #8]
f9 03 0a aa  mov x25, x10
97 05 00 10  adr x23, #176
f3 03 17 aa  mov x19, x23
f8 02 10 91  add x24, x23, #1024
1a 00 00 94  bl 0xc4
14 04 80 52  mov w20, #32
e0 03 00 91  mov x0, sp
01 02 a0 d2  mov x1, #1048576
e2 03 00 91  mov x2, sp
e3 03 00 91  mov x3, sp
e4 03 00 91  mov x4, sp
e5 03 00 91  mov x5, sp
e6 03 00 91  mov x6, sp
60 02 3f d6  blr x19
94 06 00 71  subs w20, w20, #1
e1 fe ff 54  b.ne 0x64
73 02 01 91  add x19, x19, #64
7f 02 18 eb  cmp x19, x24
41 fe ff 54  b.ne 0x5c
b5 06 00 71  subs w21, w21, #1
c1 fd ff 54  b.ne 0x54
09 00 00 94  bl 0xc4
20 00 80 d2  mov x0, #1
e1 03 19 aa  mov x1, x25
02 02 82 d2  mov x2, #4112
08 08 80 d2  mov x8, #64
01 00 00 d4  svc #0
00 00 80 d2  mov x0, #0
c8 0b 80 d2  mov x8, #94
01 00 00 d4  svc #0
60 00 80 d2  mov x0, #3
e1 03 16 aa  mov x1, x22
28 0e 80 d2  mov x8, #113
01 00 00 d4  svc #0
d6 42 00 91  add x22, x22, #16
c0 03 5f d6  ret
"""
AARCH64_SLOT = """
fe 0f 1f f8  str x30, [sp, #-16]!
07 00 00 94  bl 0x120
0a 00 00 94  bl 0x130
fe 07 41 f8  ldr x30, [sp], #16
c0 03 5f d6  ret
"""
AARCH64_FUNCTION = "01 00 00 14  b #4\n00 00 80 d2  mov x0, #0\nc0 03 5f d6  ret"
_PARTS = {
    X86_64: (X86_64_LISTING, X86_64_SLOT, X86_64_FUNCTION),
    AARCH64: (AARCH64_LISTING, AARCH64_SLOT, AARCH64_FUNCTION),
}

_KEYED = {1, 5, 9, 10, 11}  # HASH, PERCPU_HASH, LRU_HASH, LRU_PERCPU_HASH, LPM_TRIE (enum bpf_map_type)
_log = logging.getLogger(__name__)


class Rehearsal:
    """Costs of calls by symbol, in seconds where a probe is cheapest; found in the background, empty until then.

    `copy` loads the object once more, with the programs that it is given. `scenes` has for each symbol of `table` the
    scene that is played for it.
    Nothing is done before `start`: where nothing is probed nothing is tried.
    """

    def __init__(
        self,
        copy: Callable[[Collection[str]], Object],
        table: Mapping[str, Sequence[Hook]],
        scenes: Mapping[str, Scene],
    ) -> None:
        self._copy, self._table, self._scenes = copy, table, scenes
        self.costs: Mapping[str, float] = {}
        self.over = threading.Event()
        """Set once the costs are found, or cannot be."""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Finds the costs, once; from one thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rehearsal", daemon=True)
            self._thread.start()

    @property
    def runs(self) -> bool:
        """Return whether the costs are being found."""
        return self._thread is not None and not self.over.is_set()

    def close(self) -> None:
        """Waits for the end, a second at most."""
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        try:
            programs = {hook.program for scene in self._scenes.values() for it in scene for hook in self._table[it]}
            with self._copy(programs) as copy:
                self.costs = dict(play(copy, self._table, self._scenes))
        except (BpfError, Unavailable) as error:
            _log.warning("the overhead is known for the traps of the probes only, not for their programs: %s", error)
        finally:
            self.over.set()


def small_copy(
    original: Object,
    path: Path,
    constants: Mapping[str, int],
    programs: Collection[str],
    entries: Mapping[str, int] = MappingProxyType({}),
) -> Object:
    """Load the same object with these of its programs, and little room in its maps: `entries` where that is given.

    Raises BpfError on any failure.
    """
    without = {*original.programs, *original.without} - {*programs}
    kept = {name: min(table.max_entries, MOST_ROWS) for name, table in original.maps.items() if table.kind in _KEYED}
    return Object(path, constants=constants, entries=kept | dict(entries), without=without)


def play(copy: Object, table: Mapping[str, Sequence[Hook]], scenes: Mapping[str, Scene]) -> Iterator[tuple[str, float]]:
    """The cost of a call of each symbol. BpfError, Unavailable."""
    machine = MACHINES.get(os.uname().machine)
    different = sorted(set(scenes.values()))
    if machine is None or len(different) >= SLOTS:
        raise Unavailable(f"{len(different)} scenes cannot be tried on {os.uname().machine}")
    with TrialProgram(image(machine)) as program:
        status, written = _run_probed(copy, program, table, different)
    if status:
        raise Unavailable("the probed program ended early")
    times = _short(written)
    costs = {scene: max(0.0, times[slot] - times[-1]) / CALLS / len(scene) for slot, scene in enumerate(different)}
    return ((symbol, costs[scene]) for symbol, scene in scenes.items())


def image(machine: int) -> bytes:
    """The program that is measured."""
    listing, slot, function = (assemble(part) for part in _PARTS[machine])
    first, second = FUNCTIONS_AT
    whole = (slot.ljust(first, b"\0") + function).ljust(second, b"\0") + function
    return executable(machine, listing.ljust(SLOTS_AT, b"\0") + SLOTS * whole.ljust(STRIDE, b"\0"), REQUEST, REQUEST_AT)


def _run_probed(
    copy: Object, program: TrialProgram, table: Mapping[str, Sequence[Hook]], scenes: Sequence[Scene]
) -> tuple[int, bytes]:
    groups: dict[tuple[bool, str], list[Point]] = {}
    if "returning" in copy.maps:
        copy.maps["returning"].set(0, 1)
    for slot, scene in enumerate(scenes):
        for at, symbol in zip(FUNCTIONS_AT, scene, strict=False):
            for hook in table[symbol]:
                place = CODE + SLOTS_AT + slot * STRIDE + at
                groups.setdefault((not hook.returns, hook.program), []).append(Point(place, hook.cookie))
    links = []
    try:
        for (entry, name), points in sorted(groups.items()):  # returns first, as in hooks.py
            links.append(attach(copy.programs[name], program.path, points, returns=not entry))
        return program.run()
    finally:
        close_all(links)


def _short(written: bytes) -> list[float]:
    """The shortest time but one, in seconds, of CALLS calls of each slot; a change of the processor may falsify one."""
    stamps = [seconds + nanoseconds * 1e-9 for seconds, nanoseconds in struct.iter_unpack("=qq", written)]
    if len(stamps) != ROUNDS * SLOTS + 1:
        raise Unavailable("the probed program wrote something else than its times")
    times = [after - before for before, after in pairwise(stamps)]
    return [sorted(times[slot::SLOTS])[1] for slot in range(SLOTS)]
