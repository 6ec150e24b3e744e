"""Queue pairs and memory regions of processes: the maps of bpf/verbs/control.h as plain values.

`hooks()` are attached to libibverbs (for a symbol with two versions to the newer, which the older one calls), and
`hooks_of("create_qp")` to a provider's create_qp_ex.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from exporter.bpf.btf import Btf
from exporter.bpf.hook import Hook
from exporter.verbs.peers import gid_text
from exporter.verbs.records import ControlRows, QpControl

FUNCTIONS = {
    "ibv_create_qp": "create_qp",
    "ibv_modify_qp": "modify_qp",
    "ibv_query_qp": "query_qp",
    "ibv_destroy_qp": "destroy_qp",
    "ibv_reg_mr": "register",
    "ibv_reg_mr_iova": "register",
    "ibv_reg_mr_iova2": "register",
    "ibv_reg_dmabuf_mr": "register_dmabuf",
    "ibv_reg_mr_ex": "register_extended",
    "ibv_rereg_mr": "reregister",
    "ibv_dereg_mr": "deregister",
}
"""libibverbs' functions, and their names in enum control_call of bpf/verbs/control.h."""

TYPES = {2: "RC", 3: "UC", 4: "UD", 8: "RAW_PACKET", 9: "XRC_SEND", 10: "XRC_RECV", 255: "DRIVER"}
_PORT, _PATH, _MTU, _TIMEOUT, _RETRIES, _RNR_RETRIES, _PEER = 0x20, 0x80, 0x100, 0x200, 0x400, 0x800, 0x100000
_PSNS = {"send": 0x10000, "receive": 0x1000}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def hooks(types: Btf) -> dict[str, list[Hook]]:
    """Return what runs at libibverbs' functions; everything needs return probes."""
    return {symbol: hooks_of(types, call) for symbol, call in FUNCTIONS.items()}


def hooks_of(types: Btf, call: str) -> list[Hook]:
    """Return what runs at a function that does what this call of enum control_call does."""
    cookie = types.enum("control_call")[f"control_{call}"]
    return [Hook("control_enter", cookie, paired=True), Hook("control_return", cookie, returns=True)]


class Regions(NamedTuple):
    """Memory regions of one process, device and kind of memory: struct region_total."""

    added: int = 0
    removed: int = 0
    untracked: int = 0
    registrations: int = 0
    reregistrations: int = 0
    deregistrations: int = 0
    unmatched: int = 0

    @property
    def bytes(self) -> int | None:
        """Bytes that are registered now; None where regions had no room: their deregistration is not recognised."""
        return None if self.untracked else max(0, self.added - self.removed)


@dataclass(frozen=True, slots=True)
class Qp:
    """A queue pair as its process set it up: struct qp_control. None and empty: not known."""

    device: str
    number: int
    type: int
    state: int
    created_ns: int = 0
    """On the monotonic clock; 0 if the queue pair was there before its process was observed."""
    resets: int = 0
    peer: int | None = None
    port: int = 0
    gid_index: int | None = None
    peer_gid: str = ""
    peer_lid: int | None = None
    mtu: int = 0
    timeout: int | None = None
    retries: int | None = None
    rnr_retries: int | None = None
    send_psn: int | None = None
    receive_psn: int | None = None

    @classmethod
    def of(cls, row: QpControl) -> Qp:
        """Return the queue pair of a struct qp_control."""

        def known(bit: int, value: int) -> int | None:
            return value if row.known & bit else None

        path, routed = row.known & _PATH, bool(row.routed)
        return cls(
            device=device_name(row.device.name),
            number=row.number,
            type=row.type,
            state=row.state,
            created_ns=row.created_ns,
            resets=row.resets,
            peer=known(_PEER, row.peer),
            port=row.port if row.known & (_PORT | _PATH) else 0,
            gid_index=row.gid_index if path and routed else None,
            peer_gid=gid_text(bytes(row.peer_gid)) if path and routed else "",
            peer_lid=row.lid if path and row.lid and not routed else None,
            mtu=128 << row.path_mtu if row.known & _MTU and 1 <= row.path_mtu <= 5 else 0,
            timeout=known(_TIMEOUT, row.timeout),
            retries=known(_RETRIES, row.retries),
            rnr_retries=known(_RNR_RETRIES, row.rnr_retries),
            send_psn=known(_PSNS["send"], row.send_psn),
            receive_psn=known(_PSNS["receive"], row.receive_psn),
        )


@dataclass(slots=True)
class Control:
    """The control path of one process."""

    qps: dict[int, Qp] = field(default_factory=dict)
    """Queue pairs by the address of their struct ibv_qp."""
    states: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Changes of state, by device and new state."""
    regions: dict[tuple[str, str], Regions] = field(default_factory=dict)
    """Memory regions by device and memory: host or dmabuf."""
    memory_missed: int = 0
    """Calls on memory of which the effect is not known, nor therefore the bytes that are registered on any device."""

    def ended(self) -> None:
        """Drop what the process had, and keep what it did."""
        self.qps, self.memory_missed = {}, 0
        self.regions = {key: total._replace(removed=total.added, untracked=0) for key, total in self.regions.items()}

    def absorb(self, late: Control) -> None:
        """Add counts that were made after this was read.

        Changed fields are replaced, not modified: another thread may be reading them.
        """
        self.states = self.states + late.states
        self.memory_missed += late.memory_missed
        summed = {
            key: Regions(*(a + b for a, b in zip(self.regions.get(key, Regions()), more, strict=True)))
            for key, more in late.regions.items()
        }
        self.regions = self.regions | summed


MAPS = ("qp_controls", "qp_states", "regions", "region_totals", "memory_missed")
"""The maps of the control path. Each has `tgid` in its key or as its key, and counts keys that it had no room for."""
READ = tuple(ControlRows.__annotations__)
"""The maps of MAPS that are read."""


def by_process(rows: ControlRows) -> dict[int, Control]:
    """Return what the rows of the maps in READ hold, by process."""
    seen: dict[int, Control] = defaultdict(Control)
    for qp, row in rows["qp_controls"]:
        seen[qp.tgid].qps[qp.address] = Qp.of(row)
    for state, changes in rows["qp_states"]:
        seen[state.tgid].states[device_name(state.device.name), state.state] += changes
    for kind, total in rows["region_totals"]:
        regions = Regions(*(getattr(total, name) for name in Regions._fields))
        seen[kind.tgid].regions[device_name(kind.device.name), ("host", "dmabuf")[kind.memory]] = regions
    for pid, missed in rows["memory_missed"]:
        seen[pid].memory_missed += missed
    return dict(seen)


def device_name(raw: bytes) -> str:
    """Return a device's name from the memory of a process, empty where the bytes are no such name."""
    text = raw.split(b"\0")[0].decode("ascii", "replace")
    return text if _NAME.fullmatch(text) else ""
