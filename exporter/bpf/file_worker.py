"""Reading files of others, in a child process: they may be hostile, and on a file system that never answers.

Nothing here opens, reads or closes a mapped file. The child (reader.py) is started when it is first needed, ends after
some seconds without work, is ended when a call takes too much of the processor, and is given up when it waits for a
file system: then no file of that device is read until it is gone.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import exporter
from exporter.background.child import offer_to_oom
from exporter.bpf import privileges
from exporter.bpf.elf import ElfError, TakesLonger
from exporter.bpf.file_worker_child import WorkerProcesses
from exporter.bpf.messages import declared, decode, encode
from exporter.bpf.reader import ANSWER, HELLO, LENGTH, exactly

IDLE = 10.0
SECONDS = 2.0
"""Processor time for one call, on an ordinary machine: a file that takes longer is no library but an attack."""
PATIENCE = 5.0
"""Seconds without any progress until a child counts as stuck, on an ordinary machine."""
START_PATIENCE = 60.0
"""The same for a child that is starting: it reads no file of others yet."""
REST = 60.0
"""So long no file of a device is read, at least, on which a child was stuck."""
MOST_STUCK = 16
_MOST_PATIENT = 12.0
_LOOK, _CLOSE_SECONDS = 0.2, 0.5
_BUSY, _TRICKLE = 0.1, 6
"""A child that uses less of a processor than this waits; it counts as stuck after so many times PATIENCE of that."""
_ENVIRONMENT = ("LD_LIBRARY_PATH", "PYTHONHOME", "PATH")
"""Variables that the child inherits: a collector's password is none of its business."""


class ChildError(OSError):
    """The child could not be started, died, gave nonsense or took too long: it has no answer about the file."""


class TooLong(ChildError):
    """Reading the file takes more time than any library is worth."""


class Stuck(ChildError):
    """The file's device does not answer, or did not a moment ago."""


@dataclass(frozen=True, slots=True)
class FileArgument:
    """A file as an argument of a call: there it is an Elf."""

    path: str
    size: int = -1
    """In bytes; where it is another, there is FileNotFoundError. Negative: whatever it is."""
    modified: int = -1
    """Expected st_mtime in nanoseconds; compared only if `size` is compared."""
    device: int = 0
    """The file's st_dev, 0 where it is not known."""


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file that stays what it is, whatever happens to its name: closing this waits for no file system (O_PATH)."""

    descriptor: int
    owner: int
    """The user it belongs to."""


class FileWorker:
    """Calls functions of this package in a child, one at a time. Safe from any thread."""

    def __init__(self, idle: float = IDLE, seconds: float = SECONDS, patience: float = PATIENCE) -> None:
        self._idle, self._seconds, self._patience = idle, seconds, patience
        self._lock = threading.Lock()
        self.child: WorkerProcesses | None = None
        self._stuck: list[tuple[int, WorkerProcesses]] = []
        self._interruptions = 0
        self._spent = threading.local()
        self.too_long = self.stuck = 0
        """Calls that were ended, by what they were ended for."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Returns what the module-level function returns in the child, as the type that it is declared to return.

        A File among the arguments is an Elf there. Raises OSError and ElfError as the function does, FileNotFoundError
        where another file is there, and ChildError when there is no answer.
        """
        return self._call(function, arguments)[0]

    def call_and_hold(
        self, function: Callable[..., Any], *arguments: Any, within: float | None = None
    ) -> tuple[Any, OpenFile]:
        """Calls a function as `call` does. Returns the first file too, held for the caller to close.

        Raises TakesLonger where the function reads for more than `within` seconds of an ordinary processor's time.
        """
        result, held = self._call(function, arguments, {"keep": True, "within": within})
        if held is None:
            raise ChildError("the process that reads files returned none")
        return result, held

    def spent(self) -> float:
        """Seconds of the processor's time that calls of this thread have taken, as an ordinary machine would."""
        return getattr(self._spent, "seconds", 0.0)

    def interrupt(self) -> None:
        """Ends a call of another thread that waits for the child, with Stuck."""
        self._interruptions += 1

    @property
    def abandoned(self) -> int:
        """Children that wait for a file system and cannot be ended."""
        return sum(not child.has_ended() for _, child in list(self._stuck))

    def close(self) -> None:
        """Ends the child; waits for nothing that does not answer."""
        if self._lock.acquire(timeout=_CLOSE_SECONDS):
            self._stop(0)
            self._lock.release()

    def _call(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any] | None = None
    ) -> tuple[Any, OpenFile | None]:
        files = [it for it in arguments if isinstance(it, FileArgument)]
        sent = [{"file": files.index(it)} if isinstance(it, FileArgument) else encode(it) for it in arguments]
        call = {"module": function.__module__, "name": function.__qualname__, "arguments": sent}
        message = json.dumps(call | {"files": encode(files)} | (options or {})).encode()
        device = files[0].device if files else 0
        with self._lock:
            self._refuse(files)
            try:
                answer, held = self._request(message, device)
            except (EOFError, ConnectionError):  # it had just ended for want of work
                self._stop(0)
                try:
                    answer, held = self._request(message, device)
                except (EOFError, ConnectionError) as error:
                    self._stop(0)
                    raise ChildError("the process that reads files died") from error
        try:
            result = _result(function, answer)
        except BaseException:
            _close(held)
            raise
        return result, held

    def _refuse(self, files: list[FileArgument]) -> None:
        now = time.monotonic()
        self._stuck = [(device, it) for device, it in self._stuck if not it.has_ended() or now < it.ended_at + REST]
        stuck = {device for device, _ in self._stuck if device}
        if any(file.device in stuck for file in files) or len(self._stuck) >= MOST_STUCK:
            raise Stuck("its file system does not answer")

    def _request(self, message: bytes, device: int) -> tuple[bytes, OpenFile | None]:
        child = self.child or self._start()
        child.seconds()
        try:
            child.connection.sendall(LENGTH.pack(len(message)) + message)
            patience = self._patience * min(child.slowness, _MOST_PATIENT)
            interruptions = self._interruptions
            if not self._answers(child, self._seconds * child.slowness, patience):
                why = "the search was interrupted" if self._interruptions != interruptions else ""
                why = why or ("the process that reads files was stopped" if child.is_stopped() else "")
                self.stuck += not why
                self._stop(device, stuck=not why)
                raise Stuck(why or "its file system does not answer")
            child.connection.settimeout(patience)
            head, descriptors, _, _ = socket.recv_fds(child.connection, ANSWER.size, 1)
            if len(head) < ANSWER.size:
                raise EOFError
            length, owner = ANSWER.unpack(head)
            held = OpenFile(descriptors[0], owner) if descriptors else None
            try:
                return exactly(child.connection, length), held
            except BaseException:
                _close(held)
                raise
        except ValueError as error:
            self._stop(0)
            raise ChildError(f"the process that reads files gave {error}") from error
        except TimeoutError as error:
            self._stop(device)
            raise ChildError("the process that reads files stopped in the middle of an answer") from error
        finally:
            self._charge(child)

    def _charge(self, child: WorkerProcesses) -> float:
        """Charges this thread with the processor time since the last call of this method; returns the seconds."""
        used = child.seconds()
        self._spent.seconds = self.spent() + used / child.slowness
        return used

    def _answers(self, child: WorkerProcesses, limit: float, patience: float) -> bool:
        """Waits for the child. False where it makes no progress for `patience` seconds, or this call is interrupted.

        Ends the child and raises TooLong where it takes more than `limit` seconds of the processor's time.
        """
        spent = idle = 0.0
        since = began = time.monotonic()
        interruptions = self._interruptions
        while not child.poll.poll(_LOOK * 1000):
            used, runs, now = self._charge(child), child.runs(), time.monotonic()
            spent += used
            if spent > limit:
                self.too_long += 1
                self._stop(0)
                raise TooLong(f"reading it takes more than {limit:.3g} s of the processor")
            idle += 0.0 if runs or used > _BUSY * (now - began) else now - began
            since, began = now if runs or used else since, now
            patient = now - since < patience and idle < _TRICKLE * patience
            if not patient or self._interruptions != interruptions:
                return bool(child.poll.poll(0))  # it may have answered while this process stood still
        return True

    def _start(self) -> WorkerProcesses:
        found = importlib.util.find_spec("capstone")
        places = [Path(exporter.__file__).parents[1]]
        places += [Path(found.origin).parents[1]] if found and found.origin else []
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                privileges.pass_on()
                process = subprocess.Popen(
                    [sys.executable, "-P", "-S", "-m", "exporter.bpf.reader", str(theirs.fileno()), str(self._idle)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env=environment | {"PYTHONPATH": os.pathsep.join(map(str, places))},
                )
        except OSError as error:
            ours.close()
            raise ChildError(error.errno, f"the process that reads files cannot be started: {error}") from error
        offer_to_oom(process.pid)
        child = self.child = WorkerProcesses(process, ours)
        atexit.register(self.close)
        if not self._answers(child, float("inf"), max(START_PATIENCE, self._patience)):
            self._stop(0)
            raise ChildError("the process that reads files does not start")
        child.follow(*HELLO.unpack(exactly(ours, HELLO.size)))
        return child

    def _stop(self, device: int, stuck: bool = True) -> None:
        """Ends the child; of its device no file is read for a while if it was `stuck` there, or cannot be ended."""
        child, self.child = self.child, None
        if child and (not child.kill() or (stuck and device)):
            self._stuck.append((device, child))
        atexit.unregister(self.close)


def _result(function: Callable[..., Any], answer: bytes) -> Any:
    """ChildError where the answer is none: what the child read may have taken it over."""
    try:
        reply = json.loads(answer)
        if reply.keys() == {"result"}:
            return decode(declared(function)["return"], reply["result"])
        kind, number, text = decode(tuple[str, int, str], reply["error"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ChildError(f"the process that reads files gave nonsense: {str(error)[:200]}") from error
    if kind == "os":
        raise OSError(number, text) if number else FileNotFoundError(text)
    raise TakesLonger(text) if kind == "longer" else ElfError(text)


def _close(held: OpenFile | None) -> None:
    if held:
        os.close(held.descriptor)


WORKER = FileWorker()
"""One for the process, though modules have no state here otherwise: what it holds is a child that comes and goes."""
