"""`accel-exporter doctor`: what this node lets us observe, and what to do about what it does not."""

from __future__ import annotations

import json
import os
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TextIO

from exporter import version
from exporter.checks import Finding, Status

_COLOURS = {Status.OK: "32", Status.INFO: "36", Status.WARN: "33", Status.FAIL: "31"}


def failed(findings: Iterable[Finding]) -> bool:
    return any(finding.status is Status.FAIL for finding in findings)


def write(findings: Sequence[Finding], to: TextIO, as_json: bool) -> None:
    """Prints findings for people, or as one JSON object. Piped, a finding is one line: status, name,
    sentence, remedy.
    """
    if as_json:
        shown = [asdict(finding) | {"status": finding.status.value} for finding in findings]
        print(json.dumps({"build": asdict(version.build()), "findings": shown}, indent=2), file=to)
        return
    pretty = to.isatty()
    for finding in findings:
        print(_for_terminal(finding) if pretty else _plain(finding), file=to)
    counts = ", ".join(f"{sum(f.status is status for f in findings)} {status.value}" for status in Status)
    print(f"\n{counts}" if pretty else counts, file=to)


def _plain(finding: Finding) -> str:
    line = f"{finding.status.value:4}  {finding.name:14}  {finding.says}"
    return " ".join(f"{line} -> {finding.do}".splitlines() if finding.do else line.splitlines())


def _for_terminal(finding: Finding) -> str:
    width = max(60, min(120, shutil.get_terminal_size().columns)) - 22
    lines = [line for part in finding.says.splitlines() for line in textwrap.wrap(part, width)]
    lines += textwrap.wrap(f"→ {finding.do}", width) if finding.do else []
    status = f"{finding.status.value:4}"
    if "NO_COLOR" not in os.environ:
        status = f"\x1b[{_COLOURS[finding.status]}m{status}\x1b[0m"
    return f"{status}  {finding.name:14}  " + ("\n" + " " * 22).join(lines)
