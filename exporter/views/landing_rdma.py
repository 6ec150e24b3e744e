"""Tables of the page at / about RDMA: queue pairs of processes, and ports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address

from exporter.history import WINDOW, Key, Recent
from exporter.model import Sample
from exporter.views.html import (
    MOST_ROWS,
    NOTHING,
    UNKNOWN,
    Column,
    amount,
    cell,
    count,
    more,
    plotted,
    section,
    share,
    short,
    size,
)
from exporter.views.landing_jobs import period, where
from exporter.views.landing_plots import NACKS, PORT_SENT, QP_SENT
from exporter.views.landing_samples import NamedSamples, none_seen, number, place, queue_pair
from exporter.views.spark import spark

_STATES = {1: "down", 2: "init", 3: "armed", 4: "active", 5: "about to go down"}
"""Of rdma.link.state."""
_QP_STATES = {0: "RESET", 1: "INIT", 2: "RTR", 3: "RTS", 4: "SQD", 5: "SQE", 6: "ERR"}
"""Of rdma.qp.state."""
_POSTED = "bytes posted a second"


@dataclass(slots=True)
class Pair:
    """One queue pair. `sent` is None where nothing was seen posted, or counts are not by queue pair.

    `rate` is of one that is among those that post most.
    """

    labels: Mapping[str, str]
    info: Mapping[str, str] = field(default_factory=dict)
    state: str = ""
    sent: float | None = None
    requests: float = 0.0
    rate: float | None = None

    @property
    def working(self) -> bool:
        """Return whether the queue pair is not known to be in an error state."""
        return self.state not in ("ERR", "SQE")

    @property
    def peer(self) -> str:
        """The other end as far as it is known: its queue pair, and the pod or GID."""
        of = {**{key: value for key, value in self.labels.items() if value}, **self.info}
        pod = "/".join(filter(None, (of.get("peer_namespace"), of.get("peer_pod"))))
        lid = of.get("peer_lid") and f"LID {of['peer_lid']}"
        at = pod or _address(of.get("peer_gid", "")) or lid
        return " at ".join(filter(None, (of.get("peer_qp"), at)))


def _address(gid: str) -> str:
    """A GID as short as IPv6 addresses are written, as an IPv4 address where it is one."""
    try:
        address = IPv6Address(gid)
    except ValueError:
        return gid
    return str(address.ipv4_mapped or address)


def pairs(named: NamedSamples) -> dict[tuple[str, str, str], Pair]:
    """The queue pairs by process, device and number: those that are there, and those that sent.

    Below profile debug these are the ones in an error state, and those that post most.
    """
    found = {
        queue_pair(it): Pair(
            it.labels, {key: value for key, value in it.labels.items() if value}, _QP_STATES.get(int(number(it)), "")
        )
        for it in named.of_processes("rdma.qp.state")
    }
    for sample in named.of_processes("rdma.qp.busiest"):
        pair = found.setdefault(queue_pair(sample), Pair(sample.labels))
        pair.rate = number(sample)
    for sample in _by_pair(named, "rdma.send"):
        pair = found.setdefault(queue_pair(sample), Pair(sample.labels))
        pair.sent = (pair.sent or 0) + number(sample)
    for sample in _by_pair(named, "rdma.send.work_requests"):
        found.setdefault(queue_pair(sample), Pair(sample.labels)).requests += number(sample)
    return found


def _by_pair(named: NamedSamples, name: str) -> Iterator[Sample]:
    """The samples of a metric that are of one queue pair each; in profile node none is."""
    return (sample for sample in named.of_processes(name) if sample.labels.get("qp"))


def pair_table(named: NamedSamples, recent: Recent) -> str:
    found = pairs(named)
    keys = {of: (QP_SENT, "/".join(of)) for of in found}
    rates = {of: recent.rates.get(keys[of], found[of].rate) for of in found}
    ranked = sorted(found, key=lambda of: (found[of].working, -(rates[of] or 0), -(found[of].sent or 0), of))
    shown = ranked[:MOST_ROWS]
    own = [found[of] for of in shown]
    ratios = _ratios(named)
    columns = (
        Column("pid", [cell(pid, "n") for pid, _, _ in shown], True),
        Column("name", [cell(it.labels.get("comm", ""), "m") for it in own]),
        Column("where", [short(where(it.labels)) for it in own]),
        Column(
            "device/port",
            [cell("/".join(filter(None, (device, _port(found[of]))))) for of in shown for device in [of[1]]],
        ),
        Column("QP", [cell(qp, "n") for _, _, qp in shown], True),
        Column("peer", [short(it.peer or UNKNOWN) for it in own]),
        Column("state", [cell(it.state) for it in own]),
        Column("sent/s", [_pair_rate(recent, keys[of], rates[of]) for of in shown], True),
        Column("sent", [amount(None if it.sent is None else size(it.sent)) for it in own], True),
        Column("requests", [amount(None if it.sent is None else count(it.requests)) for it in own], True),
        Column("NACK ratio of the port", [_ratio(ratios, of[1], found[of]) for of in shown], True),
    )
    return section(
        "RDMA queue pairs",
        columns,
        none_seen(named, "verbs", "No process was seen using RDMA verbs."),
        more(len(ranked), "queue pairs"),
        f"bytes posted; {period(recent)}",
        "rdma",
    )


def _port(pair: Pair) -> str:
    return pair.info.get("port", "")


def _ratio(ratios: Mapping[str, float], device: str, pair: Pair) -> str:
    """Return the ratio of the queue pair's port, or of the device's only port where the port is not known."""
    own = [ratio for at, ratio in ratios.items() if at.rpartition("/")[0] == device]
    ratio = ratios.get(f"{device}/{_port(pair)}") if _port(pair) else own[0] if len(own) == 1 else None
    return amount(None if ratio is None else share(ratio))


def _pair_rate(recent: Recent, key: Key, rate: float | None) -> str:
    return amount(None if rate is None else size(rate)) if key not in recent.rates else _rate(recent, key, _POSTED)


def _rate(recent: Recent, key: Key, what: str) -> str:
    if key not in recent.rates:
        return NOTHING
    return plotted(spark(recent.plots.get(key, ()), WINDOW, what, size), size(recent.rates[key]))


def _ratios(named: NamedSamples) -> dict[str, float]:
    """Negative acknowledgements of all kinds over packets sent, by port."""
    ratios: dict[str, float] = defaultdict(float)
    for sample in named.all("rdma.nack"):
        ratios[place(sample)] += number(sample)
    return ratios


def port_table(named: NamedSamples, recent: Recent) -> str:
    states = {place(it): int(number(it)) for it in named.all("rdma.link.state")}
    shown = sorted(states)[:MOST_ROWS]
    speeds = {place(it): number(it) for it in named.all("rdma.link.speed")}
    ratios = _ratios(named)

    def totals(name: str) -> list[str]:
        sums: dict[str, float] = defaultdict(float)
        for sample in named.all(name):
            sums[place(sample)] += number(sample)
        return [amount(count(sums[at]) if at in sums else None) for at in shown]

    columns = (
        Column("device/port", [cell(at) for at in shown]),
        Column("link", [cell(_STATES.get(states[at], str(states[at]))) for at in shown]),
        Column("speed", [amount(f"{speeds[at] * 8 / 1e9:g} Gb/s" if at in speeds else None) for at in shown], True),
        Column("sent/s", [_rate(recent, (PORT_SENT, at), "bytes sent a second") for at in shown], True),
        Column("packets sent", totals("rdma.packets.sent"), True),
        Column("NAKs received", totals("rdma.naks.received"), True),
        Column("NACK ratio", [_plotted_ratio(recent, at, ratios.get(at)) for at in shown], True),
        Column("retransmitted", totals("rdma.packets.retransmitted"), True, optional=True),
        Column("ACK timeouts", totals("rdma.ack.timeouts"), True, optional=True),
        Column("link downs", totals("rdma.link.downed"), True, optional=True),
    )
    return section(
        "RDMA ports",
        columns,
        "No RDMA device was found.",
        more(len(states), "ports"),
        "counters of the devices",
        "ports",
    )


def _plotted_ratio(recent: Recent, at: str, ratio: float | None) -> str:
    if ratio is None:
        return NOTHING
    return plotted(spark(recent.plots.get((NACKS, at), ()), WINDOW, "NACK ratio", share), share(ratio))
