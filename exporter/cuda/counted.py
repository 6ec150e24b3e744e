"""What the kernel has counted: the maps of a loaded object, and how often each function was called in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from exporter.cuda import activity
from exporter.cuda.activity import Activity, Map
from exporter.model import Labels

GpusOf = Callable[[int, Activity], Mapping[int, Labels]]


class Counted:
    """Reads and clears for an exporter.ledger.Ledger, under its lock.

    `forget` removes what the kernel keeps of a process besides its counts, `gpus_of` names the GPUs of its devices.
    """

    def __init__(self, maps: Mapping[str, Map], forget: Callable[[int], object], gpus_of: GpusOf) -> None:
        self._maps, self._forget, self._gpus_of = maps, forget, gpus_of
        self._hits: Counter[int] = Counter()
        self._cleared: Counter[int] = Counter()

    def read(self) -> dict[int, Activity]:
        seen = activity.read(self._maps)
        self._hits = self._cleared + _hits(seen.values())
        for pid, it in seen.items():
            it.gpus = self._gpus_of(pid, it)
        return seen

    def clear(self, pid: int) -> None:
        counts = activity.read(self._maps).get(pid)
        self._cleared += _hits([counts] if counts else ())
        activity.clear(self._maps, pid)
        self._forget(pid)

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
