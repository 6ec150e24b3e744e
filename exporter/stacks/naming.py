"""The process that unwinds and names stacks.

It reads hostile stacks, files and memory. It has no capabilities, opens nothing that it is not given, and may die: the
exporter starts another.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from exporter.stack_profiles.model import Frame
from exporter.stacks import debug_files, machine
from exporter.stacks.debug_files import Request
from exporter.stacks.files import CodeFile
from exporter.stacks.memory import Memory
from exporter.stacks.merge import Merged, PythonFrame, merge
from exporter.stacks.opener import ADMIT, AGAIN, DEBUG, END, FLUSH, MOST_BYTES, REFRESH, STACK
from exporter.stacks.perf_map import MOST_OF_ALL
from exporter.stacks.process import MappedModule, ProcessCode
from exporter.stacks.record import StackRecord, unpack
from exporter.stacks.unwind import StackSnapshot, Unwinder, Unwound

_MOST_DESCRIPTORS = 300
_MOST_PROCESSES = 1024
_MOST_STACKS = 1 << 15
_AT_ONCE = 64
TRUNCATED = Frame("[more frames, which could not be read]")


class Stacks:
    """Numbers for stacks, each of which is sent to the exporter once. Kept are 64-bit hashes: names may be long."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._last = 0

    def number(self, frames: Sequence[Frame]) -> tuple[int, bool]:
        """Return the number of a stack and whether it is new."""
        key = hash(tuple(frames)), len(frames)
        known = self._numbers.get(key)
        if known is not None:
            self._numbers.move_to_end(key)
            return known, False
        self._last += 1
        self._numbers[key] = self._last
        if len(self._numbers) > _MOST_STACKS:
            self._numbers.popitem(last=False)
        return self._last, True

    def forget(self) -> None:
        """Send all stacks once more, with numbers that were not used before."""
        self._numbers.clear()


class Naming:
    """Receives messages of the opener, and sends the exporter stacks of frames with names."""

    def __init__(self, opener: socket.socket, exporter: socket.socket) -> None:
        self._opener, self._exporter = opener, exporter
        self._poll = select.poll()
        self._poll.register(opener, select.POLLIN)
        self._machine = machine.this()
        self._unwinder = Unwinder(self._machine)
        self._files: dict[int, CodeFile] = {}
        self._processes: OrderedDict[int, ProcessCode] = OrderedDict()
        self._parts: dict[int, list[MappedModule]] = {}
        self._stacks = Stacks()
        self._with_debug: set[CodeFile] = set()
        """Files of which debug information may be open."""
        self._waiting: deque[bytes] = deque()
        self._refreshed: dict[int, tuple[int, int]] = {}
        """By pid when the mappings were read again in vain, and for how many stacks they are not then."""
        self._count = self._batch = 0

    def run(self) -> None:
        """Answer until the opener has gone."""
        while True:
            batch = [self._next()]
            while len(batch) < _AT_ONCE and batch[-1][:1] == STACK and (self._waiting or self._poll.poll(0)):
                batch.append(self._next())
            self._batch += 1
            unwound = [it for message in batch if message[:1] == STACK and (it := self._unwind(message[1:]))]
            self._look_up([(record.tgid, frame) for record, _, frames, _ in unwound for frame in frames])
            for record, process, frames, truncated in unwound:
                self._send_stack(record, process, frames, truncated)
            for message in batch:
                if message[:1] == FLUSH:
                    self._send({"flushed": int(message[1:])})
                elif message[:1] == AGAIN:
                    self._stacks.forget()
                elif message[:1] == END and (ended := self._processes.pop(int(message[1:]), None)):
                    ended.close()

    def _next(self) -> bytes:
        return self._waiting.popleft() if self._waiting else self._receive()

    def _receive(self) -> bytes:
        while (seconds := self._close_debug()) is not None and not self._poll.poll(1000 * seconds + 1):
            pass
        message, descriptors, _, _ = socket.recv_fds(self._opener, MOST_BYTES, _MOST_DESCRIPTORS)
        if not message:
            raise EOFError
        if message[:1] == ADMIT:
            self._admit(json.loads(message[1:]), list(descriptors))
        elif message[:1] == DEBUG:
            contents = json.loads(message[1:])
            file = self._files[contents["number"]]
            if descriptors:
                file.take_debug_file(descriptors[0])
            else:
                file.wanted = None
            self._send({"opened": contents["pid"]})
        return message

    def _admit(self, contents: dict[str, object], descriptors: list[int]) -> None:
        pid = int(contents["pid"])  # type: ignore[call-overload]
        if contents.get("gone"):
            self._send({"opened": pid})
            return
        maps: Sequence[Sequence[int]] = contents["maps"]  # type: ignore[assignment]
        files: Sequence[tuple[int, str]] = contents["files"]  # type: ignore[assignment]
        if contents["memory"]:
            memory = Memory(descriptors.pop(0))
            known = self._processes.pop(pid, None)
            if known is None:
                known = ProcessCode(memory, self._files)
            else:
                memory.close()
            self._processes[pid], self._parts[pid] = known, []
            if contents["perf_map"]:
                if sum(len(it.made) for it in self._processes.values()) < MOST_OF_ALL:
                    known.made.update(descriptors[0])
                os.close(descriptors.pop(0))
            if len(self._processes) > _MOST_PROCESSES:
                self._processes.popitem(last=False)[1].close()
        for (number, path), descriptor in zip(files, descriptors, strict=True):
            self._files[number] = CodeFile(descriptor, path, self._machine.preserved)
        self._parts.setdefault(pid, []).extend(MappedModule(*it) for it in maps)
        process = self._processes.get(pid)
        if contents["last"] and process:
            had = process.python
            process.update(self._parts.pop(pid))
            self._send({"opened": pid})
            if process.python and had is None:
                self._send({"pid": pid, "runtime": process.python.runtime, "walk": asdict(process.python.layout.walk)})
            elif process.problem:
                self._send({"pid": pid, "problem": process.problem[:200]})

    def _unwind(self, data: bytes) -> tuple[StackRecord, ProcessCode, list[Merged], str] | None:
        try:
            record = unpack(data)
        except struct.error:
            return None
        self._count += 1
        process = self._processes.get(record.tgid)
        if process is None:
            self._send(_answer(record) | {"lost": 1})
            return None
        unwound = self._frames(record, process)
        known = _known(unwound, process)
        replaced = any(process.replaced(unwound.frames, self._batch))
        if (replaced or known < len(unwound.frames)) and self._refresh(record.tgid, replaced):
            unwound = self._frames(record, process)
            process.trust(process.replaced(unwound.frames, self._batch))
            if replaced or _known(unwound, process) > known:
                del self._refreshed[record.tgid]
        python = (process.python.file, process.python.embedded) if process.python else (None,)
        truncated = unwound.truncated or ("python" if record.truncated else "")
        return record, process, list(merge(unwound.frames, record.frames, *python)), truncated

    def _frames(self, record: StackRecord, process: ProcessCode) -> Unwound:
        registers = record.registers[: self._machine.count]
        sp = registers[self._machine.stack]
        snapshot = StackSnapshot(record.memory, sp, record.absent)
        for at, address in record.hijacks:
            snapshot.restore(at, address)
        return self._unwinder.unwind(registers, snapshot, process, record.anywhere)

    def _refresh(self, pid: int, now: bool) -> bool:
        """Have the mappings of a process read again, but unless it is to be `now` not for each stack of code that no
        file has: after that was in vain twice as many stacks later each time.
        """
        last, pause = self._refreshed.get(pid, (0, 0))
        if not now and self._count - last < pause:
            return False
        if len(self._refreshed) > _MOST_PROCESSES:
            self._refreshed.clear()
        self._refreshed[pid] = self._count, min(2 * pause or 1, _AT_ONCE)
        self._opener.sendall(REFRESH + str(pid).encode())
        while True:
            message = self._receive()
            if message[:1] != ADMIT:
                self._waiting.append(message)
                continue
            contents = json.loads(message[1:])
            if contents["pid"] == pid and contents["last"]:
                return not contents.get("gone")

    def _look_up(self, frames: Sequence[tuple[int, Merged]]) -> None:
        """Find the functions of all native frames, each with its process, in one pass over each file's symbols."""
        wanted: dict[int, list[int]] = {}
        for pid, frame in frames:
            if not isinstance(frame, PythonFrame) and frame.place:
                number = frame.place.module
                file = self._files.get(number)
                if file and file.unnamed(frame.place.address):
                    while file.wanted:  # a debug file may refer to another one
                        self._find_debug_file(Request(pid, number, file.wanted))
                    wanted.setdefault(number, []).append(frame.place.address)
        for number, addresses in wanted.items():
            self._files[number].look_up(addresses)
            self._with_debug.add(self._files[number])

    def _close_debug(self) -> float | None:
        """Close debug information that is not in use any more. Return when that is due again, None if all is closed."""
        now = time.monotonic()
        for file in [it for it in self._with_debug if it.debug_until <= now]:
            file.close_debug()
            self._with_debug.remove(file)
        return min((it.debug_until - now for it in self._with_debug), default=None)

    def _find_debug_file(self, request: Request) -> None:
        """Request a file of debug information, and wait until it has been taken or is known to be absent."""
        self._opener.sendall(DEBUG + debug_files.message(request))
        while (message := self._receive())[:1] != DEBUG:
            if message[:1] != ADMIT:
                self._waiting.append(message)

    def _send_stack(self, record: StackRecord, process: ProcessCode, merged: Sequence[Merged], truncated: str) -> None:
        frames = [frame for it in merged for frame in self._named(it, process)]
        if truncated:
            frames.append(TRUNCATED)
        number, new = self._stacks.number(frames)
        if new:
            for message in definition(number, frames):
                self._exporter.sendall(message)
        self._send(_answer(record) | {"number": number} | ({"truncated": truncated} if truncated else {}))

    def _named(self, merged: Merged, process: ProcessCode) -> Iterator[Frame]:
        """Yield the frame, after those of functions that are inlined into it."""
        if isinstance(merged, PythonFrame):
            if process.names and (frame := process.names.frame(merged.code, merged.instruction)):
                yield frame
            return
        file = self._files.get(merged.place.module) if merged.place else None
        if merged.place is None or file is None:
            yield Frame(process.made.name(merged.pc), address=merged.pc)
            return
        for it in file.sources(merged.place.address):
            yield Frame(it.function, it.file, it.line, "native", file.path, file.build_id, merged.place.address)

    def _send(self, contents: dict[str, object]) -> None:
        self._exporter.sendall(json.dumps(contents).encode())


def definition(number: int, frames: Sequence[Frame]) -> Iterator[bytes]:
    """Yield messages that define a stack, of MOST_BYTES at most; what is not ASCII takes six to twelve bytes."""
    parts: list[str] = []
    for frame in frames:
        text = json.dumps(_fields(frame))
        if parts and sum(map(len, parts)) + len(text) > MOST_BYTES // 2:
            yield _defined(number, parts)
            parts = []
        parts.append(text)
    yield _defined(number, parts)


def _defined(number: int, parts: Sequence[str]) -> bytes:
    return f'{{"stack": {number}, "frames": [{", ".join(parts)}]}}'.encode()


def _known(unwound: Unwound, process: ProcessCode) -> int:
    """Return the number of frames before the first one that is neither in a file nor in code that has a name."""
    frames = unwound.frames
    return next((n for n, it in enumerate(frames) if not it.place and not process.made.name(it.pc)), len(frames))


def _answer(record: StackRecord) -> dict[str, object]:
    return {"id": record.id, "pid": record.tgid, "program": record.program, "weight": record.weight}


def _fields(frame: Frame) -> tuple[str, str, int, str, str, str, int]:
    return frame.function, frame.file, frame.line, frame.kind, frame.module, frame.build_id, frame.address
