"""The child that makes the NVML calls: `python -m exporter.nvml.worker JSON`, one message a line on its output.

NVML can block for ever on a dead GPU, crash, or stay tied to a driver that was replaced: then this process is given up
and the exporter goes on. It reads commands, one a line, from its input, and ends when that closes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from contextlib import suppress

from exporter.bpf import privileges
from exporter.child import die_with_parent, private_output
from exporter.nvml import devices
from exporter.nvml.calls import Nvml, NvmlError
from exporter.nvml.codes import STATES, WHOLE
from exporter.nvml.devices import Device
from exporter.nvml.events import Events
from exporter.nvml.gpm import Gpm
from exporter.nvml.processes import processes
from exporter.nvml.questions import CALLS, MEMORY, PCIE_THROUGHPUT, link_calls
from exporter.nvml.snapshot import (
    FAST,
    PROCESSES,
    SETS,
    SLOW,
    Beat,
    Failed,
    Message,
    Options,
    Read,
    Readings,
    Released,
    Started,
    Values,
    encode,
)

LONGEST_WAIT = 1.0
"""Seconds after which commands and signals are looked at, at the latest."""


class Stop(Exception):
    """It is time to end."""


class Worker:
    """Reads each set of each GPU when it is due, and waits for events in between. One thread, as GPM needs it."""

    def __init__(self, options: Options, output: int, commands: int) -> None:
        self._options, self._output, self._commands = options, output, commands
        self._nvml = Nvml()
        self._skip = set(options.skip)
        self._devices: list[Device] = []
        self._due: dict[str, float] = {}
        self._input = b""
        self.stopping = False
        self._release_until = 0.0

    def run(self) -> None:
        """Until it is told to stop (Stop), or NVML as a whole fails (NvmlError)."""
        while True:
            self._take()
            try:
                while not self._release_until:
                    self._read_what_is_due()
                    self._wait(min(self._due.values()) - time.monotonic())
            finally:
                self._give_back()
            while time.monotonic() < self._release_until:
                self._tell(Released(self._release_until))
                self._listen(min(self._release_until - time.monotonic(), self._options.intervals[FAST]))
            self._release_until = 0.0

    def _take(self) -> None:
        self._turn(None)
        self._nvml.call("nvmlInit")
        self._gpm = Gpm(self._nvml, 3 * self._options.intervals[FAST])
        self._events = Events(self._nvml)
        self._devices = devices.enumerate_gpus(self._nvml, self._turn, self._skip)
        self._events.register(self._devices)
        self._tell_devices()
        self._due = dict.fromkeys(SETS, time.monotonic())

    def _give_back(self) -> None:
        """Every handle: without this a GPU cannot be reset, nor the driver be unloaded."""
        self._devices = []
        with suppress(NvmlError):  # what is still held ends with this process
            self._events.close()
            self._gpm.close()
            self._nvml.call("nvmlShutdown")

    def _look_again(self) -> None:
        """Finds GPUs and MIG devices that came or went, and whether a GPU that failed works again."""
        if self._nvml.call("nvmlDeviceGetCount") != len(self._devices) + len(self._skip):
            self._devices = devices.enumerate_gpus(self._nvml, self._turn, self._skip)
            changed = True
        else:
            changed = any([self._renew(place) for place in range(len(self._devices))])
        if changed:
            self._tell_devices()
        if changed or not self._events.active:
            self._events.register(self._devices)

    def _renew(self, place: int) -> bool:
        """Takes a GPU anew when it failed, or its MIG devices are others now; True when there is news to tell."""
        device = self._devices[place]
        self._turn(device.identity.index)
        try:
            if device.state == "ok":
                migs = devices.mig_devices(self._nvml, device.handle)
                same = (migs is not None, tuple(it.identity for it in migs or ()))
                if same == (device.identity.mig_enabled, device.identity.migs):
                    return False
            taken = devices.take(self._nvml, device.identity.index, device.identity.uuid)
        except NvmlError as error:
            if error.code in WHOLE:
                raise
            return False
        if taken.state == "ok":
            self._devices[place] = taken
            return True
        before, device.state = device.state, taken.state
        return before != device.state

    def _read_what_is_due(self) -> None:
        began = time.monotonic()
        due = [it for it in SETS if self._due[it] <= began]
        if SLOW in due:
            self._look_again()
        for set in due:
            for device in self._devices:
                if device.state == "ok":
                    self._turn(device.identity.index)
                    self._tell(self._read(set, device))
            interval, now = self._options.intervals[set], time.monotonic()
            self._due[set] = began + interval if began + interval > now else now + interval
        self._turn(None)

    def _read(self, set: str, device: Device) -> Read:
        try:
            readings = _READERS[set](self, device)
        except NvmlError as error:
            if error.code in WHOLE:
                raise
            device.state = STATES[error.code]
        else:
            if readings.values or set != FAST:
                return Read(device.identity.key, set, device.state, readings)
            device.state = "failed"
        return Read(device.identity.key, set, device.state, None)

    def _fast(self, device: Device) -> Readings:
        now, uuid = time.monotonic(), device.identity.uuid
        links = self._nvml.fields(device, device.wanted[FAST])
        values = dict(self._nvml.read(device, CALLS[FAST], links.pop(None, {})))
        values |= self._gpm.read(device, uuid, now, device.handle)
        if "gpm" in device.never and not device.identity.mig_enabled:
            values |= self._nvml.read(device, PCIE_THROUGHPUT)
        migs: dict[str, Values] = {}
        by_instance: dict[int, Values] = {}
        for mig in device.migs:
            instance = mig.identity.gpu_instance
            if instance not in by_instance:
                by_instance[instance] = self._gpm.read(mig, (uuid, instance), now, device.handle, instance)
            migs[mig.identity.uuid] = {**self._nvml.read(mig, MEMORY), **by_instance[instance]}
        return Readings(now, values, {link: it for link, it in links.items() if link is not None}, migs)

    def _processes(self, device: Device) -> Readings:
        now = time.monotonic()
        since = time.time() - 2 * self._options.intervals[PROCESSES]
        return Readings(now, processes=processes(self._nvml, device, int(since * 1e6)))

    def _slow(self, device: Device) -> Readings:
        now = time.monotonic()
        links = self._nvml.fields(device, device.wanted[SLOW])
        values = self._nvml.read(device, CALLS[SLOW], links.pop(None, {}))
        by_link = {
            link: self._nvml.read(device, link_calls(link), links.get(link)) for link in range(device.identity.links)
        }
        return Readings(now, values, by_link)

    def _wait(self, seconds: float) -> None:
        """Until something is due, but no longer than a command or a signal may wait."""
        seconds = min(max(seconds, 0), LONGEST_WAIT)
        if self._events.active:
            for event in self._events.wait(seconds):
                self._tell(event)
            seconds = 0
        self._listen(seconds)

    def _listen(self, seconds: float) -> None:
        """Follows commands that come within that time. Raises Stop after a signal, and when the parent is gone."""
        if self.stopping:
            raise Stop
        readable, _, _ = select.select([self._commands], [], [], seconds)
        if not readable:
            return
        received = os.read(self._commands, 4096)
        if not received:
            raise Stop
        *lines, self._input = (self._input + received).split(b"\n")
        for line in lines:
            command, _, argument = line.partition(b" ")
            if command == b"release":
                self._release_until = time.monotonic() + float(argument)
            elif command == b"take":
                self._skip.discard(int(argument))
                self._due[SLOW] = time.monotonic()

    def _turn(self, index: int | None) -> None:
        self._tell(Beat(time.monotonic(), index, self._nvml.calls))

    def _tell_devices(self) -> None:
        self._tell(Started(devices.driver(self._nvml), tuple(it.identity for it in self._devices)))
        for device in self._devices:
            if device.state != "ok":
                self._tell(Read(device.identity.key, FAST, device.state, None))

    def _tell(self, message: Message) -> None:
        line = encode(message)
        while line:
            line = line[os.write(self._output, line) :]


_READERS = {FAST: Worker._fast, PROCESSES: Worker._processes, SLOW: Worker._slow}


def main(argument: str) -> None:
    options = Options(**json.loads(argument))
    die_with_parent(options.parent)
    with suppress(OSError):
        privileges.drop((privileges.PROFILING,))
    output = private_output()
    worker = Worker(options, output, 0)

    def stop(_: int, __: object) -> None:
        worker.stopping = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        worker.run()
    except NvmlError as error:
        os.write(output, encode(Failed(error.code, str(error))))
    except (Stop, BrokenPipeError):
        pass
    except Exception as error:  # the parent says it: nobody reads what this process writes elsewhere
        os.write(output, encode(Failed(0, f"{type(error).__name__}: {error}")))
        raise


if __name__ == "__main__":
    main(sys.argv[1])
