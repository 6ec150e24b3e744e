"""Files with collectives that may be left out: which processes lose calls, and when."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from exporter.bpf.sampled_file import SampledFile
from exporter.governor.subject import SubjectFile
from exporter.nccl.sight import Sight


class LeftOut:
    """Passes on what a governor does with files, and lets Sight know of processes before they lose a call, and once all
    their calls are seen again. `files` returns the files that there are.
    """

    def __init__(self, files: Callable[[], Mapping[int, SubjectFile]], sight: Sight) -> None:
        self._files, self._sight = files, sight
        self._lost_in: dict[int, set[int]] = {}
        """Processes that are left out, by file; a file with a row has its collectives detached, or in windows."""
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
        }

    def forget(self, pids: Collection[int]) -> None:
        """Forget processes that have ended, or run another program."""
        for known in [*self._lost_in.values(), *self._kept.values()]:
            known.difference_update(pids)

    def is_bounded(self, library: object) -> bool:
        """Return whether collectives of a library may ever be left out."""
        return id(library) in self._files()

    def is_detached(self, library: object) -> bool:
        """Return whether collectives of a library are seen only in processes with links of their own."""
        return id(library) in self._lost_in

    def has_links(self, pid: int) -> bool:
        """Return whether a process has links of its own."""
        return any(pid in kept for kept in [*self._kept.values()])

    def _probe(self, key: int, file: SubjectFile, on: bool) -> None:
        if on:
            self._sight.begin_window()
        else:
            self._sight.begin_gaps()
            self._lost_in.setdefault(key, set())
            self._lose_others(key)
        file.probe(on)

    def _keep(self, key: int, file: SubjectFile, pids: Collection[int]) -> Collection[int]:
        before = self._kept.get(key, set())
        if key in self._lost_in:
            self._lose(key, before - {*pids})
        kept = self._kept[key] = {*file.keep(pids)}
        if key in self._lost_in:
            self._lost_in[key] -= kept
            for pid in kept - before:
                self._sight.meet(pid)
            self._lose_others(key)
        return kept

    def _restore(self, key: int, file: SubjectFile) -> None:
        file.restore()
        self._sight.regain(self._end(key))

    def _end(self, key: int) -> set[int]:
        """Take note that a file has no windows any more. Return the processes of which no calls are left out then."""
        self._lost_in.pop(key, None)
        if not self._lost_in:
            self._sight.end_gaps()
        return self._present(key).difference(*self._lost_in.values())

    def _lose_others(self, key: int) -> None:
        self._lose(key, self._present(key) - self._kept.get(key, set()) - self._lost_in[key])

    def _lose(self, key: int, pids: Collection[int]) -> None:
        self._sight.lose(pids)
        self._lost_in[key].update(pids)

    def _present(self, key: int) -> set[int]:
        """Return the processes that use the file now."""
        file = self._files().get(key)
        return {*file.pids} if file else set()
