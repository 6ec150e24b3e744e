"""3. Where each hooked symbol of the real libraries is probed, and what a hit costs there and at the symbol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from exporter.bpf.calibrate import Costs, calibrate
from exporter.bpf.elf import Elf, ElfError, Function
from exporter.bpf.placement import Placement, place
from exporter.cuda.functions import FUNCTIONS
from exporter.model import Unavailable
from exporter.nccl.functions import FUNCTIONS as NCCL
from tests.gpu.machine import Machine
from tests.gpu.outcome import CANNOT, REPORTED, CannotRun, Row, expect

NUMBER = 3
LIBRARIES = {
    "libcuda.so.1": [it.name for it in FUNCTIONS if it.layer == "driver"],
    "libcudart.so": [it.name for it in FUNCTIONS if it.layer == "runtime"],
    "libnccl.so.2": [it.name for it in NCCL],
}
SHOWN = 12


def run(machine: Machine) -> Iterator[Row]:
    try:
        costs = calibrate()
    except Unavailable as error:
        costs = None
        yield Row(NUMBER, "cost of a hit", CANNOT, str(error))
    for name, symbols in LIBRARIES.items():
        try:
            path = machine.library(name)
            placed, problems = places(path, symbols)
        except (CannotRun, OSError, ElfError) as error:
            yield Row(NUMBER, f"placement in {name}", CANNOT, str(error))
            continue
        yield expect(NUMBER, f"placement in {name}", bool(placed) and not problems, _shown(path, placed, problems))
        yield Row(NUMBER, f"cost at the symbol and where placed in {name}", REPORTED, _costs(placed, costs))


def places(path: Path, symbols: list[str]) -> tuple[dict[str, tuple[Function, Placement]], dict[str, str]]:
    """Return the place of each symbol that the library has, and reasons for those without. Raises OSError, ElfError."""
    placed, problems = {}, {}
    with Elf.open(path) as elf:
        for name, function in elf.functions(symbols).items():
            try:
                placed[name] = (function, place(elf, function))
            except ElfError as error:
                problems[name] = str(error)
    return placed, problems


def _shown(path: Path, placed: dict[str, tuple[Function, Placement]], problems: dict[str, str]) -> str:
    kinds = [(it.kind, it.moved) for _, it in placed.values()]
    stepped = sorted(name for name, (_, it) in placed.items() if it.kind == "stepped")
    text = (
        f"{path.name}: {len(placed)} symbols, {kinds.count(('emulated', False))} emulated at the symbol, "
        f"{kinds.count(('emulated', True))} emulated past it, {len(stepped)} stepped"
    )
    text += f" ({', '.join(stepped[:SHOWN])}{' …' if len(stepped) > SHOWN else ''})" if stepped else ""
    return text + "".join(f"; {name}: {why}" for name, why in problems.items())


def _costs(placed: dict[str, tuple[Function, Placement]], costs: Costs | None) -> str:
    if costs is None or not placed:
        return "not measured"
    moved = sum(it.moved for _, it in placed.values())
    return (
        f"a symbol that is emulated or was moved to such a place {costs.emulated * 1e9:.0f} ns, stepped "
        f"{costs.stepped * 1e9:.0f} ns; moving saves {moved} symbols the difference"
    )
