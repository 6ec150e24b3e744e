"""`accel-exporter doctor`: checks of what can be observed on this node, with remedies for what cannot."""

from __future__ import annotations

import json
import os
import shutil
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TextIO

from exporter import version
from exporter.bpf import object_path
from exporter.bpf.calibrate import HIT_COST
from exporter.bpf.probe_metrics import ATTACHED
from exporter.checks import Finding, Status
from exporter.collector_state import CollectorState, Health
from exporter.discover import Found
from exporter.model import Labels, Sample
from exporter.observer import Observer
from exporter.settings import OverheadSettings, Settings

SEARCH_WITHIN = 30.0
DETACH_WITHIN = 5.0
SETTLE_WITHIN = 12.0
"""Time in which a library is detached from if its only process has ended: until then it has no return probes."""
NAME_WIDTH = 16

_JSON_KEYS = ("name", "status", "says", "do")
_COLOURS = {Status.OK: "32", Status.INFO: "36", Status.WARN: "33", Status.FAIL: "31"}


def check(settings: Settings, found: Mapping[str, Found]) -> tuple[list[Finding], list[Labels]]:
    """Start all collectors and probes as a run does, and close them again. Returns findings and each probe's labels."""
    observer = Observer(settings, found, spans=lambda span: None)
    try:
        observer.start()
        searched = not observer.refusal and observer.targets.scanned.wait(SEARCH_WITHIN)
        samples = _settled(observer)
        states = observer.scraper.states()
    finally:
        began = time.monotonic()
        detached = observer.close()
        seconds = time.monotonic() - began
    probes: list[Labels] = [
        {**sample.labels, "attached": str(sample.value)} for sample in samples if sample.metric is ATTACHED
    ]
    findings = [*map(_collector, states), _search(observer.refusal, searched, states, probes)]
    return [*findings, _bound(settings.overhead, samples), _detaching(detached, seconds)], probes


def _settled(observer: Observer) -> list[Sample]:
    """Return the samples once every function is attached, or is not for longer than a process that has ended causes."""
    deadline = time.monotonic() + SETTLE_WITHIN
    while True:
        samples = list(observer.scraper.gather())
        if all(it.value for it in samples if it.metric is ATTACHED) or time.monotonic() > deadline:
            return samples
        time.sleep(0.5)


def _bound(overhead: OverheadSettings, samples: Iterable[Sample]) -> Finding:
    """Report what --overhead.max-ratio and --overhead.max-cores can do here."""
    if not overhead.max_ratio:
        return Finding("overhead", Status.INFO, "no limit: every call is probed, whatever the overhead for a job")
    plain = {"placement": "emulated", "returns": "false"}
    hits = [it.value for it in samples if it.metric is HIT_COST and plain.items() <= it.labels.items()]
    costs = [cost for cost in hits if isinstance(cost, float)]
    if not costs:
        return Finding("overhead", Status.INFO, "the cost of a probe hit is unknown on this node: no limit applies")
    node = f", or {overhead.max_cores:g} cores of all processes together" if overhead.max_cores else ""
    return Finding(
        "overhead",
        Status.OK,
        f"a hit costs {costs[0] * 1e6:.1f} µs; calls that may be left out are probed in windows where they "
        f"take more than {overhead.max_ratio:.2%} of a process's CPU time{node}",
    )


def _detaching(detached: bool, seconds: float) -> Finding:
    if not detached:
        return Finding("detaching", Status.FAIL, f"not everything was detached in {seconds:.1f} s")
    status = Status.OK if seconds <= DETACH_WITHIN else Status.FAIL
    return Finding("detaching", status, f"everything was detached in {seconds:.1f} s")


def _collector(state: CollectorState) -> Finding:
    name = f"collector {state.name}"
    if state.health is Health.OK and state.problems:
        return Finding(name, Status.WARN, "; ".join(state.problems))
    if state.health is Health.OK:
        return Finding(name, Status.OK, "started, and read once")
    status = Status.WARN if state.health is Health.UNAVAILABLE else Status.FAIL
    return Finding(name, status, f"{state.health.value}: {state.reason}", state.remedy)


def _search(refusal: str, searched: bool, states: Sequence[CollectorState], probes: Sequence[Labels]) -> Finding:
    if refusal:
        return Finding("attaching", Status.FAIL, f"no library is searched for: {refusal}")
    probing = [state for state in states if object_path(state.name).is_file()]
    if probing and all(state.health in (Health.UNAVAILABLE, Health.FAILED) for state in probing):
        return Finding("attaching", Status.FAIL, "no library was searched for: no collector with probes could start")
    if not searched:
        return Finding("attaching", Status.FAIL, f"the search took longer than {SEARCH_WITHIN:.0f} s")
    missing = [probe["symbol"] for probe in probes if probe["attached"] == "0"]
    if missing:
        return Finding("attaching", Status.FAIL, f"some functions could not be probed: {', '.join(missing[:10])}")
    if not probes:
        return Finding("attaching", Status.OK, "no process uses a library with probes now; probes attach when one does")
    libraries = {probe["library"] for probe in probes}
    return Finding("attaching", Status.OK, f"{len(probes)} functions probed in {', '.join(sorted(libraries))}")


def failed(findings: Iterable[Finding]) -> bool:
    return any(finding.status is Status.FAIL for finding in findings)


def write(findings: Sequence[Finding], probes: Sequence[Labels], to: TextIO, as_json: bool) -> None:
    """Print findings for people, one line each into a pipe (status, name, summary, remedy), or as one JSON object."""
    if as_json:
        shown = [_json(finding) for finding in findings]
        print(json.dumps({"build": asdict(version.build()), "findings": shown, "probes": probes}, indent=2), file=to)
        return
    pretty = to.isatty()
    for finding in findings:
        print(_for_terminal(finding) if pretty else _plain(finding), file=to)
    if probes:
        print(f"\n{_table(probes)}\n", file=to)
    counts = ", ".join(f"{sum(f.status is status for f in findings)} {status.value}" for status in Status)
    print(f"\n{counts}" if pretty else counts, file=to)


def _json(finding: Finding) -> dict[str, str]:
    """Return a finding under the keys that scripts read."""
    return dict(zip(_JSON_KEYS, (finding.name, finding.status.value, finding.summary, finding.remedy), strict=True))


def _table(probes: Sequence[Labels]) -> str:
    rows = [tuple(probes[0]), *(tuple(probe.values()) for probe in probes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _plain(finding: Finding) -> str:
    line = f"{finding.status.value:4}  {finding.name:{NAME_WIDTH}}  {finding.summary}"
    return " ".join(f"{line} -> {finding.remedy}".splitlines() if finding.remedy else line.splitlines())


def _for_terminal(finding: Finding) -> str:
    width = max(60, min(120, shutil.get_terminal_size().columns)) - NAME_WIDTH - 8
    lines = [line for part in finding.summary.splitlines() for line in textwrap.wrap(part, width)]
    lines += textwrap.wrap(f"→ {finding.remedy}", width) if finding.remedy else []
    status = f"{finding.status.value:4}"
    if "NO_COLOR" not in os.environ:
        status = f"\x1b[{_COLOURS[finding.status]}m{status}\x1b[0m"
    return f"{status}  {finding.name:{NAME_WIDTH}}  " + ("\n" + " " * (NAME_WIDTH + 8)).join(lines)
