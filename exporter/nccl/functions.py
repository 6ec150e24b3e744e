"""The NCCL and RCCL functions that are hooked, declared once: how each is hooked, and what a call of it does.

Names and arguments are from nccl.h of NCCL 2.18 to 2.32 and of RCCL 2.21 to 2.28; effects and kinds are those of
bpf/nccl/nccl.h. `pncclX` is another name of `ncclX` at the same address.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Container
from dataclasses import dataclass

from exporter.bpf.btf import Btf
from exporter.bpf.hook import Hook
from exporter.bpf.rehearsal import Scene

NO_ARGUMENT = 255
COLLECTIVES, MESSAGES = GROUPS = ("collectives", "messages")
"""Groups of functions that are left out together: enum group of bpf/nccl/nccl.h."""


@dataclass(frozen=True, slots=True)
class NcclFunction:
    """One hooked symbol. `…_at` are argument positions; the type follows the count, the stream the communicator.

    `kind` is what it is counted as: a collective, an operation on a communicator, or "none".
    """

    name: str
    kind: str
    effect: str
    count_at: int = NO_ARGUMENT
    comm_at: int = NO_ARGUMENT
    peer_at: int = NO_ARGUMENT
    """Of the root, or of the other rank."""
    paired: bool = True
    """True if the return of the function is probed too."""

    @property
    def is_message(self) -> bool:
        """Return whether it is one of the many calls of a group: an all-to-all over n ranks is n of each."""
        return self.kind in ("Send", "Recv")

    @property
    def group(self) -> str:
        """Return the functions with which it may be left out where it costs too much; empty for none."""
        if self.is_message:
            return MESSAGES
        return COLLECTIVES if self.effect in ("collective", "vector", "signal") or "group" in self.effect else ""

    def cookie(self, types: Btf, api: int, layout: int) -> int:
        """The 64-bit number its probes carry in a library of this layout: struct cookie of bpf/nccl/nccl.h."""
        cookie = types.struct("cookie")(
            api=api,
            kind=types.enum("kind")[f"kind_{self.kind}"],
            effect=types.enum("effect")[f"effect_{self.effect}"],
            layout=layout,
            count_at=self.count_at,
            comm_at=self.comm_at,
            peer_at=self.peer_at,
        )
        return int.from_bytes(bytes(cookie), sys.byteorder)

    def hooks(self, types: Btf, api: int, layout: int, time_messages: bool = True, bounded: bool = False) -> list[Hook]:
        """Return what runs at it: one program at its entry, and one at its return where that is of interest.

        `bounded`: collectives, and the groups around them, may be left out.
        """
        cookie = self.cookie(types, api, layout)
        if self.is_message and not time_messages:
            return [Hook("on_message", cookie, sampled=MESSAGES, of_one="on_message_of_one")]
        if bounded and self.group == COLLECTIVES:
            entry = "on_collective" if self.paired else "on_group"
            return [
                Hook(
                    entry,
                    cookie,
                    numbered=self.paired,
                    sampled=COLLECTIVES,
                    window="on_window",
                    of_one=f"{entry}_of_one",
                ),
                *(
                    [Hook("on_return", cookie, True, numbered=True, sampled=COLLECTIVES, of_one="on_return")]
                    if self.paired
                    else []
                ),
            ]
        if not self.paired:
            return [Hook("on_call", cookie)]
        return [Hook(it, cookie, it == "on_return", numbered=True) for it in ("on_enter", "on_return")]


NESTING = ("AlltoAll", "AlltoAllv", "Gather", "Scatter")
"""Kinds of which RCCL makes groups of Send and Recv by calls of its own functions. A call of these is one of the
program's unless the call around it is seen."""


def nests(symbol: str, functions: Container[str]) -> bool:
    """Return whether a function of a library with these functions may call other hooked functions of it."""
    return "ncclAllToAll" in functions and any(it.name == symbol and it.kind in NESTING for it in FUNCTIONS)


def scene(function: NcclFunction) -> Scene:
    """The calls tried for the cost of this function: those with the same hooks and a similar effect."""
    if function.kind in ("Send", "Recv", "PutSignal"):
        return ("ncclSend",)
    if function.effect in ("collective", "vector", "signal"):
        return ("ncclAllReduce",)
    return (
        ("ncclGroupStart", "ncclGroupEnd")
        if function.effect.startswith(("group", "capture"))
        else ("ncclCommFinalize",)
    )


def _collective(
    kind: str, count_at: int, comm_at: int, peer_at: int = NO_ARGUMENT, config: bool = False
) -> tuple[NcclFunction, ...]:
    """The function of a collective and, since 2.32, the one that takes a configuration after the same arguments."""
    suffixes = ("", "Config") if config else ("",)
    return tuple(
        NcclFunction(f"nccl{kind}{suffix}", kind, "collective", count_at, comm_at, peer_at) for suffix in suffixes
    )


def _capture(name: str, effect: str) -> tuple[NcclFunction, ...]:
    return tuple(NcclFunction(name + variant, "none", effect) for variant in ("", "_ptsz"))


FUNCTIONS: tuple[NcclFunction, ...] = (
    *_collective("AllReduce", 2, 5, config=True),
    *_collective("ReduceScatter", 2, 5, config=True),
    *_collective("AllGather", 2, 4, config=True),
    *_collective("AlltoAll", 2, 4, config=True),
    *_collective("Broadcast", 2, 5, 4, config=True),
    *_collective("Gather", 2, 5, 4, config=True),
    *_collective("Scatter", 2, 5, 4, config=True),
    *_collective("Reduce", 2, 6, 5, config=True),
    *_collective("Send", 1, 4, 3),
    *_collective("Recv", 1, 4, 3),
    *_collective("PutSignal", 1, 9, 3),
    NcclFunction("ncclSignal", "Signal", "signal", comm_at=4, peer_at=0),
    NcclFunction("ncclWaitSignal", "WaitSignal", "signal", comm_at=2),
    NcclFunction("ncclAllReduceWithBias", "AllReduce", "collective", 2, 5),  # RCCL, as are the next two
    NcclFunction("ncclAllToAll", "AlltoAll", "collective", 2, 4),
    NcclFunction("ncclAllToAllv", "AlltoAllv", "vector", 1, 7),
    NcclFunction("ncclGroupStart", "none", "group_start", paired=False),
    NcclFunction("ncclGroupEnd", "GroupEnd", "group_end"),
    NcclFunction("ncclGroupSimulateEnd", "none", "group_drop", comm_at=0),  # of the estimate
    NcclFunction("ncclCommInitRank", "Init", "init", comm_at=0),
    NcclFunction("ncclCommInitRankConfig", "Init", "init", comm_at=0),
    NcclFunction("ncclCommInitRankScalable", "Init", "create", comm_at=0),
    NcclFunction("ncclCommInitRankMulti", "Init", "create", comm_at=0),  # RCCL
    NcclFunction("ncclCommInitAll", "Init", "create_many", comm_at=0),
    NcclFunction("ncclCommSplit", "Split", "create", comm_at=3),
    NcclFunction("ncclCommShrink", "Shrink", "create", comm_at=3),
    NcclFunction("ncclCommGrow", "Grow", "create", comm_at=4),
    NcclFunction("ncclCommFinalize", "Finalize", "none", comm_at=0),
    NcclFunction("ncclCommRevoke", "Revoke", "none", comm_at=0),
    NcclFunction("ncclCommDestroy", "Destroy", "end", comm_at=0),
    NcclFunction("ncclCommAbort", "Abort", "end", comm_at=0),
    NcclFunction("ncclCommGetAsyncError", "none", "async_error", comm_at=0),
    *_capture("cuStreamBeginCapture", "capture_begin"),
    *_capture("cuStreamBeginCapture_v2", "capture_begin"),
    *_capture("cuStreamBeginCaptureToGraph", "capture_begin"),
    *_capture("cuStreamEndCapture", "capture_end"),
)
"""A function's number in the kernel is its place here, counted from 1."""

UNCOVERED = {
    r"ncclBcast": "calls ncclBroadcast, which is hooked",
    r"ncclReduceOp\w*|ncclRedOp\w*": "makes an operation, moves nothing",
}
"""Symbols that sound like the hooked ones and are not, by pattern, with the reason."""

_SOUNDS_LIKE = (
    r"nccl(All|Reduce|Broad|Bcast|Gather|Scatter|Send|Recv|Put|Get(?=Signal)|Signal|WaitSignal|Group(?!Start))\w*"
    r"|ncclComm(Init|Split|Shrink|Grow|Finalize|Destroy|Abort|Revoke)\w*"
)
COVERABLE = re.compile(rf"(?!(?:{'|'.join(UNCOVERED)})$)(?:{_SOUNDS_LIKE})")
"""Pattern of symbols that belong in FUNCTIONS: a metric counts a library's matching symbols without an entry."""


def family(symbol: str) -> str:
    """Return the library of a function by its name, "nccl" or "driver": a driver library lacks no functions of NCCL."""
    return "nccl" if symbol.startswith("nccl") else "driver"
