"""What the kernel keeps of processes besides their counts, dropped when they have ended: ENDED() of bpf/probe.h."""

from __future__ import annotations

from collections.abc import Iterable

from exporter.bpf.libbpf import Object


def forget(loaded: Object, pids: Iterable[int]) -> None:
    """Runs the object's `forget` for these processes, all of them in one walk over its maps. BpfError."""
    ended, all_of_them = loaded.maps["ended"], list(pids)
    for at in range(0, len(all_of_them), ended.max_entries):
        some = frozenset(all_of_them[at : at + ended.max_entries])
        try:
            ended.fill(some, 1)
            loaded.programs["forget"].run()
        finally:
            ended.remove(some)
