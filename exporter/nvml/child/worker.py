"""Main loop of the child: `python -m exporter.nvml.child.worker JSON`, one message a line on the output.

NVML can block for ever on a dead GPU, crash, or stay tied to a driver that was replaced: then the exporter abandons
this process and goes on. The process reads commands, one a line, from its input, and ends when the input closes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from contextlib import suppress

from exporter.background.child import die_with_parent, private_output
from exporter.bpf import privileges
from exporter.nvml.child import devices
from exporter.nvml.child.calls import NvmlError, NvmlLibrary
from exporter.nvml.child.devices import GpuTarget
from exporter.nvml.child.events import NvmlEvents
from exporter.nvml.child.gpm import Gpm
from exporter.nvml.child.processes import processes
from exporter.nvml.child.queries import MIG_QUERIES, QUERIES, WITHOUT_GPM, link_queries
from exporter.nvml.codes import STATES, WHOLE
from exporter.nvml.snapshot import (
    FAST,
    PROCESSES,
    SETS,
    SLOW,
    ChildOptions,
    Heartbeat,
    Message,
    NvmlFailed,
    NvmlStarted,
    Readings,
    Released,
    SetRead,
    Values,
    encode,
)

LONGEST_WAIT = 1.0
"""Largest time in seconds between two checks for commands and signals."""


class StopRequested(Exception):
    """The parent, or a signal, requested the end of the process."""


class NvmlWorker:
    """Reads each set of each GPU when due, and waits for events in between. GPM requires a single thread."""

    def __init__(self, options: ChildOptions, output: int, commands: int) -> None:
        self._options, self._output, self._commands = options, output, commands
        self._nvml = NvmlLibrary()
        self._skip = set(options.skip)
        self._devices: list[GpuTarget] = []
        self._due: dict[str, float] = {}
        self._input = b""
        self.stopping = False
        self._release_until = 0.0

    def run(self) -> None:
        """Reads for ever. Raises StopRequested on request of the parent or a signal, NvmlError when NVML has failed."""
        while True:
            self._open()
            try:
                while not self._release_until:
                    self._read_due_sets()
                    self._wait(min(self._due.values()) - time.monotonic())
            finally:
                self._close()
            while time.monotonic() < self._release_until:
                self._send(Released(self._release_until))
                self._listen(min(self._release_until - time.monotonic(), self._options.intervals[FAST]))
            self._release_until = 0.0

    def _open(self) -> None:
        self._heartbeat(None)
        self._nvml.call("nvmlInit")
        self._gpm = Gpm(self._nvml, 3 * self._options.intervals[FAST])
        self._events = NvmlEvents(self._nvml)
        self._devices = devices.enumerate_gpus(self._nvml, self._heartbeat, self._skip)
        self._events.register(self._devices)
        self._send_devices()
        self._due = dict.fromkeys(SETS, time.monotonic())

    def _close(self) -> None:
        """Closes every handle: an open one blocks the reset of a GPU and the unloading of the driver."""
        self._devices = []
        with suppress(NvmlError):  # handles still open end with this process
            self._events.close()
            self._gpm.close()
            self._nvml.call("nvmlShutdown")

    def _rescan(self) -> None:
        """Finds GPUs and MIG devices that appeared or vanished, and failed GPUs that work again."""
        if self._nvml.call("nvmlDeviceGetCount") != len(self._devices) + len(self._skip):
            self._devices = devices.enumerate_gpus(self._nvml, self._heartbeat, self._skip)
            changed = True
        else:
            changed = any([self._refresh(place) for place in range(len(self._devices))])
        if changed:
            self._send_devices()
        if changed or not self._events.active:
            self._events.register(self._devices)

    def _refresh(self, place: int) -> bool:
        """Reopens a GPU that failed or has other MIG devices. Returns whether identity or state changed."""
        device = self._devices[place]
        self._heartbeat(device.identity.index)
        try:
            if device.state == "ok":
                migs = devices.mig_devices(self._nvml, device.handle)
                same = (migs is not None, tuple(mig.identity for mig in migs or ()))
                if same == (device.identity.mig_enabled, device.identity.migs):
                    return False
            opened = devices.open_device(self._nvml, device.identity.index, device.identity.uuid)
        except NvmlError as error:
            if error.code in WHOLE:
                raise
            return False
        if opened.state == "ok":
            self._devices[place] = opened
            return True
        before, device.state = device.state, opened.state
        return before != device.state

    def _read_due_sets(self) -> None:
        began = time.monotonic()
        due = [name for name in SETS if self._due[name] <= began]
        if SLOW in due:
            self._rescan()
        for name in due:
            for device in self._devices:
                if device.state == "ok":
                    self._heartbeat(device.identity.index)
                    self._send(self._read(name, device))
            interval, now = self._options.intervals[name], time.monotonic()
            self._due[name] = began + interval if began + interval > now else now + interval
        self._heartbeat(None)

    def _read(self, set_name: str, device: GpuTarget) -> SetRead:
        try:
            readings = _READERS[set_name](self, device)
        except NvmlError as error:
            if error.code in WHOLE:
                raise
            device.state = STATES[error.code]
        else:
            if readings.values or set_name != FAST:
                return SetRead(device.identity.key, set_name, device.state, readings)
            device.state = "failed"
        return SetRead(device.identity.key, set_name, device.state, None)

    def _fast(self, device: GpuTarget) -> Readings:
        now, uuid = time.monotonic(), device.identity.uuid
        values, links = self._gpu_and_links(device, FAST)
        values |= self._gpm.read(device, uuid, now, device.handle)
        if "gpm" in device.unsupported and not device.identity.mig_enabled:
            values |= self._nvml.read(device, WITHOUT_GPM)
        migs: dict[str, Values] = {}
        by_instance: dict[int, Values] = {}
        for mig in device.migs:
            instance = mig.identity.gpu_instance
            if instance not in by_instance:
                by_instance[instance] = self._gpm.read(mig, (uuid, instance), now, device.handle, instance)
            migs[mig.identity.uuid] = {**self._nvml.read(mig, MIG_QUERIES), **by_instance[instance]}
        return Readings(now, values, links, migs)

    def _processes(self, device: GpuTarget) -> Readings:
        now = time.monotonic()
        since = time.time() - 2 * self._options.intervals[PROCESSES]
        return Readings(now, processes=processes(self._nvml, device, int(since * 1e6)))

    def _slow(self, device: GpuTarget) -> Readings:
        return Readings(time.monotonic(), *self._gpu_and_links(device, SLOW))

    def _gpu_and_links(self, device: GpuTarget, set_name: str) -> tuple[dict[str, int | float], dict[int, Values]]:
        """Returns the readings of a GPU and, by link, of its links: fields, and calls for what has no field."""
        by_link = self._nvml.fields(device, device.requests[set_name])
        links: dict[int, Values] = {}
        for link in range(device.identity.links):
            values = self._nvml.read(device, link_queries(set_name, link), by_link.get(link))
            if values:
                links[link] = values
        return self._nvml.read(device, QUERIES[set_name], by_link.get(None)), links

    def _wait(self, seconds: float) -> None:
        """Waits for events and commands, up to `seconds` and up to LONGEST_WAIT."""
        seconds = min(max(seconds, 0), LONGEST_WAIT)
        if self._events.active:
            for event in self._events.wait(seconds):
                self._send(event)
            seconds = 0
        self._listen(seconds)

    def _listen(self, seconds: float) -> None:
        """Executes commands of the next `seconds`. Raises StopRequested after a signal and when the input closes."""
        if self.stopping:
            raise StopRequested
        readable, _, _ = select.select([self._commands], [], [], seconds)
        if not readable:
            return
        received = os.read(self._commands, 4096)
        if not received:
            raise StopRequested
        *lines, self._input = (self._input + received).split(b"\n")
        for line in lines:
            command, _, argument = line.partition(b" ")
            if command == b"release":
                self._release_until = time.monotonic() + float(argument)
            elif command == b"include":
                self._skip.discard(int(argument))
                self._due[SLOW] = time.monotonic()

    def _heartbeat(self, index: int | None) -> None:
        self._send(Heartbeat(time.monotonic(), index, self._nvml.calls))

    def _send_devices(self) -> None:
        self._send(NvmlStarted(devices.driver(self._nvml), tuple(device.identity for device in self._devices)))
        for device in self._devices:
            if device.state != "ok":
                self._send(SetRead(device.identity.key, FAST, device.state, None))

    def _send(self, message: Message) -> None:
        line = encode(message)
        while line:
            line = line[os.write(self._output, line) :]


_READERS = {FAST: NvmlWorker._fast, PROCESSES: NvmlWorker._processes, SLOW: NvmlWorker._slow}


def main(argument: str) -> None:
    options = ChildOptions(**json.loads(argument))
    die_with_parent(options.parent)
    with suppress(OSError):
        privileges.drop((privileges.PROFILING,))
    output = private_output()
    worker = NvmlWorker(options, output, 0)

    def stop(_: int, __: object) -> None:
        worker.stopping = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        worker.run()
    except NvmlError as error:
        os.write(output, encode(NvmlFailed(error.code, str(error))))
    except (StopRequested, BrokenPipeError):
        pass
    except Exception as error:  # the parent logs the error: nobody reads the standard error of this process
        os.write(output, encode(NvmlFailed(0, f"{type(error).__name__}: {error}")))
        raise


if __name__ == "__main__":
    main(sys.argv[1])
