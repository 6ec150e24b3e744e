"""A /proc made by hand, and interests that record what they get."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

from exporter.bpf.library import Library
from exporter.bpf.mappings import MappedFile, Mapping

PID = 4711
START, END = 0x7F0000001000, 0x7F0000003000
STAT = b"4711 (a) b) c) S 1 " + b" ".join(b"%d" % n for n in range(5, 53))


class Proc:
    """A /proc of one process, with its mapped files as symbolic links as there."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / str(PID)
        (self.folder / "map_files").mkdir(parents=True)
        (self.folder / "stat").write_bytes(STAT)
        (self.folder / "mountinfo").write_bytes(
            b"22 1 0:39 / /merged rw - overlay none rw\n23 1 8:1 / / rw - ext4 x rw\n"
        )
        (self.folder / "maps").write_bytes(b"")

    def map(self, target: Path, start: int = START, end: int = END) -> Mapping:
        """Maps a file, and gives the mapping as the iterator would."""
        link = self.folder / "map_files" / f"{start:x}-{end:x}"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        found = target.stat()
        device = os.major(found.st_dev) << 20 | os.minor(found.st_dev)
        file = MappedFile(1, found.st_ino, found.st_size, found.st_mtime_ns, device, 0)
        return Mapping(1, 1, start, end, *file, PID, 0)


class Recorder:
    """An interest that keeps what it attached to."""

    symbols = frozenset({"wanted"})

    def __init__(self, error: Exception | None = None) -> None:
        self.attached: list[Library] = []
        self.closed = 0
        self._error = error

    def attach(self, library: Library) -> Recorder:
        if self._error:
            raise self._error
        self.attached.append(library)
        return self

    def close(self) -> None:
        self.closed += 1

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None: ...

    def processes_ended(self, pids: Collection[int]) -> None: ...

    def processes_replaced(self, pids: Collection[int]) -> Collection[int]:
        return ()


class CallerRecorder(Recorder):
    """An interest in the callers of the function, not in its definition."""

    symbols: frozenset[str] = frozenset()
    imports = frozenset({"wanted"})


def failing(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail
