"""`accel-exporter check-custom DIR`: compiles, attaches and reads the probes of a folder, and prints the results."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from exporter.bpf.targets import Targets
from exporter.collectors.custom import INTERVAL
from exporter.custom.collector import Custom
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
    """A probe point, as a line of the table."""

    cells: tuple[str, ...]
    failed: bool


def run(settings: Settings, to: TextIO) -> int:
    """Check the folder of `settings` and print to `to`, for some seconds up to minutes.

    Returns the exit code: 0 when each probe is attached to all its libraries on this node; 1 when one does not work.
    """
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
        return int(_report(collector, to))
    except (Unavailable, OSError) as error:
        print(f"fail  {error}" + (f"\n      {remedy}" if (remedy := getattr(error, "remedy", "")) else ""), file=to)
        return 1
    finally:
        targets.close()
        collector.close()


def _report(collector: Custom, to: TextIO) -> bool:
    """Print the probes, their points and their metrics. Returns whether anything failed."""
    failed = bool(collector.refused)
    rows: list[_Row] = []
    for probe in collector.probes:
        points = [*_rows(probe)]
        rows += points
        broken = bool(probe.view.problem) or any(row.failed for row in points)
        failed = failed or broken
        _line(to, "fail" if broken else "ok", probe.definition.name, probe.view.problem or _summary(probe, points))
    for refused in collector.refused:
        _line(to, "fail", refused.name, refused.reason)
    if not collector.probes and not collector.refused:
        _line(to, "ok", "", "there are no probes in this folder: NAME.c with NAME.yaml")
    if rows:
        print(f"\n{_table([HEAD, *(row.cells for row in rows)])}", file=to)
    own = {*_metrics(collector)}
    samples = [sample for sample in collector.collect() if sample.metric in own]
    if samples:
        print(f"\n{prometheus.render(samples).text.decode().rstrip()}", file=to)
    return failed


def _rows(probe: Probe) -> Iterator[_Row]:
    definition, view = probe.definition, probe.view
    if view.problem:
        return
    kinds: dict[str, str] = {}
    for uprobe in definition.uprobes:
        kind = "uretprobe" if uprobe.returns else "uprobe"
        kinds[uprobe.symbol] = f"{before}, {kind}" if (before := kinds.get(uprobe.symbol)) else kind
    states = probe.attacher.states()
    for state in states:
        result = "attached" if state.attached else state.reason
        kind = kinds.get(state.symbol, "usdt")
        cells = (definition.name, kind, state.symbol, state.library, state.placement, result)
        yield _Row(cells, not state.attached)
    seen = {state.symbol for state in states}
    waiting = [(kinds[uprobe.symbol], uprobe.symbol, uprobe.library) for uprobe in definition.uprobes]
    waiting += [("usdt", usdt.probe, usdt.library) for usdt in definition.usdt]
    for kind, at, library in dict.fromkeys(waiting):
        if at not in seen:
            result = "waits: no process uses a file of this name that has it"
            yield _Row((definition.name, kind, at, library, "", result), False)
    for event, reason in view.tracepoints.items():
        yield _Row((definition.name, "tracepoint", event, "kernel", "", reason or "attached"), bool(reason))


def _summary(probe: Probe, rows: Sequence[_Row]) -> str:
    attached = sum(row.cells[-1] == "attached" for row in rows)
    metrics, spans = len(probe.definition.readings), len(probe.definition.spans)
    return f"compiled; {attached} of {len(rows)} points attached, {metrics} metrics, {spans} spans"


def _metrics(collector: Custom) -> Iterator[Metric]:
    for probe in collector.probes:
        for reading in probe.definition.readings:
            yield reading.metric


def _line(to: TextIO, status: str, name: str, text: str) -> None:
    first, *more = text.splitlines()
    print(f"{status:4}  {name:16}  {first}".rstrip(), file=to)
    if more:
        print(textwrap.indent("\n".join(more), " " * 8), file=to)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
