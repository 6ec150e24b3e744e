"""`accel-exporter check-custom DIR`: compiles, attaches and reads a folder's probes once, and tells how each fared."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from exporter.bpf.targets import Targets
from exporter.collectors.custom import INTERVAL, Custom
from exporter.custom.probe import Probe
from exporter.model import Metric, Unavailable
from exporter.node import Node
from exporter.resolve.process import ProcessTable
from exporter.settings import Settings
from exporter.views import prometheus

COMPILE_WITHIN, SEARCH_WITHIN, READ_AFTER, READ_EVERY = 120.0, 30.0, 2.0, 0.5
HEAD = ("probe", "kind", "at", "in", "placement", "state")


@dataclass(frozen=True, slots=True)
class _Row:
    """One probe point, as a line of the table."""

    cells: tuple[str, ...]
    fails: bool


def run(settings: Settings, to: TextIO) -> int:
    """The exit code: 0 when all that is here to attach to is attached; 1 when a probe does not work."""
    targets = Targets(settings.procfs)
    processes = ProcessTable(settings.procfs, settings.logs)
    node = Node.new(processes, targets, lambda span: None, settings.procfs, settings.sysfs, settings.kmsg)
    collector = Custom(node.with_settings({**settings.collectors["custom"], INTERVAL: READ_EVERY}))
    try:
        collector.start()
        targets.start()
        targets.scanned.wait(SEARCH_WITHIN)
        collector.settle(COMPILE_WITHIN)
        time.sleep(READ_AFTER)  # what happens now is counted, and shown
        return int(_tell(collector, to))
    except (Unavailable, OSError) as error:
        print(f"fail  {error}" + (f"\n      {remedy}" if (remedy := getattr(error, "remedy", "")) else ""), file=to)
        return 1
    finally:
        targets.close()
        collector.close()


def _tell(collector: Custom, to: TextIO) -> bool:
    """Whether anything failed."""
    failed = bool(collector.refused)
    rows: list[_Row] = []
    for probe in collector.probes:
        found = [*_rows(probe)]
        rows += found
        bad = probe.view.problem or any(row.fails for row in found)
        failed = failed or bool(bad)
        _say(to, "fail" if bad else "ok", probe.definition.name, probe.view.problem or _summary(probe, found))
    for refused in collector.refused:
        _say(to, "fail", refused.name, refused.reason)
    if not collector.probes and not collector.refused:
        _say(to, "ok", "", "there are no probes in this folder: NAME.c with NAME.yaml")
    if rows:
        print(f"\n{_table([HEAD, *(row.cells for row in rows)])}", file=to)
    read = [it for it in collector.collect() if it.metric in {*_metrics(collector)}]
    if read:
        print(f"\n{prometheus.render(read).text.decode().rstrip()}", file=to)
    return failed


def _rows(probe: Probe) -> Iterator[_Row]:
    it, view = probe.definition, probe.view
    if view.problem:
        return
    kinds: dict[str, str] = {}
    for hook in it.hooks:
        kind = "uretprobe" if hook.returns else "uprobe"
        kinds[hook.symbol] = f"{before}, {kind}" if (before := kinds.get(hook.symbol)) else kind
    states = probe.attacher.states()
    for state in states:
        said = "attached" if state.attached else state.reason
        kind = kinds.get(state.symbol, "usdt")
        yield _Row((it.name, kind, state.symbol, state.library, state.placement, said), not state.attached)
    seen = {state.symbol for state in states}
    waiting = [(kinds[hook.symbol], hook.symbol, hook.library) for hook in it.hooks]
    waiting += [("usdt", usdt.probe, usdt.library) for usdt in it.usdt]
    for kind, at, library in dict.fromkeys(waiting):
        if at not in seen:
            yield _Row(
                (it.name, kind, at, library, "", "waits: no process uses a file of this name that has it"), False
            )
    for event, reason in view.tracepoints.items():
        yield _Row((it.name, "tracepoint", event, "kernel", "", reason or "attached"), bool(reason))


def _summary(probe: Probe, rows: Sequence[_Row]) -> str:
    attached = sum(row.cells[-1] == "attached" for row in rows)
    it = probe.definition
    return f"compiled; {attached} of {len(rows)} points attached, {len(it.readings)} metrics, {len(it.spans)} spans"


def _metrics(collector: Custom) -> Iterator[Metric]:
    for probe in collector.probes:
        for reading in probe.definition.readings:
            yield reading.metric


def _say(to: TextIO, status: str, name: str, text: str) -> None:
    first, *more = text.splitlines()
    print(f"{status:4}  {name:16}  {first}".rstrip(), file=to)
    if more:
        print(textwrap.indent("\n".join(more), " " * 8), file=to)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
