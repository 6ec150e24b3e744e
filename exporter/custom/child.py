"""The worker process of a custom probe as the exporter starts it, and the descriptors that it sends."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import exporter
from exporter.background.child import ChildProcess
from exporter.bpf import multi, privileges
from exporter.custom.folder import ProbeSource
from exporter.custom.messages import WorkerConfig

_BOOT = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); "
    "runpy.run_module('exporter.custom.worker', run_name='__main__')"
)
_NO_DESCRIPTOR = -1
RETENTION_SECONDS = 300.0
"""Seconds until rows of an ended process are deleted."""


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of all probes. `interval` is in seconds; `python` has bcc; an empty `headers` means bcc's default."""

    python: str
    headers: str
    interval: float
    records_per_second: int
    proc: str = "/proc"


class ProbeChild(ChildProcess):
    """The process of exporter/custom/worker.py for one probe. Raises OSError if it cannot be started."""

    def __init__(self, source: ProbeSource, options: Options) -> None:
        self._channel, theirs = socket.socketpair()
        text = os.memfd_create("custom-probe", os.MFD_CLOEXEC)
        try:
            os.write(text, source.text.encode())
            os.lseek(text, 0, os.SEEK_SET)
            config = replace(configuration(source, options), source=text, channel=theirs.fileno())
            privileges.pass_on()
            command = (options.python, "-I", "-c", _BOOT, str(Path(exporter.__file__).parents[1]))
            super().__init__("", json.dumps(asdict(config)), command=command, share=(text, theirs.fileno()))
        except BaseException:
            self._channel.close()
            raise
        finally:
            os.close(text)
            theirs.close()

    def descriptors(self, count: int) -> list[int]:
        """Return the descriptors that the worker sent before Started; the caller closes them.

        Raises OSError if they are not `count`.
        """
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


def configuration(source: ProbeSource, options: Options) -> WorkerConfig:
    """Return the worker's settings, without the descriptors."""
    definition = source.definition
    readings = [(reading.map, reading.labels) for reading in definition.readings]
    pid_fields = {name: label.field for name, labels in readings for label in labels if label.decode == "pid"}
    return WorkerConfig(
        name=definition.name,
        parent=os.getpid(),
        source=_NO_DESCRIPTOR,
        channel=_NO_DESCRIPTOR,
        headers=options.headers,
        interval=options.interval,
        records_per_second=options.records_per_second,
        multi=multi.supported(),
        usdt=bool(definition.usdt),
        programs=[*definition.programs],
        tracepoints=[[tracepoint.event, tracepoint.program] for tracepoint in definition.tracepoints],
        maps=[*definition.maps],
        buffers=[*dict.fromkeys(span.buffer for span in definition.spans)],
        pid_fields=pid_fields,
        retention_seconds=RETENTION_SECONDS,
        proc=options.proc,
    )
