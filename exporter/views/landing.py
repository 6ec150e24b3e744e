"""The page at /, for people: what this node's jobs do, how the collectors and probes fare, and what was lost."""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from exporter import __version__
from exporter.model import Distribution, Sample
from exporter.scrape import Health, State
from exporter.views.html import STYLE, cell, count, cut, duration, section, size

MOST_ROWS = 100
LOSSES = {
    "accel_exporter.events.lost": "events lost on their way from the kernel",
    "accel_exporter.map.full": "keys a BPF map had no room for",
    "accel_exporter.spans.dropped": "spans not delivered",
    "accel_exporter.series.folded": "series folded into one, beyond the collector's limit",
    "accel_exporter.samples.dropped": "samples kept off /metrics",
    "accel_exporter.otlp.exports.failed": "OTLP requests that failed",
    "accel_exporter.libraries.refused": "libraries left unobserved",
}
PILLS = {
    Health.OK: "ok",
    Health.LATE: "warn",
    Health.FAILED: "bad",
    Health.UNAVAILABLE: "off",
    Health.WAITING: "off",
}


@dataclass(slots=True)
class Process:
    """What one process was seen doing; None is what nothing is known of."""

    labels: Mapping[str, str]
    gpus: set[str] = field(default_factory=set)
    bytes: float | None = None
    whole: bool = True
    """Whether all of its allocations were seen; else `bytes` is the least it holds."""
    launches: float | None = None
    last_launch: float | None = None
    waits: int = 0
    waited: float = 0
    errors: float = 0


class Page:
    """Renders the page; rates are those since it was last looked at."""

    def __init__(self, telemetry_path: str = "/metrics") -> None:
        self._telemetry_path = telemetry_path
        self._before: tuple[float, Mapping[str, float]] = (0.0, {})
        self._latest: tuple[float, Mapping[str, float]] = (0.0, {})

    def render(self, samples: Sequence[Sample], states: Sequence[State]) -> str:
        """The page as HTML. Everything in it that others wrote is escaped and cut to a length."""
        by_name: dict[str, list[Sample]] = defaultdict(list)
        for sample in samples:
            by_name[sample.metric.name].append(sample)
        processes = _processes(by_name)
        launches = {pid: it.launches for pid, it in processes.items() if it.launches is not None}
        rates, since = self._rates(launches)
        losses = [*_losses(by_name)]
        return "".join(
            (
                '<!doctype html><html lang="en"><head><meta charset="utf-8">'
                '<meta name="viewport" content="width=device-width,initial-scale=1">'
                '<meta http-equiv="refresh" content="30">'
                f"<title>accel-exporter on {escape(platform.node())}</title><style>{STYLE}</style></head><body>",
                self._head(by_name),
                _cards(by_name, processes, rates, states, len(losses)),
                _process_table(processes, rates, since),
                _collector_table(states),
                _library_table(by_name, states),
                _loss_table(losses),
                "</body></html>\n",
            )
        )

    def _rates(self, launches: Mapping[str, float]) -> tuple[Mapping[str, float], float]:
        """Launches a second of each process known before, and over how many seconds."""
        now = time.monotonic()
        if now - self._latest[0] > 5:
            self._before, self._latest = self._latest, (now, launches)
        at, before = self._before
        if not at:
            return {}, 0.0
        seconds = now - at
        return {
            pid: max(0.0, count - before[pid]) / seconds for pid, count in launches.items() if pid in before
        }, seconds

    def _head(self, by_name: Mapping[str, Sequence[Sample]]) -> str:
        started = _total(by_name, "process.start_time")
        facts = [f"version <b>{escape(__version__)}</b>", f"node <b>{escape(platform.node())}</b>"]
        if started:
            facts.append(f"up <b>{duration(time.time() - started)}</b>")
            facts.append(f"memory <b>{size(_total(by_name, 'process.resident_memory'))}</b>")
        return (
            "<h1>accel-exporter</h1><p>What the accelerator jobs of this node do, and what its hardware says.</p>"
            f'<p class="dim">{" · ".join(facts)}</p>'
            f'<nav><a href="{escape(self._telemetry_path)}">metrics</a><a href="/-/healthy">healthy</a>'
            '<a href="/-/ready">ready</a></nav>'
        )


def _processes(by_name: Mapping[str, Sequence[Sample]]) -> dict[str, Process]:
    """The processes by pid. Of the layers the driver's counts, and the runtime's only where the driver was not seen."""
    found: dict[str, Process] = {}

    def of(name: str) -> Iterable[tuple[Process, Sample]]:
        samples = [sample for sample in by_name.get(name, ()) if sample.labels.get("pid")]
        driven = {it.labels["pid"] for it in samples if it.labels.get("api_layer") == "driver"}
        for sample in samples:
            pid = sample.labels["pid"]
            process = found.setdefault(pid, Process(sample.labels))
            process.gpus.add(sample.labels.get("gpu", ""))
            if sample.labels.get("api_layer") != "runtime" or pid not in driven:
                yield process, sample

    for process, sample in of("gpu.cuda.memory.usage"):
        process.bytes = (process.bytes or 0) + _number(sample)
    for process, sample in of("gpu.cuda.seen_from_start"):
        process.whole = bool(_number(sample))
    for process, sample in of("gpu.cuda.kernel.launch.calls"):
        process.launches = (process.launches or 0) + _number(sample)
    for process, sample in of("gpu.cuda.api.errors"):
        process.errors += _number(sample)
    for process, sample in of("gpu.cuda.last_launch.timestamp"):
        process.last_launch = max(process.last_launch or 0, _number(sample))
    for process, sample in of("gpu.cuda.sync_wait"):
        # a cuda* call waits in a cu* call
        if isinstance(sample.value, Distribution) and not sample.labels.get("api", "").startswith("cuda"):
            process.waits += sum(sample.value.counts)
            process.waited += sample.value.sum
    return found


def _cards(
    by_name: Mapping[str, Sequence[Sample]],
    processes: Mapping[str, Process],
    rates: Mapping[str, float],
    states: Sequence[State],
    losses: int,
) -> str:
    seen = any(state.name == "cuda" and state.health is Health.OK for state in states)
    launches = f"{count(sum(rates.values()))}/s" if rates else count(sum(it.launches or 0 for it in processes.values()))
    attached = by_name.get("accel_exporter.probe.attached", ())
    well = sum(state.health is Health.OK for state in states)
    cards = {
        "processes seen using CUDA": str(len(processes)) if seen else "–",
        "allocated, as probes saw it": size(sum(it.bytes or 0 for it in processes.values())) if seen else "–",
        "kernel launches": launches if seen else "–",
        "collectors at work": f"{well} of {len(states)}",
        "probes attached": f"{int(sum(map(_number, attached)))} of {len(attached)}",
        "losses, listed below" if losses else "losses": f"{losses} kind{'s' * (losses > 1)}" if losses else "none",
    }
    return '<div class="cards">' + "".join(f"<div><b>{escape(v)}</b>{k}</div>" for k, v in cards.items()) + "</div>"


def _process_table(processes: Mapping[str, Process], rates: Mapping[str, float], since: float) -> str:
    rows = []
    ranked = sorted(processes.items(), key=lambda item: (-(item[1].bytes or 0), -(item[1].launches or 0), item[0]))
    for pid, it in ranked[:MOST_ROWS]:
        rows.append(
            cell(pid, "n")
            + cell(it.labels.get("comm", ""), "m")
            + cell(_where(it.labels))
            + cell(", ".join(sorted(filter(None, it.gpus))))
            + cell("–" if it.bytes is None else ("" if it.whole else "≥ ") + size(it.bytes), "n")
            + cell(count(rates[pid]) if pid in rates else "–", "n")
            + cell("–" if it.launches is None else count(it.launches), "n")
            + cell(_ago(it.last_launch) if it.last_launch else "–", "n")
            + cell(f"{duration(it.waited)} in {count(it.waits)}" if it.waits else "–", "n")
            + cell(count(it.errors), "n")
        )
    more = f'<p class="dim">and {len(ranked) - MOST_ROWS} more on /metrics</p>' if len(ranked) > MOST_ROWS else ""
    period = f" over {duration(since)}" if since else ""
    heads = ("#pid", "name", "where", "GPU", "#allocated", f"#launches/s{period}", "#launches", "#last launch")
    return section(
        "Processes",
        (*heads, "#waited", "#errors"),
        rows,
        "No calls of CUDA were seen.",
        more,
    )


def _collector_table(states: Sequence[State]) -> str:
    rows = []
    for state in states:
        told = "; ".join(filter(None, (state.reason, state.remedy)))
        rows.append(
            cell(state.name, "m")
            + f'<td><span class="s {PILLS[state.health]}">{state.health.value}</span></td>'
            + cell(duration(state.seconds) if state.seconds is not None else "–", "n")
            + cell(told)
        )
    return section(
        "Collectors", ("name", "state", "#took", "why, and what to do"), rows, "No collector is switched on."
    )


def _library_table(by_name: Mapping[str, Sequence[Sample]], states: Sequence[State]) -> str:
    groups: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in by_name.get("accel_exporter.probe.attached", ()):
        groups[sample.labels["probe"], sample.labels["library"]].append(sample)
    rows = []
    for (probe, library), group in sorted(groups.items())[:MOST_ROWS]:
        attached = [sample for sample in group if sample.value]
        stepped = sum(sample.labels.get("placement") == "stepped" for sample in attached)
        pill = "ok" if len(attached) == len(group) else "warn" if attached else "bad"
        labels = {"probe": probe, "library": library}
        rows.append(
            cell(library, "m")
            + cell(probe)
            + f'<td class="n"><span class="s {pill}">{len(attached)} of {len(group)}</span></td>'
            + cell(str(len(attached) - stepped), "n")
            + cell(str(stepped), "n")
            + cell(count(_total(by_name, "accel_exporter.probe.symbols.missing", labels)), "n")
            + cell(count(_total(by_name, "accel_exporter.probe.symbols.uncovered", labels)), "n")
        )
    heads = ("library", "probe", "#attached", "#one trap", "#two traps", "#not in this version", "#not covered")
    problems = [f"<li>{escape(cut(problem, 300))}</li>" for state in states for problem in state.problems]
    why = f"<h3>Not attached, and why</h3><ul>{''.join(problems[:MOST_ROWS])}</ul>" if problems else ""
    return section(
        "Probed libraries", heads, rows, "No running process has a library mapped that there are probes for.", why
    )


def _losses(by_name: Mapping[str, Sequence[Sample]]) -> Iterable[tuple[str, str, float]]:
    for name, meaning in LOSSES.items():
        for sample in by_name.get(name, ()):
            if _number(sample):
                yield meaning, ", ".join(f"{k}={v}" for k, v in sample.labels.items() if v), _number(sample)


def _loss_table(losses: Sequence[tuple[str, str, float]]) -> str:
    rows = [cell(what) + cell(labels, "m") + cell(count(lost), "n") for what, labels, lost in losses[:MOST_ROWS]]
    return section("Losses since the start", ("what", "which", "#how many"), rows, "None that is known.")


def _where(labels: Mapping[str, str]) -> str:
    if labels.get("pod"):
        return "/".join(filter(None, (labels.get("namespace"), labels["pod"], labels.get("container"))))
    if labels.get("slurm_job_id"):
        return f"Slurm job {labels['slurm_job_id']}"
    return f"container {labels['container_id'][:12]}" if labels.get("container_id") else "host"


def _ago(timestamp: float) -> str:
    seconds = time.time() - timestamp
    return f"{duration(seconds)} ago" if seconds >= 1 else "now"


def _number(sample: Sample) -> float:
    return 0.0 if isinstance(sample.value, Distribution) else float(sample.value)


def _total(by_name: Mapping[str, Sequence[Sample]], name: str, labels: Mapping[str, str] | None = None) -> float:
    wanted = (labels or {}).items()
    return sum(_number(sample) for sample in by_name.get(name, ()) if wanted <= dict(sample.labels).items())
