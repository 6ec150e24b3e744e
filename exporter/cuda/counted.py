"""What the kernel has counted: the maps of a loaded object, and how often each function was called in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from exporter.cuda import activity
from exporter.cuda.activity import Activity, Map
from exporter.model import Labels

GpusOf = Callable[[int, Activity], Mapping[int, Labels]]


class Counted:
    """Reads and takes for an exporter.ledger.Ledger, under its lock.

    `forget` removes what the kernel keeps of processes besides their counts, `gpus_of` names the GPUs of the devices of
    one.
    """

    def __init__(self, maps: Mapping[str, Map], forget: Callable[[Collection[int]], object], gpus_of: GpusOf) -> None:
        self._maps, self._forget, self._gpus_of = maps, forget, gpus_of
        self._hits: Counter[int] = Counter()
        self._cleared: Counter[int] = Counter()

    def read(self) -> dict[int, Activity]:
        seen = activity.read(self._maps)
        self._hits = self._cleared + _hits(seen.values())
        self._name_gpus(seen)
        return seen

    def take(self, pids: Collection[int]) -> dict[int, Activity]:
        taken = activity.take(self._maps, pids)
        self._cleared += _hits(taken.values())
        self._name_gpus(taken)
        self._forget(pids)
        return taken

    def _name_gpus(self, activities: Mapping[int, Activity]) -> None:
        for pid, it in activities.items():
            it.gpus = self._gpus_of(pid, it)

    def hits(self) -> Mapping[int, int]:
        """Calls by function number as last read, those of ended processes included; they never fall."""
        return self._hits


def _hits(activities: Iterable[Activity]) -> Counter[int]:
    hits: Counter[int] = Counter()
    for it in activities:
        for counts in it.devices.values():
            hits.update(counts.calls)
            hits.update({api: launches.calls for api, launches in counts.launches.items()})
    return hits
