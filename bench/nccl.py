"""Run time of the NCCL programs by the kernel's statistics: a collective, its return, and its span record."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.result import Result
from exporter.bpf import object_path
from exporter.bpf.elf import Elf
from exporter.bpf.libbpf import Object, run_time_statistics
from exporter.bpf.placement import place
from exporter.bpf.uprobe import Point, attach, close_all
from exporter.nccl.functions import FUNCTIONS
from exporter.nccl.layout import find_layout

STANDINS = Path(__file__).parents[1] / "tests" / "standins"
CALLS = 50_000
PROGRAM = """
#include <stddef.h>
typedef struct { char internal[128]; } id_t_;
int ncclCommInitRank(void **, int, id_t_, int), ncclGroupStart(void), ncclGroupEnd(void);
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *);
int ncclSend(const void *, size_t, int, int, void *, void *);
int main(void)
{
    static id_t_ id;
    void *comm;
    ncclCommInitRank(&comm, 8, id, 3);
    for (int i = 0; i < CALLS; i++) {
        ncclAllReduce(NULL, NULL, 1000, 7, 0, comm, NULL);
        CALL_MORE
    }
    return 0;
}
"""
MESSAGES = 128
SEND = "ncclGroupStart(); for (int k = 0; k < 128; k++) ncclSend(NULL, 1000, 7, k % 8, comm, NULL); ncclGroupEnd();"
BUDGET_NS = 1000
"""All programs of one call of ncclAllReduce, as the mean."""
GROUP_BUDGET_NS = 30_000
"""All programs of a group of 64 Sends and 64 Recvs."""


def run() -> list[Result]:
    """Runs calls on a stand-in library of its own; needs root, BPF and gcc. Takes three seconds."""
    subprocess.run(["make", "-s", "-C", STANDINS], check=True)
    quiet, traced = _measure("", 0), _measure("", 1 << 30)
    mixed = _measure(SEND, 0, calls=CALLS // MESSAGES)
    whole = sum(quiet.values())
    how = f"mean of {CALLS} calls of ncclAllReduce, by the kernel's clock"
    return [
        Result("programs run at a collective", whole, "ns", BUDGET_NS, how),
        Result("of this, counting it and remembering that it began", quiet["on_enter"], "ns", None, "on_enter"),
        Result("of this, at its return", quiet["on_return"], "ns", None, "on_return"),
        Result("its return with a span record", traced["on_return"], "ns", None, "on_return, the ring not read"),
        Result(
            f"programs run at a group of {MESSAGES} messages",
            sum(mixed.values()) - whole,
            "ns",
            GROUP_BUDGET_NS,
            "one trap each besides",
        ),
        Result("of this, at each message", mixed["on_message"] / MESSAGES, "ns", None, "on_message"),
    ]


def _measure(more: str, spans_per_second: int, calls: int = CALLS) -> dict[str, float]:
    """Nanoseconds of each program that ran, by round of the loop."""
    with tempfile.TemporaryDirectory() as folder:
        library = shutil.copy(STANDINS / "build" / "libnccl.so.2", folder)
        program = Path(folder, "calls")
        flags = [f"-DCALLS={calls}", f"-DCALL_MORE={more}", "-x", "c", "-", "-x", "none", library]
        subprocess.run(["gcc", "-O2", *flags, "-o", program], input=PROGRAM, text=True, check=True)
        with attached(Path(library), spans_per_second, messages_timed=False) as loaded:
            statistics = run_time_statistics()
            subprocess.run([program], env=os.environ | {"LD_LIBRARY_PATH": folder}, timeout=60, check=True)
            statistics.close()
            return {name: it.stats()[0] / calls for name, it in loaded.programs.items() if it.stats()[1]}


@contextmanager
def attached(library: Path, spans_per_second: int, messages_timed: bool) -> Iterator[Object]:
    """The programs, attached to a library as the exporter does where return probes may be used."""
    with Object(object_path("nccl"), constants={"spans_per_second": spans_per_second}) as loaded:
        links = [
            attach(loaded.programs[name], library, points, returns)
            for (name, returns), points in _points(loaded, library, messages_timed).items()
        ]
        try:
            yield loaded
        finally:
            close_all(links)


def _points(loaded: Object, path: Path, messages_timed: bool) -> dict[tuple[str, bool], list[Point]]:
    wanted: dict[tuple[str, bool], list[Point]] = {}
    with Elf.open(path) as elf:
        layout = find_layout(elf)
        value = loaded.maps["layouts"].value(identity=layout.identity, guarded=int(layout.guarded))
        loaded.maps["layouts"].set(1, value)
        loaded.maps["returning"].set(0, 1)
        found = elf.functions([function.name for function in FUNCTIONS])
        for api, function in enumerate(FUNCTIONS, 1):
            if function.name in found:
                offset = place(elf, found[function.name]).offset
                for hook in function.hooks(loaded.types, api, layout=1, time_messages=messages_timed):
                    wanted.setdefault((hook.program, hook.returns), []).append(Point(offset, hook.cookie))
    return wanted
