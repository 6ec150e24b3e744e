"""Tables of the page at / about the node and the exporter: GPUs, faults, collectives, collectors, probes, losses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from exporter.collector_state import CollectorState, Health
from exporter.history import WINDOW, Recent
from exporter.model import Sample
from exporter.views.html import (
    MOST_ROWS,
    NOTHING,
    Column,
    ago,
    amount,
    cell,
    count,
    cut,
    duration,
    more,
    pill,
    plotted,
    section,
    share,
    short,
    size,
)
from exporter.views.landing_plots import GPU
from exporter.views.landing_samples import NamedSamples, none_seen, number, probes
from exporter.views.spark import spark

LOSSES = {
    "accel_exporter.events.lost": "events lost on their way from the kernel",
    "accel_exporter.map.full": "keys that did not fit into a BPF map",
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
_STATUS = {"ok": "ok", "degraded": "warn"}


def gpu_table(named: NamedSamples, recent: Recent) -> str:
    infos = sorted(named.all("hw.gpu.info"), key=lambda info: (info.labels.get("gpu", "").zfill(4), _uuid(info)))
    shown = infos[:MOST_ROWS]
    uuids = [_uuid(it) for it in shown]

    def values(name: str, **labels: str) -> dict[str, float]:
        return {_uuid(it): number(it) for it in named.where(name, **labels)}

    states = {_uuid(it): it.labels.get("state", "") for it in named.all("hw.status") if number(it)}
    busy, power = values("hw.gpu.utilization", task="general"), values("hw.power")
    used, limit = values("hw.gpu.memory.usage"), values("hw.gpu.memory.limit")
    degrees = values("hw.temperature", sensor="gpu")
    columns = (
        Column("GPU", [cell(it.labels.get("gpu", ""), "n") for it in shown], True),
        Column("model", [short(it.labels.get("name", "")) for it in shown]),
        Column(
            "state", [pill(states[it], _STATUS.get(states[it], "bad")) if it in states else NOTHING for it in uuids]
        ),
        Column("in use", [_busy(recent, it, busy.get(it)) for it in uuids], True),
        Column("memory", [amount(_of(used.get(it), limit.get(it))) for it in uuids], True),
        Column("temperature", [amount(f"{degrees[it]:.0f} °C" if it in degrees else None) for it in uuids], True),
        Column("power", [amount(f"{power[it]:.0f} W" if it in power else None) for it in uuids], True),
        Column("Xids", [_xids(named, it.labels) for it in shown], True),
    )
    return section("GPUs", columns, "NVML reports no GPU.", more(len(infos), "GPUs"), "Xids since the start")


def _uuid(sample: Sample) -> str:
    return sample.labels.get("gpu_uuid", "")


def _busy(recent: Recent, uuid: str, ratio: float | None) -> str:
    if ratio is None:
        return NOTHING
    return plotted(spark(recent.plots.get((GPU, uuid), ()), WINDOW, "in use", share, top=1.0), share(ratio))


def _of(used: float | None, limit: float | None) -> str | None:
    return None if used is None else size(used) if limit is None else f"{size(used)} of {size(limit)}"


def _xids(named: NamedSamples, labels: Mapping[str, str]) -> str:
    """Return the number of Xid errors of a GPU and their codes, by UUID or, as in the kernel log, by PCI address."""
    if not named.healthy("xid"):
        return NOTHING
    own: dict[str, float] = defaultdict(float)
    for sample in named.all("gpu.xid.errors"):
        same = [key for key in ("gpu_uuid", "pci_bus_id") if sample.labels.get(key, "") == labels.get(key)]
        if same and number(sample):
            own[sample.labels.get("xid", "")] += number(sample)
    which = ", ".join(sorted(own)[:8])
    return amount(f"{count(sum(own.values()))} ({which})" if own else "0")


def faults(named: NamedSamples) -> list[tuple[Sample, float, float]]:
    """Faults since the start, or that were there then, with how many and how many replayed; the newest first."""
    replayed = {_fault(it): number(it) for it in named.all("accel.node.fault.replayed")}
    found = [(it, number(it), replayed.get(_fault(it), 0.0)) for it in named.all("accel.node.fault")]
    last = _last(named)
    return sorted(
        (it for it in found if it[1] or it[2]), key=lambda row: (-last.get(_fault(row[0]), 0), _fault(row[0]))
    )


def _fault(sample: Sample) -> tuple[str, ...]:
    return tuple(sample.labels.get(key, "") for key in ("category", "component", "signal", "overflow"))


def _last(named: NamedSamples) -> dict[tuple[str, ...], float]:
    return {_fault(it): number(it) for it in named.all("accel.node.fault.last_timestamp")}


def fault_table(named: NamedSamples) -> str:
    found, last = faults(named), _last(named)
    shown = found[:MOST_ROWS]
    columns = (
        Column("signal", [cell(it.labels.get("signal", ""), "m w") for it, _, _ in shown]),
        Column("category", [cell(it.labels.get("category", ""), "m w") for it, _, _ in shown]),
        Column("part", [cell(it.labels.get("component", ""), "m") for it, _, _ in shown]),
        Column("since the start", [amount(count(live)) for _, live, _ in shown], True),
        Column("before", [amount(count(old)) for _, _, old in shown], True),
        Column("newest", [amount(ago(last[_fault(it)]) if _fault(it) in last else None) for it, _, _ in shown], True),
    )
    blind = sorted(
        it.labels.get("source", "") for it in named.all("accel.node.fault.source_available") if not number(it)
    )
    unread = f'<p class="dim">Not read on this node: {escape(cut(", ".join(blind), 300))}.</p>' if blind else ""
    empty = none_seen(named, "faults", "No faults were reported.")
    return section("Faults", columns, empty, more(len(found), "faults") + unread)


def collector_table(states: Sequence[CollectorState]) -> str:
    columns = (
        Column("name", [cell(state.name, "m w") for state in states]),
        Column("state", [pill(state.health.value, PILLS[state.health]) for state in states]),
        Column("took", [amount(None if state.seconds is None else duration(state.seconds)) for state in states], True),
        Column("series", [amount(None if state.series is None else count(state.series)) for state in states], True),
        Column(
            "why, and what to do", [cell("; ".join(filter(None, (it.reason, it.remedy))), most=500) for it in states]
        ),
    )
    return section("Collectors", columns, "No collector is enabled.")


def library_table(named: NamedSamples, states: Sequence[CollectorState]) -> str:
    groups: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in named.all("accel_exporter.probe.attached"):
        groups[sample.labels["probe"], sample.labels["library"]].append(sample)
    shown = sorted(groups.items())[:MOST_ROWS]
    attached = [probes(group) for _, group in shown]
    stepped = [probes(it for it in group if it.labels.get("placement") == "stepped")[0] for _, group in shown]

    def totals(name: str) -> list[str]:
        return [amount(count(named.total(name, probe=probe, library=library))) for (probe, library), _ in shown]

    columns = (
        Column("library", [cell(library, "m") for (_, library), _ in shown]),
        Column("probe", [cell(probe) for (probe, _), _ in shown]),
        Column("attached", [_attached(n, of) for n, of in attached]),
        Column("one trap", [amount(str(n - twice)) for (n, _), twice in zip(attached, stepped, strict=True)], True),
        Column("two traps", [amount(str(twice)) for twice in stepped], True),
        Column("not in this version", totals("accel_exporter.probe.symbols.missing"), True),
        Column("not covered", totals("accel_exporter.probe.symbols.uncovered"), True),
    )
    problems = [f"<li>{escape(cut(problem, 300))}</li>" for state in states for problem in state.problems]
    why = f"<h3>Unobserved calls and their causes</h3><ul>{''.join(problems[:MOST_ROWS])}</ul>" if problems else ""
    empty = "Unknown: libraries are not searched for."
    if named.searched:
        empty = "No running process uses a library that has probes."
    return section("Probed libraries", columns, empty, more(len(groups), "libraries") + why, anchor="probes")


def _attached(n: int, of: int) -> str:
    return pill(f"{n} of {of}", "ok" if n == of else "warn" if n else "bad")


def losses(named: NamedSamples) -> Iterable[tuple[str, str, float]]:
    """Return what was lost, of which, how many."""
    for name, meaning in LOSSES.items():
        for sample in named.all(name):
            if number(sample):
                yield meaning, ", ".join(f"{k}={v}" for k, v in sample.labels.items() if v), number(sample)


def loss_table(found: Sequence[tuple[str, str, float]]) -> str:
    shown = found[:MOST_ROWS]
    columns = (
        Column("what", [cell(what) for what, _, _ in shown]),
        Column("which", [cell(which, "m") for _, which, _ in shown]),
        Column("how many", [amount(count(lost)) for _, _, lost in shown], True),
    )
    return section("Losses since the start", columns, "No known losses.", anchor="losses")
