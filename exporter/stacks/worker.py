"""The child that unwinds stacks (child.py), as the exporter holds it: fed from a bounded queue, replaced when it ends.

The processor time that it takes is the caller's to bound, by how many stacks are given to it.
"""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import exporter
from exporter.background.child import offer_to_oom
from exporter.bpf import privileges
from exporter.stacks.opener import ADMIT, AGAIN, END, FLUSH, MOST_BYTES, STACK
from exporter.stacks.worker_child import StackChild

MOST_WAITING = 256
"""Stacks in the queue, of up to 50 KB."""
MEMORY = 256 << 20
"""Bytes of anonymous memory of the child that unwinds, at most."""
START_SECONDS, ANSWER_SECONDS = 60.0, 20.0
"""Seconds without progress, and seconds of the processor without an answer, until a child is given up."""
REST_SECONDS = 600.0
"""So long a process is left out of which the files did not answer."""
PAUSE, _LONGEST_PAUSE = 1.0, 300.0
LOOK_SECONDS = 1.0
_ENVIRONMENT = ("LD_LIBRARY_PATH", "PYTHONHOME", "PATH")
log = logging.getLogger(__name__)

Receive = Callable[[dict[str, Any]], None]


class StackWorker:
    """Unwinds stacks in the background. `receive` gets the child's messages, in a thread of this object.

    `started` is called when a child has begun, which knows no process and numbers stacks from the start; `ended` when
    it has ended, and answers no stack that it was given.
    """

    def __init__(self, receive: Receive, started: Callable[[], None], ended: Callable[[], None]) -> None:
        self._receive, self._started, self._ended = receive, started, ended
        self._lock = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._waiting = 0
        self.child: StackChild | None = None
        self._starting = False
        """True while a child starts, for which stacks wait."""
        self._closing = False
        self._flush = 0
        self._used = 0.0
        self._stuck: dict[int, float] = {}
        self.dropped: Counter[str] = Counter()
        """Stacks that were not unwound, by reason."""
        self.unwound = 0
        self.missing = ""
        """Why native frames cannot be unwound, with the remedy."""
        self._threads = [
            threading.Thread(target=self._run, name="stacks", daemon=True),
            threading.Thread(target=self._feed, name="stacks feed", daemon=True),
        ]

    def start(self) -> None:
        self._starting = True
        for thread in self._threads:
            thread.start()

    def admit(self, pids: Collection[int]) -> None:
        """Have the code of processes opened, of which stacks follow; not of those on a file system that hung."""
        now = time.monotonic()
        self._stuck = {pid: until for pid, until in self._stuck.items() if until > now}
        self._put([ADMIT + str(pid).encode() for pid in pids if pid not in self._stuck])

    def end(self, pids: Collection[int]) -> None:
        """Forget processes, behind the stacks that were given before."""
        for pid in pids:
            self._stuck.pop(pid, None)
        self._put([END + str(pid).encode() for pid in pids])

    def number_again(self) -> None:
        """Have stacks sent again that were sent before: the exporter has forgotten them."""
        self._put([AGAIN])

    def give(self, pack: Callable[[], bytes]) -> bool:
        """Queue the packed stack that `pack` returns, once there is room: the next ones wait in the ring buffer.

        Returns False where there is no child: the stack is dropped then, and counted.
        """
        with self._lock:
            self._lock.wait_for(self._can_take)
            if self.child is None:
                self.dropped["unwinder"] += not self._closing
                return False
            self._queue.append(STACK + pack())
            self._waiting += 1
            self._lock.notify_all()
            return True

    def _can_take(self) -> bool:
        """Return whether a stack need not wait: there is room for it, or no child that it could wait for."""
        if self.child is None:
            return self._closing or not self._starting
        return self._waiting < MOST_WAITING

    def flush(self, seconds: float) -> bool:
        """Wait until all stacks given before are answered, or their child ends. Returns False if that takes longer."""
        with self._lock:
            if self.child is None:
                return True
            self._flush += 1
            number = self._flush
        self._put([FLUSH + str(number).encode()])
        with self._lock:
            return self._lock.wait_for(lambda: self.child is None or self.child.flushed >= number, seconds)

    def seconds(self) -> float:
        """Return the processor time of all children so far, without that of their starts."""
        with self._lock:
            return self._used + (self.child.seconds() if self.child else 0.0)

    @property
    def waiting(self) -> int:
        """Stacks that are not answered yet."""
        child = self.child
        return self._waiting + (child.given - child.answered if child else 0)

    def close(self) -> None:
        """End the child and the threads."""
        with self._lock:
            self._closing = True
            child = self.child
            self._lock.notify_all()
        if child:
            with suppress(OSError):
                child.connection.shutdown(socket.SHUT_RDWR)  # the thread that follows it ends it
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(2.0)

    def _put(self, messages: Collection[bytes]) -> None:
        with self._lock:
            self._queue.extend(messages)
            self._lock.notify_all()

    def _feed(self) -> None:
        """Write what is queued to the child, which may take its time."""
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._closing or (self._queue and self.child and self.child.reader))
                if self._closing:
                    return
                message, child = self._queue.popleft(), self.child
                if message[:1] == STACK:
                    self._waiting -= 1
                    self._lock.notify_all()
                    if child:
                        child.given += 1
                        child.last_answer = child.last_answer if child.given - child.answered > 1 else time.monotonic()
            if child:
                with suppress(OSError):  # its end is noticed by the other thread
                    child.connection.sendall(message)

    def _run(self) -> None:
        pause = PAUSE
        while not self._closing:
            began = time.monotonic()
            reason = "ended"
            try:
                reason = self._run_child()
            except OSError as error:
                reason = str(error)
            except Exception:
                log.exception("the child that unwinds stacks is replaced")
            if self._closing:
                return
            pause = PAUSE if time.monotonic() - began > 60 else min(2 * pause, _LONGEST_PAUSE)
            log.warning("the child that unwinds stacks is replaced in %.0f s: %s", pause, reason)
            with self._lock:
                self._starting = False
                self._lock.notify_all()
                self._lock.wait_for(lambda: self._closing, pause)
                self._starting = True

    def _run_child(self) -> str:
        child = self._spawn()
        try:
            return self._follow(child)
        finally:
            with self._lock:
                self._used += child.seconds()
                self.child = None
                lost = child.given - child.answered + self._waiting
                if lost and not self._closing:
                    self.dropped["unwinder"] += lost
                self._queue.clear()
                self._waiting = 0
                self._ended()
                self._lock.notify_all()
            self._end(child)

    def _follow(self, child: StackChild) -> str:
        """Receive until the child ends; return the reason."""
        poll = select.poll()
        poll.register(child.connection, select.POLLIN)
        while not self._closing:
            if poll.poll(LOOK_SECONDS * 1000):
                message = child.connection.recv(MOST_BYTES)
                if not message:
                    return "it ended"
                self._take(child, json.loads(message))
                continue
            child.look()
            if child.opening and child.is_stuck(ANSWER_SECONDS):
                self._stuck[child.opening] = time.monotonic() + REST_SECONDS
                return f"a file of process {child.opening} cannot be opened or read, its file system does not answer"
            if not child.reader and child.is_stuck(START_SECONDS):
                return "it does not answer"
            if child.given > child.answered and child.is_stuck(ANSWER_SECONDS):
                return "it does not answer"
            if child.memory() > MEMORY:
                return "it needs too much memory"
        return ""

    def _take(self, child: StackChild, message: dict[str, Any]) -> None:
        child.last_answer = time.monotonic()
        if "reader" in message:
            self.missing = str(message["missing"])
            with self._lock:
                child.reader = int(message["reader"])
                self._used -= child.seconds()
            self._started()  # before it is given stacks
            with self._lock:
                self.child, self._starting = child, False
                self._lock.notify_all()
        elif "opening" in message or "opened" in message:
            child.opening = int(message.get("opening", 0))
        elif "flushed" in message:
            with self._lock:
                child.flushed = int(message["flushed"])
                self._lock.notify_all()
        else:
            if "id" in message:
                child.answered += 1
                self.unwound += 1
            self._receive(message)

    def _spawn(self) -> StackChild:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        places = os.pathsep.join([str(Path(exporter.__file__).parents[1])])
        with theirs:
            privileges.pass_on()
            process = subprocess.Popen(
                [sys.executable, "-P", "-S", "-m", "exporter.stacks.child", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL if not os.environ.get("STACKS_DEBUG") else None,
                pass_fds=[theirs.fileno()],
                env=environment | {"PYTHONPATH": places},
            )
        offer_to_oom(process.pid)
        return StackChild(process, ours)

    @staticmethod
    def _end(child: StackChild) -> None:
        """Kill both; the one that unwinds is killed by the kernel with the other, or ends with its connection."""
        child.connection.close()
        child.process.kill()
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(1.0)
