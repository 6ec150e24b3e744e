"""The maps of bpf/cuda/cuda.bpf.c as lists, and the processes of a node that is not there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from types import SimpleNamespace
from typing import Any

from exporter.cuda.names import Names
from exporter.model import Labels

NAMES = Names(
    layer={0: "driver", 1: "runtime"},
    memory={0: "device", 1: "pool", 2: "vmm", 3: "managed", 4: "pinned_host"},
    direction={0: "unknown", 1: "h2d", 2: "d2h", 3: "d2d", 4: "h2h"},
    host={0: "", 1: "unknown", 2: "pageable", 3: "pinned", 4: "managed"},
)


def row(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"device": 0} | fields)


class FakeMap:
    """A map of a loaded object; `rows` are pairs of key and value."""

    def __init__(self, *rows: tuple[Any, Any]) -> None:
        self.rows = list(rows)

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(list(self.rows))

    def sums(self, by: str, of: str = "") -> Counter[int]:
        added = Counter[int]()
        for key, value in self.rows:
            added[getattr(key, by)] += getattr(value, of) if of else value
        return added

    def get(self, key: Any) -> Any | None:
        return next((value for known, value in self.rows if known == key), None)

    def take(self, pids: Collection[int]) -> list[tuple[Any, Any]]:
        taken = [pair for pair in self.rows if pair[0].tgid in pids]
        self.rows = [pair for pair in self.rows if pair[0].tgid not in pids]
        return taken


def empty_maps() -> dict[str, FakeMap]:
    return {name: FakeMap() for name in ("launches", "calls", "errors", "waits", "totals", "copies", "used_devices")}


class FakeProcesses:
    """Names each process after its pid; `names` overrides."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.forgotten: list[int] = []

    def labels(self, pid: int) -> Labels:
        return {"pid": str(pid), "comm": self.names.get(pid, f"job-{pid}")}

    def forget(self, pid: int) -> None:
        self.forgotten.append(pid)
