"""Every cause of a stopped job, injected at its source: real exporter, real Prometheus, the shipped rules.

`python -m tests.e2e.fault_table` prints the 18 rows of the table with pass, or why not.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from exporter.faults import categories as rows
from tests.bpf.cuda_node import build_standins
from tests.e2e.backend import Prometheus
from tests.e2e.fault_cases import CASES, NOT_INJECTED
from tests.e2e.fault_machine import Machine
from tests.program.process import Exporter
from tests.standins import nvml
from tests.support import until

ROOT = Path(__file__).parents[2]
OF_OTHERS = {"NodeRebooted", "ClockUnsynchronized"}
"""Alerts of the machine that the test runs on; so are those of other processes there."""
WITHIN = 55.0
OWN_SIGHT = "(the exporter's own sight)"
DOWN, SETTLES = 3.0, 10.0
"""Seconds that the exporter is gone for, and that it has to find everything as it was."""
OVER_A_RESTART = ("faults", "gpu", "xid", "rdma")
"""Files of rules with alerts that a restart of the exporter must not resolve."""


@dataclass
class Outcome:
    """`early`: alerts that fired on the healthy machine; `missing`: cases without their alert, by number.

    `paged`, `resolved`: alerts that began again, or ended, because the exporter was restarted while they fired.
    """

    early: list[str]
    seconds: dict[int, float] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    paged: list[str] = field(default_factory=list)
    resolved: list[str] = field(default_factory=list)


def shortened(folder: Path) -> list[Path]:
    """The shipped rules with a second in place of each `for` and step, and of NCCL's minutes without a call."""
    copies = []
    for path in sorted((ROOT / "alerts").glob("*.yaml")):
        if path.stem.endswith(".test"):
            continue
        content = yaml.safe_load(path.read_text())
        for rule in (rule for group in content["groups"] for rule in group["rules"]):
            if "for" in rule:
                rule["for"] = "1s"
            if rule.get("alert") == "NcclHang" or rule.get("record", "").endswith(":standing"):
                rule["expr"] = rule["expr"].replace("> 900", "> 3").replace("> 60", "> 1")
            rule["expr"] = re.sub(r":\d+[ms]\]", ":1s]", rule["expr"])
        copies.append(folder / path.name)
        copies[-1].write_text(yaml.safe_dump(content))
    return copies


def run(folder: Path) -> Outcome:
    """Starts all of it, looks that nothing fires, injects every fault, and waits for the alerts."""
    build_standins()
    nvml.build()
    with ExitStack() as stack:
        machine = Machine(folder, stack)
        exporter = machine.exporter()
        stack.callback(exporter.end)
        prometheus = stack.enter_context(
            Prometheus(folder, exporter.address, shortened(folder), (machine.node.address,))
        )
        exporter.await_ready()
        until(lambda: _settled(exporter, prometheus, machine), "all sources are read")
        time.sleep(3)
        own = {"", *(str(it.pid) for it in (machine.worker, machine.failing, machine.rank))}
        early = sorted(
            str(dict(labels))
            for labels in firing(prometheus)
            if labels["alertname"] not in OF_OTHERS and labels.get("pid", "") in own
        )
        outcome = Outcome(early)
        _inject(machine, prometheus, outcome)
        before = _pages(prometheus, exporter.address)
        exporter.end()
        time.sleep(DOWN)
        again = machine.exporter(f"--web.listen-address={exporter.address}")
        again.address = exporter.address
        stack.callback(again.end)
        again.await_ready()
        time.sleep(SETTLES)
        with suppress(AssertionError):  # what is missing then is in `resolved`
            until(lambda: before.keys() <= _pages(prometheus, exporter.address).keys())
        after = _pages(prometheus, exporter.address)
        outcome.paged = sorted(str(dict(labels)) for labels, since in after.items() if before.get(labels) != since)
        outcome.resolved = sorted(str(dict(labels)) for labels in before.keys() - after.keys())
        return outcome


def _settled(exporter: Exporter, prometheus: Prometheus, machine: Machine) -> bool:
    page = exporter.get("/metrics")[1]
    machine.worker.run("new(lib.cuMemAlloc_v2, size(64))")
    machine.rank.run("reduce_all(c, 1)")
    pids = (machine.worker.pid, machine.rank.pid)
    return (
        all(re.search(rf'^{name}\b.*\bpid="{pid}"', page, re.M) for name, pid in zip(_SEEN, pids, strict=True))
        and 8 == len(re.findall(r'^hw_status\{.*state="ok".* 1$', page, re.M))
        and bool(prometheus.query("accel_node_edac_errors_total") and prometheus.query("hw_errors_total"))
        and bool(prometheus.query("rdma_link_state") and prometheus.query("accel_node_ipmi_sensor_state"))
    )


_SEEN = ("gpu_cuda_memory_usage_bytes", "nccl_last_call_timestamp_seconds")


def _inject(machine: Machine, prometheus: Prometheus, outcome: Outcome) -> None:
    """Does every fault, those that come last when all others have fired, and waits for the alerts."""
    for last in (False, True):
        began = time.monotonic()
        own = {number: case for number, case in enumerate(CASES) if case.last is last}
        for case in own.values():
            case.inject(machine)
        while (missing := own.keys() - outcome.seconds.keys()) and time.monotonic() - began < WITHIN:
            alerts = firing(prometheus)
            for number in missing:
                wanted = {"alertname": own[number].alert, **own[number].labels}.items()
                if any(wanted <= labels.items() for labels in alerts):
                    outcome.seconds[number] = time.monotonic() - began
            time.sleep(0.2)
        outcome.missing |= {number: f"{own[number].alert} did not fire within {WITHIN:.0f} s" for number in missing}


def _pages(prometheus: Prometheus, instance: str) -> dict[frozenset[tuple[str, str]], str]:
    """Since when which alerts on faults of a node fire: Prometheus sends each of these once."""
    alerts = [
        alert
        for rule in prometheus.rules(OVER_A_RESTART)
        for alert in rule.get("alerts", ())
        if alert["state"] == "firing" and alert["labels"].get("instance") == instance
    ]
    return {frozenset(alert["labels"].items()): alert["activeAt"] for alert in alerts}


def firing(prometheus: Prometheus) -> list[Mapping[str, str]]:
    """The labels of the alerts that fire."""
    alerts = [alert for rule in prometheus.rules() for alert in rule.get("alerts", ())]
    return [alert["labels"] for alert in alerts if alert["state"] == "firing"]


def table(outcome: Outcome) -> str:
    """A line for each row of the table."""
    lines = []
    for label, name in [*((row.label, row.name) for row in rows.CATEGORIES), ("", OWN_SIGHT)]:
        of_row = [(number, case) for number, case in enumerate(CASES) if case.category == label]
        missing = [outcome.missing[number] for number, _ in of_row if number in outcome.missing]
        verdict = "; ".join(missing) if missing else "pass"
        fired = ", ".join(
            f"{case.source} → {case.alert} {outcome.seconds[number]:.0f} s"
            for number, case in of_row
            if number in outcome.seconds
        )
        if label == rows.CORRUPTION:
            verdict += " (cannot be seen passively: only the age of the last test)"
        lines.append(f"{name:32} {verdict:8}  {fired}")
    return "\n".join(lines)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(Path(folder))
    print(table(outcome))
    for alert in outcome.early:
        print(f"fired before any fault: {alert}")
    for alert in outcome.paged:
        print(f"fired again after a restart of the exporter: {alert}")
    for alert in outcome.resolved:
        print(f"resolved by a restart of the exporter: {alert}")
    print("not injected:", *(f"\n  {alert}: {reason}" for alert, reason in NOT_INJECTED.items()))
    return int(bool(outcome.early or outcome.missing or outcome.paged or outcome.resolved))


if __name__ == "__main__":
    sys.exit(main())
