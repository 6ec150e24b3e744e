"""Runs the measurements and prints one table: `python -m bench [--report] [--brief] [NAME...]`; all of bench/ without a
name.

A measurement is a module here with `run() -> list[Result]`. One that takes long has BRIEF: constants of the module, by
name, that --brief replaces, so that all of the code runs, sooner, and numbers are rough.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

from bench.result import Result

NOT_MEASUREMENTS = {"__main__", "fleet", "fleet_nodes", "result", "training"}


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when everything was measured and is within its budget, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="make bench", description="The budgets, measured on this machine.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="measurements to run (default: all)")
    parser.add_argument("--report", action="store_true", help="status 0 also when a budget is exceeded")
    parser.add_argument("--brief", action="store_true", help="fewer and shorter rounds: numbers are rough")
    given = parser.parse_args(arguments)
    known = names()
    if unknown := set(given.names) - set(known):
        parser.error(f"no measurement named {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    failed, exceeded = [], []
    for name in given.names or known:
        print(f"bench: {name} ...", file=sys.stderr, flush=True)
        began = time.monotonic()
        try:
            module = importlib.import_module(f"bench.{name}")
            results, how = brief(module) if given.brief else (module.run(), "")
        except Exception:  # one measurement that cannot be made does not take the others with it
            traceback.print_exc()
            failed.append(name)
            continue
        print(f"\n{name} ({time.monotonic() - began:.0f} s{how})")
        print("\n".join(table(results)), flush=True)
        exceeded += [result.name for result in results if not result.within]
    if given.brief:
        print("\nbench: in brief, so the numbers are rough: `make bench` measures at full length", file=sys.stderr)
    for what, which in (("could not be measured", failed), ("over its budget", exceeded)):
        if which:
            print(f"\nbench: {what}: {', '.join(which)}", file=sys.stderr)
    return int(bool(failed or (exceeded and not given.report)))


def names() -> list[str]:
    """Measurements by name, in order."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in NOT_MEASUREMENTS)


def brief(measurement: ModuleType) -> tuple[list[Result], str]:
    """Return the results of fewer and shorter rounds, and what was made less of."""
    less = getattr(measurement, "BRIEF", {})
    if not less:
        return measurement.run(), ""
    how = ", ".join(
        f"{constant} {value:g} in place of {getattr(measurement, constant):g}" for constant, value in less.items()
    )
    with patch.multiple(measurement, **less):
        return measurement.run(), f"; in brief: {how}"


def table(results: Iterable[Result]) -> Iterator[str]:
    """One aligned line a result: value, budget and verdict, and how it was measured."""
    rows = [(result.name, _number(result.value), result.unit, *_verdict(result), result.note) for result in results]
    widths = [max(len(row[column]) for row in rows) for column in range(5)] if rows else []
    for name, value, unit, budget, verdict, note in rows:
        cells = (
            f"{name:<{widths[0]}}",
            f"{value:>{widths[1]}}",
            f"{unit:<{widths[2]}}",
            f"{budget:<{widths[3]}}",
            f"{verdict:<{widths[4]}}",
            note,
        )
        yield "  " + "  ".join(cells).rstrip()


def _verdict(result: Result) -> tuple[str, str]:
    if result.budget is None:
        return "", ""
    return f"at most {_number(result.budget)}", "ok" if result.within else "EXCEEDED"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
