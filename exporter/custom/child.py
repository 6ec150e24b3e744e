"""The child process of one custom probe as its parent starts it, and what comes over its socket: descriptors."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import exporter
from exporter.background.child import ChildProcess
from exporter.bpf import multi, privileges
from exporter.custom.folder import Source
from exporter.custom.messages import Order

_BOOT = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); "
    "runpy.run_module('exporter.custom.worker', run_name='__main__')"
)
_UNTOLD = -1
KEPT_SECONDS = 300.0
"""So long rows of an ended process stay."""


@dataclass(frozen=True, slots=True)
class Options:
    """How probes are run. `python` has bcc; `headers` are the kernel's, empty: where bcc looks; `interval` is in s."""

    python: str
    headers: str
    interval: float
    records_per_second: int
    proc: str = "/proc"


class Child(ChildProcess):
    """Starts the worker (exporter/custom/worker.py) for a probe. OSError when that is not possible."""

    def __init__(self, source: Source, options: Options) -> None:
        self._channel, theirs = socket.socketpair()
        text = os.memfd_create("custom-probe", os.MFD_CLOEXEC)
        try:
            os.write(text, source.text.encode())
            os.lseek(text, 0, os.SEEK_SET)
            asked = replace(order(source, options), source=text, channel=theirs.fileno())
            privileges.pass_on()
            command = (options.python, "-I", "-c", _BOOT, str(Path(exporter.__file__).parents[1]))
            super().__init__("", json.dumps(asdict(asked)), command=command, share=(text, theirs.fileno()))
        except BaseException:
            self._channel.close()
            raise
        finally:
            os.close(text)
            theirs.close()

    def descriptors(self, count: int) -> list[int]:
        """What was sent before it told that it started, for the caller to close. OSError when it was not so many."""
        self._channel.settimeout(1.0)
        _, found, _, _ = socket.recv_fds(self._channel, 1, count)
        if len(found) != count:
            for descriptor in found:
                os.close(descriptor)
            raise OSError(f"{len(found)} descriptors came in place of {count}")
        return found

    def kill(self) -> bool:
        self._channel.close()
        return super().kill()


def order(source: Source, options: Options) -> Order:
    """What the child is told to do, but for the descriptors."""
    it = source.definition
    readings = [(reading.map, reading.labels) for reading in it.readings]
    mortal = {map: label.field for map, labels in readings for label in labels if label.decode == "pid"}
    return Order(
        name=it.name,
        parent=os.getpid(),
        source=_UNTOLD,
        channel=_UNTOLD,
        headers=options.headers,
        interval=options.interval,
        records_per_second=options.records_per_second,
        multi=multi.supported(),
        usdt=bool(it.usdt),
        programs=[*it.programs],
        tracepoints=[[tracepoint.event, tracepoint.program] for tracepoint in it.tracepoints],
        maps=[*it.maps],
        buffers=_each([span.buffer for span in it.spans]),
        mortal=mortal,
        kept_seconds=KEPT_SECONDS,
        proc=options.proc,
    )


def _each(names: Sequence[str]) -> list[str]:
    return [*dict.fromkeys(names)]
