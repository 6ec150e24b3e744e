"""Cost of the RDMA probes to each process in seconds, by the calls in the map `process_hits` of bpf/verbs/hits.h."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from exporter.verbs.functions import HITS

if TYPE_CHECKING:
    from exporter.bpf.maps import Map

POSTS: Mapping[str, float] = {"post_send": 0.5, "post_recv": 0.2}
"""Functions that post a chain, with the cost of each request but the first over that of a small probe: measured as
190 to 350 and 90 ns, where a small probe took 500."""
_STARTED = ("wr_start", "wr_complete")
_BUILT = ("wr_send", "wr_set_sge")
"""Functions of each extended post, and of each of its requests; others cost the same."""


@dataclass(slots=True)
class Cost:
    """Seconds that probes took from one process."""

    posts: float = 0.0
    """Probes of POSTS."""
    other: float = 0.0


class VerbsCosts:
    """Costs of processes. `price` returns the seconds of a call, None while that is not known; `hit` those of a
    small probe."""

    def __init__(self, price: Callable[[str], float | None], rows: Map, hit: Callable[[], float | None]) -> None:
        self._price, self._rows, self._hit = price, rows, hit

    @property
    def known(self) -> bool:
        return self._price("post_send") is not None

    def of(self, pids: Collection[int]) -> Mapping[int, Cost]:
        """Return what probes took from each of these processes."""
        return self._sum({pid: Cost() for pid in pids})

    def all(self) -> float:
        """Return what the probes of POSTS took from all processes that run."""
        rows: dict[int, Cost] = {}
        for key, _ in self._rows.items():
            rows[key.tgid] = Cost()
        return sum(it.posts for it in self._sum(rows).values())

    def _sum(self, costs: dict[int, Cost]) -> Mapping[int, Cost]:
        hit = self._hit() or 0.0
        for key, seen in self._rows.items():
            cost, function = costs.get(key.tgid), HITS[key.hit]
            if cost is None:
                continue
            if function in POSTS:
                further = max(0, seen.requests - seen.calls) * POSTS[function] * hit
                cost.posts += seen.calls * self._each(function) + further
            elif function in _STARTED:
                cost.other += seen.calls * sum(map(self._each, _STARTED))
                cost.other += seen.requests * sum(map(self._each, _BUILT))
            else:
                cost.other += seen.calls * self._each(function)
        return costs

    def _each(self, function: str) -> float:
        return self._price(function) or 0.0
