"""Files with collectives that may be left out: which processes lose calls, and when."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from exporter.governor.left_out_files import LeftOutFiles
from exporter.governor.subject import SubjectFile
from exporter.nccl.sight import Sight


class LeftOut(LeftOutFiles):
    """Lets Sight know of processes before they lose a call, and once all their calls are seen again."""

    def __init__(self, files: Callable[[], Mapping[int, SubjectFile]], sight: Sight) -> None:
        super().__init__(files)
        self._sight = sight

    def is_bounded(self, library: object) -> bool:
        """Return whether collectives of a library may ever be left out."""
        return id(library) in self._files()

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
        self._end(key)
        self._sight.regain(self._present(key).difference(*self._lost_in.values()))

    def _end(self, key: int) -> None:
        super()._end(key)
        if not self._lost_in:
            self._sight.end_gaps()

    def _lose_others(self, key: int) -> None:
        self._lose(key, self._present(key) - self._kept.get(key, set()) - self._lost_in[key])

    def _lose(self, key: int, pids: Collection[int]) -> None:
        self._sight.lose(pids)
        self._lost_in[key].update(pids)

    def _present(self, key: int) -> set[int]:
        """Return the processes that use the file now."""
        file = self._files().get(key)
        return {*file.pids} if file else set()
