"""Calls of the driver and the runtime that have not returned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

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
            if flight.sp and flight.start_ns and self._will_return(flight):
                yield Standing(key.tgid, flight.start_ns, function(flight.cookie.api).name)

    def _will_return(self, flight: Flight) -> bool:
        return bool(flight.returning and self._maps["returning"].get(flight.cookie.library) == flight.returning)
