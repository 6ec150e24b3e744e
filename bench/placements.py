"""Share of functions in libraries built by others that can be probed without single-stepping."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench.result import Result
from exporter.bpf.elf import Elf
from exporter.bpf.placement import place
from tests import wheels

DEBIAN = Path("/usr/lib/x86_64-linux-gnu")


def run() -> list[Result]:
    """One result a library that is installed or that pip can fetch."""
    return [_share(path, prefix) for path, prefix in _libraries()]


def _libraries() -> Iterator[tuple[Path, str]]:
    for wheel, prefix in ((wheels.CUDART_12, "cuda"), (wheels.CUDART_13, "cuda"), (wheels.NCCL_12, "nccl")):
        try:
            yield wheels.fetch(*wheel), prefix
        except wheels.NotFetched as error:
            print(f"bench: placements: {error}")
    for name, prefix in (("libibverbs.so.1", "ibv_"), ("libmlx5.so.1", "mlx5"), ("libefa.so.1", "efa")):
        if (DEBIAN / name).exists():
            yield DEBIAN / name, prefix


def _share(path: Path, prefix: str) -> Result:
    command = ["nm", "--dynamic", "--defined-only", "--without-symbol-versions", path]
    symbols = [line.split() for line in subprocess.check_output(command, text=True, timeout=60).splitlines()]
    names = [name for _, kind, name in symbols if kind in "TW" and name.startswith(prefix)]
    with Elf.open(path) as elf:
        placements = Counter((p.kind, p.moved) for p in (place(elf, f) for f in elf.functions(names).values()))
    at, past, stepped = (placements[key] for key in (("emulated", False), ("emulated", True), ("stepped", False)))
    note = f"of {prefix}*: {at} emulated at the symbol, {past} past it, {stepped} stepped"
    return Result(f"emulated places in {path.name}", 100 * (at + past) / (at + past + stepped), "%", note=note)
