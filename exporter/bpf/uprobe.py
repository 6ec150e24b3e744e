"""Attaching a program to points of a file: in every process that maps the file, now or later."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from exporter import descriptors
from exporter.bpf import multi, perf
from exporter.bpf.libbpf import Link, Program
from exporter.bpf.native import BpfError, UprobeOptions, check, failure, library

DESCRIPTORS_OF_POINT = 2
"""Of a point without a multi-uprobe link: its perf event and the link to that."""
_CLOSERS = 16


@dataclass(frozen=True, slots=True)
class Point:
    """A place to attach to: its offset in the file, and the number the program gets from bpf_get_attach_cookie.

    `semaphore` is where the file has a counter that the kernel raises while the place is probed (USDT); 0: nowhere.
    """

    offset: int
    cookie: int = 0
    semaphore: int = 0


class AttachError(BpfError):
    """Some points could not be attached to, so none is; `failed` has these."""

    def __init__(self, code: int, message: str, failed: Sequence[Point]) -> None:
        super().__init__(code, message)
        self.failed = tuple(failed)


def attach_to(program: Program, path: str | Path, points: Sequence[Point], pid: int, returns: bool = False) -> Link:
    """Attach as `attach` does, in one process; where exporter.bpf.process_links.supported()."""
    if descriptors.room() < 1:
        raise _refusal(errno.EMFILE, program, os.fspath(path), points)
    try:
        descriptor = _multi(program, os.fspath(path), points, returns, pid)
    except OSError as error:
        raise _refusal(error.errno or 0, program, os.fspath(path), points) from error
    return Link(lambda: os.close(descriptor))


def attach(program: Program, path: str | Path, points: Sequence[Point], returns: bool = False) -> Link:
    """Runs the program whenever a thread reaches one of the points, or with `returns` when that function returns.

    `path` may be a magic link such as /proc/PID/map_files/A-B or /proc/self/fd/N; the kernel keeps the file itself.
    AttachError (a BpfError) if a point is refused; all are where only the reserve of descriptors is left. A point that
    is no instruction start of a file which no process maps yet is not refused: the kernel looks at the code only when
    it is mapped.
    """
    if descriptors.room() < (1 if program.multi else DESCRIPTORS_OF_POINT * len(points)):
        raise _refusal(errno.EMFILE, program, os.fspath(path), points)
    return (_attach_multi if program.multi else _attach_each)(program, os.fspath(path), points, returns)


def close_all(links: Iterable[Link]) -> None:
    """Closes many links side by side: each waits for the kernel's grace period, 40 to 250 ms for a perf event."""
    waiting = list(links)
    if len(waiting) < 2:
        for link in waiting:
            link.close()
        return
    with ThreadPoolExecutor(min(len(waiting), _CLOSERS), "detach") as pool:
        for closed in [pool.submit(link.close) for link in waiting]:
            closed.result()


def _attach_multi(program: Program, path: str, points: Sequence[Point], returns: bool) -> Link:
    try:
        descriptor = _multi(program, path, points, returns)
    except OSError as error:
        failed = [point for point in points if len(points) > 1 and not _accepted(program, path, point, returns)]
        raise _refusal(error.errno or 0, program, path, failed or points) from error
    return Link(lambda: os.close(descriptor))


def _multi(program: Program, path: str, points: Sequence[Point], returns: bool, pid: int = 0) -> int:
    offsets, cookies = [point.offset for point in points], [point.cookie for point in points]
    semaphores = [it.semaphore for it in points]
    if program.session:
        return multi.link(program.fd, os.fsencode(path), offsets, cookies, False, semaphores, pid, multi.SESSION)
    return multi.link(program.fd, os.fsencode(path), offsets, cookies, returns, semaphores, pid)


def _accepted(program: Program, path: str, point: Point, returns: bool) -> bool:
    try:
        os.close(_multi(program, path, [point], returns))
    except OSError:
        return False
    return True


def _attach_each(program: Program, path: str, points: Sequence[Point], returns: bool) -> Link:
    links: list[Link] = []
    for point in points:
        try:
            links.append(_perf(program, path, point, returns))
        except BpfError as error:
            close_all(links)
            raise _refusal(error.errno or 0, program, path, [point]) from error
    return Link(lambda: close_all(links))


def _perf(program: Program, path: str, point: Point, returns: bool) -> Link:
    if not program.handle:
        return _by_descriptor(program, path, point, returns)
    bpf = library()
    size = ctypes.sizeof(UprobeOptions)
    options = UprobeOptions(sz=size, ref_ctr_offset=point.semaphore, bpf_cookie=point.cookie, retprobe=returns)
    bpf.forget_messages()
    every_process = -1
    link = bpf.bpf_program__attach_uprobe_opts(
        program.handle, every_process, os.fsencode(path), point.offset, ctypes.byref(options)
    )
    check(link, f"attach {program.name}", bpf.messages)
    return Link(lambda: bpf.bpf_link__destroy(link))


def _by_descriptor(program: Program, path: str, point: Point, returns: bool) -> Link:
    """Attaches a program that libbpf did not load."""
    try:
        event = perf.uprobe(os.fsencode(path), point.offset, point.semaphore, returns)
        try:
            link = perf.link(program.fd, event, point.cookie)
        finally:
            os.close(event)  # the link keeps it
    except OSError as error:
        raise failure(error.errno or 0, f"attach {program.name}") from error
    return Link(lambda: os.close(link))


def _refusal(code: int, program: Program, path: str, failed: Sequence[Point]) -> AttachError:
    shown = ", ".join(f"{point.offset:#x}" for point in failed[:5]) + (", …" if len(failed) > 5 else "")
    error = failure(code, f"attach {program.name} to {path} at offset {shown}")
    return AttachError(code, str(error), failed)
