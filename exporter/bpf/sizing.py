"""Number of entries of a BPF map, for kinds of maps that need more on machines with many processors."""

from __future__ import annotations

LRU_KINDS = {9, 10}  # LRU_HASH, LRU_PERCPU_HASH (enum bpf_map_type)
_BATCH = 128  # LOCAL_FREE_TARGET of kernel/bpf/bpf_lru_list.c
_MOST = 1 << 17


def entries(kind: int, declared: int, processors: int) -> int:
    """The rows of a map of this kind, on a machine with so many possible processors.

    Before Linux 6.16 each processor that inserts into an LRU map takes batches of free rows and keeps them: when all
    rows are kept by others, its next insertion evicts the row it has just made. Two batches a processor leave one to
    each and as many rows in use; from 512 processors on the table stays as it is, for the sake of memory.
    """
    if kind not in LRU_KINDS:
        return declared
    return max(declared, min(2 * _BATCH * processors, _MOST))
