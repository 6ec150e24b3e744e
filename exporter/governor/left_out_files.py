"""Files of which functions are left out: which processes lose calls by that, and which do not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from functools import partial

from exporter.bpf.sampled_file import SampledFile
from exporter.governor.subject import SubjectFile


class LeftOutFiles(ABC):
    """Passes on what a governor does with the files of a Subject that has to know of each process that loses calls.

    `files` returns the files that there are.
    """

    def __init__(self, files: Callable[[], Mapping[int, SubjectFile]]) -> None:
        self._files = files
        self._lost_in: dict[int, set[int]] = {}
        """Processes that are left out, by file; a file with a row has such functions detached, or in windows."""
        self._kept: dict[int, set[int]] = {}

    def sampled_files(self) -> Mapping[int, SubjectFile]:
        """Return the files, for the governor."""
        files = self._files()
        for key in self._lost_in.keys() - files.keys():
            self._end(key)
        return {
            key: SampledFile(
                it.name,
                it.symbols,
                it.pids,
                probe=partial(self._probe, key, it),
                keep=partial(self._keep, key, it),
                restore=partial(self._restore, key, it),
            )
            for key, it in files.items()
            if key in self._lost_in or self._may_lose(it)
        }

    def forget(self, pids: Collection[int]) -> None:
        """Forget processes that have ended, or run another program."""
        for known in [*self._lost_in.values(), *self._kept.values()]:
            known.difference_update(pids)

    def is_detached(self, library: object) -> bool:
        """Return whether calls in a library are seen only in processes with links of their own."""
        return id(library) in self._lost_in

    def has_links(self, pid: int) -> bool:
        """Return whether a process has links of its own."""
        return any(pid in kept for kept in [*self._kept.values()])

    def _may_lose(self, file: SubjectFile) -> bool:
        """Return whether calls in a file may be left out."""
        return True

    def _end(self, key: int) -> None:
        """Take note that a file has no windows any more."""
        self._lost_in.pop(key, None)

    @abstractmethod
    def _probe(self, key: int, file: SubjectFile, on: bool) -> None:
        """Do what ProbedFile.probe does."""

    @abstractmethod
    def _keep(self, key: int, file: SubjectFile, pids: Collection[int]) -> Collection[int]:
        """Do what ProbedFile.keep does."""

    @abstractmethod
    def _restore(self, key: int, file: SubjectFile) -> None:
        """Do what ProbedFile.restore does."""
