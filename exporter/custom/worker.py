"""The child that compiles one probe with bcc and reads its maps: `exporter.custom.worker JSON`.

It runs under an interpreter that has bcc, which need not be the exporter's (Debian's python3 by default), so what it
imports of this package needs nothing but the standard library of Python 3.9. The parent receives the descriptors of
the loaded programs and attaches them to libraries. Tracepoints are attached here.
"""

from __future__ import annotations

import array
import json
import os
import resource
import select
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from exporter import rlimits
from exporter.background.child import die_with_parent, private_output
from exporter.custom.compiler import Compiled, Stop
from exporter.custom.messages import Failed, Read, Records, RowsMessage, Started, WorkerConfig, encode

MEMORY = 4 << 30
"""Bytes of address space at most: a C file that makes the compiler run away ends only this process."""
MOST_AT_ONCE = 500
POLL_SECONDS = 0.2
MOST_PROGRAMS = 200
"""A message takes no more descriptors than 253 (SCM_MAX_FD)."""


class ProbeWorker:
    """A probe, compiled and loaded by the constructor. Raises Stop when that is not possible."""

    def __init__(self, config: WorkerConfig, output: int) -> None:
        self._config, self._output = config, output
        self._compiled = Compiled(config)
        self._tables = {name: self._compiled.table(name) for name in config.maps}
        self._records = _Records(config.records_per_second, self._send)
        self._lost = dict.fromkeys(config.buffers, 0)
        self._ended: dict[int, float] = {}
        self._delete_at = 0.0
        self._polls = {self._listen(name) for name in config.buffers}
        for name in config.programs:
            self._compiled.load(name)
        tracepoints = {event: self._compiled.attach_tracepoint(event, program) for event, program in config.tracepoints}
        programs = self._send_programs()
        shapes = {name: table.shape() for name, table in self._tables.items()}
        shapes.update({name: self._compiled.record_shape(name) for name in config.buffers})
        self._compiled.free_memory()
        self._send(Started(programs, shapes, tracepoints))

    def run(self) -> None:
        """Read maps and buffers until the parent ends or closes the input. Raises Stop then."""
        due = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= due:
                self._read()
                due = max(due + self._config.interval, now)
            wait = max(0.0, min(due - time.monotonic(), POLL_SECONDS if self._polls else due))
            if self._polls:
                for poll in self._polls:
                    poll(int(wait * 1000 / len(self._polls)))
                self._records.flush()
                wait = 0.0
            readable, _, _ = select.select([0], [], [], wait)
            if readable and not os.read(0, 4096):
                raise Stop

    def _send_programs(self) -> list[str]:
        """Send the descriptors of the loaded programs. Returns the programs' names in the same order."""
        loaded = self._compiled.programs()
        if len(loaded) > MOST_PROGRAMS:
            raise Stop(f"{self._config.name}.c has more than {MOST_PROGRAMS} programs")
        descriptors = [*loaded.values()]
        if self._config.usdt:
            descriptors.append(self._compiled.usdt_arguments())
        with socket.socket(fileno=self._config.channel) as channel:
            if descriptors:
                channel.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])
        return [*loaded]

    def _listen(self, buffer: str) -> Callable[[int], Any]:
        def lose(count: int) -> None:
            self._lost[buffer] += count

        return self._compiled.listen(buffer, lambda record: self._records.add(buffer, record), lose)

    def _read(self) -> None:
        self._delete_rows_of_ended()
        for table in self._tables.values():
            self._send(table.read())
        self._send(Read(self._lost, self._records.limited))

    def _delete_rows_of_ended(self) -> None:
        """Delete the rows of processes that ended long enough ago: hash maps would fill up with them."""
        now = time.monotonic()
        if now < self._delete_at:
            return
        self._delete_at = now + self._config.retention_seconds / 10
        tables = [(self._tables[name], field) for name, field in self._config.pid_fields.items()]
        pids = {pid for table, field in tables for pid in table.pids(field)}
        self._ended = {pid: self._ended.get(pid, now) for pid in pids if not self._alive(pid)}
        due = {pid for pid, since in self._ended.items() if now - since >= self._config.retention_seconds}
        for table, field in tables if due else ():
            table.delete(due, field)

    def _alive(self, pid: int) -> bool:
        return os.path.exists(f"{self._config.proc}/{pid}")  # noqa: PTH110  # of every pid, at every reading

    def _send(self, message: Started | RowsMessage | Read | Records) -> None:
        line = encode(message)
        while line:
            line = line[os.write(self._output, line) :]


class _Records:
    """Records of buffers until they are sent. Those beyond `most` in a second are dropped, and counted in `limited`."""

    def __init__(self, most: int, send: Callable[[Records], None]) -> None:
        self._most, self._send = most, send
        self._kept: dict[str, list[list[Any]]] = {}
        self._second = self._in_second = self.limited = 0

    def add(self, buffer: str, record: list[Any]) -> None:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._in_second = second, 0
        self._in_second += 1
        if self._in_second > self._most:
            self.limited += 1
            return
        records = self._kept.setdefault(buffer, [])
        records.append(record)
        if len(records) >= MOST_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        kept, self._kept = self._kept, {}
        for buffer, records in kept.items():
            self._send(Records(buffer, records))


def main(argument: str) -> None:
    config = WorkerConfig(**json.loads(argument))
    die_with_parent(config.parent)
    rlimits.lower(resource.RLIMIT_AS, MEMORY)
    os.nice(10)  # compiling takes seconds, and jobs run here
    output = private_output()
    try:
        ProbeWorker(config, output).run()
    except (Stop, BrokenPipeError) as error:
        if isinstance(error, Stop) and error.reason:
            os.write(output, encode(Failed(error.reason, error.details)))
    except Exception as error:  # sent to the parent: nobody reads what this process writes elsewhere
        os.write(output, encode(Failed(f"{type(error).__name__}: {error}")))
        raise


if __name__ == "__main__":
    main(sys.argv[1])
