"""Statistics of a network interface that concern RDMA: pauses by priority (PFC), congestion, waiting for PCIe.

Names are the drivers': mlx5 (Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst), ice
(ice_ethtool.c), bnxt (bnxt_ethtool.c).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from exporter.infiniband import metrics
from exporter.model import Metric, Sample

_DIRECTIONS = {"rx": "received", "tx": "sent"}
_NETWORK = {"rx": "receive", "tx": "transmit"}
_STALLED = {"rd": "read", "wr": "write"}
_REASONS = {"discards": "buffer", "buf_discard": "host_buffer", "cong_discard": "host_congestion"}


@dataclass(frozen=True)
class _Rule:
    """A metric for the names that match; `labels` makes the labels from the match, `scale` converts to its unit."""

    pattern: re.Pattern[str]
    metric: Metric
    labels: Callable[[re.Match[str]], dict[str, str]]
    scale: float = 1


def _prioritised(found: re.Match[str]) -> dict[str, str]:
    return {"priority": found["priority"], "direction": _DIRECTIONS[found["way"]]}


def _whole(found: re.Match[str]) -> dict[str, str]:
    return {"priority": "all", "direction": _DIRECTIONS[found["way"]]}


def _stalled(found: re.Match[str]) -> dict[str, str]:
    return {"direction": _STALLED[found["way"]]}


def _cast(found: re.Match[str]) -> dict[str, str]:
    return {"direction": _NETWORK[found["way"]], "cast": found["cast"]}


def _discarded(found: re.Match[str]) -> dict[str, str]:
    return {"priority": found["priority"], "reason": _REASONS[found["reason"]]}


_PRIORITISED = r"(?P<way>[rt]x)_prio(?P<priority>[0-7])"
_VPORT = "(?P<way>[rt]x)_vport_rdma_(?P<cast>unicast|multicast)_"
_RULES = (
    _Rule(re.compile(_PRIORITISED + "_pause"), metrics.PFC_FRAMES, _prioritised),  # mlx5
    _Rule(re.compile(_PRIORITISED + "_pause_duration"), metrics.PFC_SECONDS, _prioritised, 1e-6),
    _Rule(re.compile("(?P<way>[rt]x)_global_pause"), metrics.PFC_FRAMES, _whole),
    _Rule(re.compile("(?P<way>[rt]x)_global_pause_duration"), metrics.PFC_SECONDS, _whole, 1e-6),
    _Rule(
        re.compile("tx_pause_storm_(?P<severity>warning|error)_events"),
        metrics.PFC_STORMS,
        lambda found: {"severity": found["severity"]},
    ),
    _Rule(
        re.compile(r"(?P<way>[rt]x)_priority_(?P<priority>[0-7])_xoff\.nic"), metrics.PFC_FRAMES, _prioritised
    ),  # ice
    _Rule(re.compile(r"link_xoff_(?P<way>[rt]x)\.nic"), metrics.PFC_FRAMES, _whole),
    _Rule(re.compile("(?P<way>[rt]x)_pfc_ena_frames_pri(?P<priority>[0-7])"), metrics.PFC_FRAMES, _prioritised),  # bnxt
    _Rule(re.compile("(?P<way>[rt]x)_pause_frames"), metrics.PFC_FRAMES, _whole),
    _Rule(
        re.compile("outbound_pci_stalled_(?P<way>rd|wr)"),
        metrics.PCI_STALLED,
        _stalled,
        0.01,
    ),
    _Rule(re.compile("outbound_pci_stalled_(?P<way>rd|wr)_events"), metrics.PCI_STALLED_TIME, _stalled),
    _Rule(re.compile(_PRIORITISED + "_pause_transition"), metrics.PFC_TRANSITIONS, _prioritised),
    _Rule(re.compile(_VPORT + "bytes"), metrics.NETDEV_IO, _cast),
    _Rule(re.compile(_VPORT + "packets"), metrics.NETDEV_PACKETS, _cast),
    _Rule(
        re.compile("rx_prio(?P<priority>[0-7])_(?P<reason>discards|buf_discard|cong_discard)"),
        metrics.NETDEV_DISCARDED,
        _discarded,
    ),
    _Rule(
        re.compile("rx_discards_phy"), metrics.NETDEV_DISCARDED, lambda found: {"priority": "all", "reason": "buffer"}
    ),
    _Rule(
        re.compile("outbound_pci_buffer_overflow"),
        metrics.NETDEV_DISCARDED,
        lambda found: {"priority": "all", "reason": "pcie"},
    ),
    _Rule(
        re.compile("rx_prio(?P<priority>[0-7])_marked"),
        metrics.NETDEV_MARKED,
        lambda found: {"priority": found["priority"], "by": "device"},
    ),
    _Rule(re.compile("rx_ecn_mark"), metrics.NETDEV_MARKED, lambda found: {"priority": "all"}),
)


def samples(statistics: Mapping[str, int], port: Mapping[str, str]) -> Iterator[Sample]:
    """Yield the statistics that concern RDMA, with the labels of the port."""
    for name, value in statistics.items():
        for rule in _RULES:
            if found := rule.pattern.fullmatch(name):
                yield rule.metric.sample(value * rule.scale, {**port, **rule.labels(found)})
                break
