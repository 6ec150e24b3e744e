"""From what RDMA did in a process to samples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from exporter.verbs.samples import Ends

QPS: dict[tuple[str, int], Any] = {
    ("rxe0", 17): SimpleNamespace(device="rxe0", number=17, peer=23, peer_gid="fe80::2"),
    ("rxe0", 18): SimpleNamespace(device="rxe0", number=18, peer=None, peer_gid=""),
}
PEERS: Any = SimpleNamespace(kernel=lambda device, number: SimpleNamespace(remote=42) if number == 18 else None)


def test_ends_are_remembered() -> None:
    """A queue pair that is destroyed keeps its other end, so that its counters stay the same series."""
    ends = Ends(PEERS)
    first = {"peer_qp": "23", "peer_gid": "fe80::2"}

    assert first == ends.of(7, QPS, "rxe0", 17)
    assert {"peer_qp": "42", "peer_gid": ""} == ends.of(7, QPS, "rxe0", 18)
    assert first == ends.of(7, {}, "rxe0", 17)
    assert {} == ends.of(8, {}, "rxe0", 17) == ends.of(7, {}, "rxe1", 17)
    ends.keep({8})
    assert {} == ends.of(7, {}, "rxe0", 17)
