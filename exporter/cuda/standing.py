"""Calls of the driver and the runtime that have not returned."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from exporter.bpf.process_links import LEAVING, LINKED_MARK, linked_key
from exporter.cuda.functions import GROUPS
from exporter.cuda.records import Flight
from exporter.cuda.samples import function
from exporter.stack_profiles.hangs import Standing

if TYPE_CHECKING:
    from exporter.bpf.maps import Map


class CudaStandingCalls:
    """Calls of which the programs of bpf/cuda/ wait for the return: `maps` are those of that object."""

    def __init__(self, maps: Mapping[str, Map]) -> None:
        self._maps = maps

    def look(self) -> Iterator[Standing]:
        """Yield them; those of which the return is not seen are not among them."""
        for key, flight in self._maps["in_flight"].items():
            if flight.sp and flight.start_ns and self._will_return(key.tgid, flight):
                yield Standing(key.tgid, flight.start_ns, function(flight.cookie.api).name)

    def of(self, library: int, linked: bool) -> Collection[int]:
        """Return the processes with such calls in the library of this number, see exporter.bpf.hook_group.Waiting."""
        found = set()
        for key, flight in self._maps["in_flight"].items():
            if flight.sp and flight.cookie.library == library and bool(flight.returning & LINKED_MARK) == linked:
                found.update([key.tgid] if self._will_return(key.tgid, flight) else [])
        return found

    def _will_return(self, pid: int, flight: Flight) -> bool:
        if flight.returning & LINKED_MARK:
            group = GROUPS.index(function(flight.cookie.api).group)
            return (self._maps["linked"].get(linked_key(pid, group)) or 0) & ~LEAVING == flight.returning
        return bool(flight.returning and self._maps["returning"].get(flight.cookie.library) == flight.returning)
