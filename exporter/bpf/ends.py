"""Rows of processes in BPF maps that are not counts: deleted when the process ends, by ENDED() of bpf/probe.h."""

from __future__ import annotations

from collections.abc import Iterable

from exporter.bpf.libbpf import Object
from exporter.process_end import has_ended

_NO_THREADS, _RUNS_ON = 1, 2


def forget(loaded: Object, pids: Iterable[int]) -> None:
    """Runs the object's `forget` for these processes, all of them in one walk over its maps. BpfError.

    Of those that have not ended, but run other programs, rows of threads stay: calls of these may be in progress.
    """
    ended, all_of_them = loaded.maps["ended"], list(pids)
    for at in range(0, len(all_of_them), ended.max_entries):
        some = frozenset(all_of_them[at : at + ended.max_entries])
        exited = set(filter(has_ended, some))
        try:
            ended.fill(exited, _NO_THREADS)
            ended.fill(some - exited, _RUNS_ON)
            loaded.programs["forget"].run()
        finally:
            ended.remove(some)
