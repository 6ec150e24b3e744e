"""Samples about the libraries of a probe. Files of one name, as two containers have them, are one series: the worse."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from exporter.bpf.naming import names
from exporter.bpf.probe_metrics import ATTACHED, MISSING, UNCOVERED
from exporter.bpf.probed_library import ProbedLibrary
from exporter.bpf.symbol_coverage import SymbolCoverage
from exporter.model import Sample

Named = Collection[tuple[ProbedLibrary, str]]


def named(present: Collection[ProbedLibrary]) -> Named:
    """Return libraries with their names in labels."""
    called = names(probed.hooked.library for probed in present)
    return [(probed, called[id(probed.hooked.library)]) for probed in present]


def states(probe: str, present: Named) -> Iterator[Sample]:
    """Yield whether each symbol is attached in each library."""
    attached: dict[tuple[str, str, str], bool] = {}
    for probed, name in present:
        for state in probed.hooked.states():
            key = state.symbol, name, state.placement
            attached[key] = attached.get(key, True) and state.attached
    for (symbol, library, placement), value in attached.items():
        labels = {"probe": probe, "symbol": symbol, "library": library, "placement": placement}
        yield ATTACHED.sample(int(value), labels)


def symbols(probe: str, present: Named, coverage: SymbolCoverage) -> Iterator[Sample]:
    """Yield how many symbols each library lacks, and how many that it has are not covered."""
    missing: dict[str, int] = defaultdict(int)
    uncovered: dict[str, int] = defaultdict(int)
    for probed, name in present:
        if probed.passing:
            continue  # it has the functions that it wants to change
        missing[name] = max(missing[name], coverage.count_missing(probed.hooked.library))
        uncovered[name] = max(uncovered[name], len(probed.uncovered))
    for name, count in missing.items():
        yield MISSING.sample(count, {"probe": probe, "library": name})
    for name, count in uncovered.items() if coverage.coverable else ():
        yield UNCOVERED.sample(count, {"probe": probe, "library": name})
