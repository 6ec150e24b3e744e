"""The page at /, for people: what the node's jobs do, what its hardware reports, which collectors work, losses."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from html import escape

from exporter import __version__
from exporter.collector_state import CollectorState, Health
from exporter.history import WINDOW, History, Recent
from exporter.model import Sample
from exporter.nodename import node_name
from exporter.views.html import STYLE, UNKNOWN, count, cut, duration, share, size
from exporter.views.landing_jobs import process_table, processes, rank_table, watched
from exporter.views.landing_node import (
    collector_table,
    fault_table,
    faults,
    gpu_table,
    library_table,
    loss_table,
    losses,
)
from exporter.views.landing_plots import BYTES, COLLECTIVES, GPU, LAUNCHES, NACKS, SENT
from exporter.views.landing_rdma import pair_table, port_table
from exporter.views.landing_samples import NamedSamples, probes
from exporter.views.spark import spark

_REFRESH = 30


class LandingPage:
    """Renders the page; the plots and rates on it are those of `history`, if there is one.

    With `profiles` it has a link to the flame graph.
    """

    def __init__(
        self, telemetry_path: str = "/metrics", history: History | None = None, profiles: bool = False
    ) -> None:
        self._telemetry_path, self.history = telemetry_path, history
        self._profiles = '<a href="/flamegraph">flame graph</a>' if profiles else ""

    def render(self, samples: Sequence[Sample], states: Sequence[CollectorState]) -> str:
        """The page as HTML. Everything in it that others wrote is escaped and cut to a length."""
        named, recent = NamedSamples(samples), self.history.recent() if self.history else Recent()
        found, lost = processes(named), [*losses(named)]
        node = escape(node_name())
        return "".join(
            (
                '<!doctype html><html lang="en"><head><meta charset="utf-8">'
                '<meta name="viewport" content="width=device-width,initial-scale=1">'
                f'<meta http-equiv="refresh" content="{_REFRESH}"><link rel="icon" href="data:,">'
                f"<title>accel-exporter on {node}</title><style>{STYLE}</style></head><body>",
                self._head(named, node),
                _facts(named, states, len(found), len(lost)),
                _cards(recent, named),
                process_table(named, found, recent),
                gpu_table(named, recent),
                pair_table(named, recent),
                port_table(named, recent),
                rank_table(named, recent),
                fault_table(named),
                collector_table(states),
                library_table(named, states),
                loss_table(lost),
                "</body></html>\n",
            )
        )

    def _head(self, named: NamedSamples, node: str) -> str:
        facts = [f"accel-exporter <b>{escape(__version__)}</b>"]
        if started := named.total("process.start_time"):
            facts.append(f"up <b>{duration(time.time() - started)}</b>")
            facts.append(f"memory <b>{size(named.total('process.resident_memory'))}</b>")
        return (
            f'<header><h1>{node}</h1><span class="dim">{" · ".join(facts)}</span>'
            f'<nav>{self._profiles}<a href="{escape(self._telemetry_path)}">metrics</a><a href="/-/healthy">healthy</a>'
            '<a href="/-/ready">ready</a></nav></header>'
        )


def _facts(named: NamedSamples, states: Sequence[CollectorState], jobs: int, lost: int) -> str:
    """Return how the node and the exporter are, a word on each, with a link to the table that has the rest."""
    probed, wanted = probes(named.all("accel_exporter.probe.attached"))
    working = sum(state.health is Health.OK for state in states)
    broken = any(state.health in (Health.FAILED, Health.LATE) for state in states)
    live = sum(bool(seen) for _, seen, _ in faults(named))
    known = named.healthy("faults")
    facts = (
        ("processes", f"{jobs} process{'es' * (jobs != 1)}" if jobs or watched(named) else "processes unknown", "off"),
        (
            "faults",
            f"{live or 'no'} fault{'s' * (live != 1)}" if known or live else "faults unknown",
            _mood(live, known),
        ),
        (
            "collectors",
            f"{working} of {len(states)} collectors working",
            "bad" if broken else "ok" if working else "off",
        ),
        ("probes", f"{probed} of {wanted} probes attached", "ok" if probed == wanted else "warn")
        if wanted or named.searched
        else ("probes", "probes unknown", "off"),
        ("losses", f"{lost} kind{'s' * (lost != 1)} of losses" if lost else "no losses", "warn" if lost else "ok"),
    )
    items = "".join(f'<li><a class="{kind}" href="#{at}">{escape(text)}</a></li>' for at, text, kind in facts)
    return f'<ul class="facts">{items}</ul>'


def _mood(live: int, known: bool) -> str:
    return "bad" if live else "ok" if known else "off"


def _a_second(text: Callable[[float], str]) -> Callable[[float], str]:
    return lambda value: f"{text(value)}/s"


def _cards(recent: Recent, named: NamedSamples) -> str:
    """The node's values now, each with its last minutes."""
    cards: tuple[tuple[str, str, Callable[[float], str], float], ...] = (
        (LAUNCHES, "kernel launches", _a_second(count), 0.0),
        (BYTES, "CUDA memory", size, 0.0),
        (GPU, "GPUs in use, mean", share, 1.0),
        (COLLECTIVES, "NCCL collectives", _a_second(count), 0.0),
        (SENT, "RDMA posted", _a_second(size), 0.0),
        (NACKS, "NACK ratio, worst", share, 0.0),
    )
    return '<div class="cards">' + "".join(_card(recent, *card) for card in cards) + "</div>"


def _card(recent: Recent, kind: str, title: str, text: Callable[[float], str], top: float) -> str:
    points = recent.plots.get((kind, ""), ())
    known = [value for _, value in points if value == value]
    now = text(points[-1][1]) if points and points[-1][1] == points[-1][1] else UNKNOWN
    highest = f"highest {text(max(known))}" if known else ""
    plot = spark(points, WINDOW, title, text, top) or "<i></i>"
    return f"<div><span>{title}</span><b>{escape(cut(now, 40))}</b><small>{escape(highest)}</small>{plot}</div>"
