"""Runs the checks that need a GPU: `python -m tests.gpu [--dry-run]`. See tests/gpu/README.md."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from tests.gpu.machine import ROOT, STANDINS, Machine
from tests.gpu.outcome import CANNOT, FAILED, CannotRun, Row, table
from tests.standins.nvml import LIBRARY, Scenario

CHECKS = {
    1: "kernel",
    2: "pointers",
    3: "prologues",
    4: "counts",
    5: "overhead",
    6: "management",
    7: "attribution",
    8: "collectives",
    9: "endurance",
}
RESULTS = ROOT / "docs" / "gpu-results.md"
DRY_RESULTS = ROOT / "build" / "gpu-dry-run.md"
WHEELS = ROOT / "build" / "wheels"


def main(arguments: Sequence[str] | None = None) -> int:
    """1 when a check failed, or could not run under REQUIRE_GPU=1; a dry run needs no GPU."""
    given = _arguments(arguments)
    with contextlib.ExitStack() as stack:
        machine = _machine(given, stack)
        rows = []
        for number in given.check or CHECKS:
            print(f"test-gpu: {number} {CHECKS[number]} ...", file=sys.stderr, flush=True)
            rows += list(_rows(number, machine))
    text = table(rows)
    print(text)
    output = given.output or (DRY_RESULTS if given.dry_run else RESULTS)
    if given.check and not given.output:
        print("test-gpu: only a run of all checks is written down", file=sys.stderr)
    elif not given.dry_run and not given.output and not _has_gpu(machine):
        print(f"test-gpu: there is no GPU here: {output.name} stays as it is", file=sys.stderr)
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(_page(rows, given.dry_run))
    bad = [row for row in rows if row.outcome == FAILED]
    unrun = [row for row in rows if row.outcome == CANNOT]
    print(f"test-gpu: {len(rows)} rows, {len(bad)} failed, {len(unrun)} could not run", file=sys.stderr)
    required = os.environ.get("REQUIRE_GPU") == "1"
    return int(bool(bad) or (required and bool(unrun)))


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make test-gpu", description="The checks that need a GPU.")
    parser.add_argument("--dry-run", action="store_true", help="against the stand-in libraries, without a GPU")
    parser.add_argument("--check", type=int, action="append", choices=CHECKS, help="one check (may be repeated)")
    parser.add_argument("--output", type=Path, help="the file that is written")
    parser.add_argument("--pairs", type=int, default=0, help="runs with and without the exporter (10; dry run: 1)")
    parser.add_argument("--soak", type=float, default=0, help="seconds of the long load (600; dry run: 4)")
    parser.add_argument("--standins", type=Path, default=STANDINS, help="folder of libcuda.so.1 in a dry run")
    parser.add_argument(
        "--scenario", action="append", default=[], metavar="KEY=VALUE", help="a line for NVML's stand-in"
    )
    return parser.parse_args(arguments)


def _machine(given: argparse.Namespace, stack: contextlib.ExitStack) -> Machine:
    if not given.dry_run:
        own = {it: os.environ[it] for it in ("LD_LIBRARY_PATH",) if it in os.environ}
        return Machine(False, own, pairs=given.pairs or 10, soak=given.soak or 600.0)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    folder.chmod(0o755)
    scenario = Scenario(folder, **dict(it.split("=", 1) for it in given.scenario))
    path = ":".join(map(str, dict.fromkeys((given.standins, STANDINS, LIBRARY.parent))))
    environment = {**scenario.environment(), "LD_LIBRARY_PATH": path}
    del environment["ACCEL_NVML_CALLS"]
    wheels = tuple(it for it in sorted(WHEELS.glob("*")) if it.is_dir())
    return Machine(True, environment, scenario, given.pairs or 1, soak=given.soak or 4.0, wheels=wheels)


def _rows(number: int, machine: Machine) -> Iterator[Row]:
    """A check's rows; one that breaks is a failed row and takes no other with it."""
    check = CHECKS[number]
    try:
        yield from import_module(f"tests.gpu.{check}").run(machine)
    except CannotRun as error:
        yield Row(number, check, CANNOT, str(error))
    except Exception as error:
        traceback.print_exc()
        yield Row(number, check, FAILED, f"{type(error).__name__}: {error}")


def _has_gpu(machine: Machine) -> bool:
    try:
        machine.library("libcuda.so.1")
    except CannotRun:
        return False
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _page(rows: Sequence[Row], dry: bool) -> str:
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    what = "A dry run against stand-ins: it shows nothing about a GPU." if dry else "Measured on a GPU."
    how = f"{what} Written by `make test-gpu` on {when}; see tests/gpu/README.md."
    return f"# Results on a GPU\n\n{how}\n\n{table(rows)}\n"


if __name__ == "__main__":
    sys.exit(main())
