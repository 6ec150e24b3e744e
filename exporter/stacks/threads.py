"""Stacks of all threads of processes, wherever they are: what the threads of a job that hangs are waiting in."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from exporter.background.patience import Patience
from exporter.bpf import iterators, object_path
from exporter.bpf.libbpf import BpfError, Map, Object
from exporter.bpf.native import not_started
from exporter.stack_profiles.model import Frame, Stack

MOST_THREADS, MOST_OF_PROCESS = 4096, 1024
"""Threads of all processes of a snapshot, and of one."""
_AT_ONCE = 32
_KERNEL_SECONDS, _ANSWER_SECONDS = 2.0, 20.0
_KERNEL_FRAME = re.compile(r"\[<[0-9a-f]*>\] ([^+\s]+)\+0x[0-9a-f]+/0x[0-9a-f]+(?: \[([^\]]+)\])?")
"""A line of /proc/PID/task/TID/stack (proc_pid_stack in fs/proc/base.c)."""
_TAKING = "take the stack of a thread by a BPF iterator"

NO_FRAMES: Stack = ()
Key = tuple[int, int]
"""pid and tid."""


class Threads:
    """Takes snapshots, one at a time. `maps` are those of the object that takes stacks of calls (bpf/stacks/)."""

    def __init__(self, proc: Path, maps: Mapping[str, Map]) -> None:
        self._proc, self._maps = proc, maps
        self.busy = threading.Lock()
        self._changed = threading.Condition()
        self._expected: set[Key] = set()
        self._found: dict[Key, Stack] = {}
        self._patience = Patience("thread stacks")

    def snapshot(self, pids: Collection[int], admit: Callable[[Collection[int]], object]) -> dict[Key, Stack]:
        """Return the stacks of all threads of processes; of one that could not be read, its frames in the kernel alone.

        `admit` gets the processes before. Raises Unavailable where the kernel has no such iterator (before Linux 6.1),
        BpfError for other failures.
        """
        with self.busy:
            try:
                taker = Object(object_path("threads"), shared=self._maps)
            except BpfError as error:
                raise not_started("the program that takes stacks of threads cannot be loaded", error) from error
            try:
                admit(pids)
                with self._changed:
                    self._expected, self._found = set(), {}
                in_kernel = dict(self._take_all(taker.programs["take"].fd, pids))
                with self._changed:
                    self._changed.wait_for(lambda: not self._expected, _ANSWER_SECONDS)
                    return {key: stack + self._found.get(key, ()) for key, stack in in_kernel.items()}
            finally:
                with self._changed:
                    self._expected = set()
                if not self._patience.waiting:
                    taker.close()

    def answered(self, pid: int, tid: int, stack: Stack) -> None:
        """Receive the stack of a thread; empty where it is not known."""
        with self._changed:
            if (pid, tid) in self._expected:
                self._expected.remove((pid, tid))
                self._found[pid, tid] = stack
                self._changed.notify_all()

    def close(self) -> None:
        self._patience.close()

    def _take_all(self, program: int, pids: Collection[int]) -> Iterator[tuple[Key, Stack]]:
        """Have the stacks of threads taken, not faster than they are unwound; yield their frames in the kernel."""
        left = MOST_THREADS
        for pid in pids:
            silent = False
            for tid in self._threads(pid)[: min(left, MOST_OF_PROCESS)]:
                left -= 1
                with self._changed:
                    self._changed.wait_for(lambda: len(self._expected) < _AT_ONCE, _ANSWER_SECONDS)
                    self._expected.add((pid, tid))
                taken, frames = False, NO_FRAMES
                try:
                    if not silent:
                        look = partial(self._take, program, self._proc / f"{pid}/task/{tid}", tid)
                        taken, frames = self._patience.call((pid, tid), look, _KERNEL_SECONDS)
                except OSError:  # it keeps its memory map locked, as may the other threads of it
                    silent = True
                if not taken:
                    self.answered(pid, tid, ())
                yield (pid, tid), frames

    def _threads(self, pid: int) -> list[int]:
        try:
            return sorted(int(folder.name) for folder in (self._proc / f"{pid}/task").iterdir())
        except OSError:
            return []  # it has ended

    @staticmethod
    def _take(program: int, folder: Path, tid: int) -> tuple[bool, Stack]:
        frames = kernel_frames(folder)
        with suppress(BpfError):
            link = iterators.link(program, _TAKING, tid=tid)
            try:
                return bool(iterators.read(link, _TAKING)), frames
            finally:
                os.close(link)
        return False, frames


def kernel_frames(folder: Path) -> Stack:
    """Return a thread's frames in the kernel, the leaf first; none where it runs.

    Without CAP_SYS_ADMIN, which the whole stack takes, the function that it waits in is the only one.
    """
    try:
        lines = (folder / "stack").read_text(errors="replace").splitlines()
    except PermissionError:
        return _waits_in(folder)
    except OSError:
        return ()
    matched = filter(None, map(_KERNEL_FRAME.match, lines))
    return tuple(Frame(it[1], kind="kernel", module=it[2] or "") for it in matched)


def _waits_in(folder: Path) -> Stack:
    try:
        function = (folder / "wchan").read_text(errors="replace")
    except OSError:
        return ()
    return (Frame(function, kind="kernel"),) if function.isidentifier() else ()
