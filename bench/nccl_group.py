"""Cost of a whole group of messages to the calling thread: this exporter's probes against bpftrace on the same calls.

Three copies of a stand-in are loaded by one program: nothing is attached to the first, the exporter's probes to the
second, bpftrace to the third, with one uprobe each. Rounds alternate between the copies, so that all see the same
noise.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.nccl import STANDINS, attached
from bench.result import Result

ROUNDS, GROUPS, MESSAGES = 41, 20, 128
PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>
typedef struct { char internal[128]; } id_t_;
typedef int init(void **, int, id_t_, int), group(void);
typedef int message(const void *, unsigned long, int, int, void *, void *);
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
int main(int argc, char **argv)
{
    static id_t_ id;
    void *comms[8];
    group *start[8], *end[8];
    message *send[8], *receive[8];
    for (int i = 1; i < argc; i++) {
        void *library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
        start[i] = (group *)dlsym(library, "ncclGroupStart");
        end[i] = (group *)dlsym(library, "ncclGroupEnd");
        send[i] = (message *)dlsym(library, "ncclSend");
        receive[i] = (message *)dlsym(library, "ncclRecv");
        ((init *)dlsym(library, "ncclCommInitRank"))(&comms[i], 64, id, 3);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 1; i < argc; i++) {
            double began = now();
            for (int call = 0; call < GROUPS; call++) {
                start[i]();
                for (int peer = 0; peer < MESSAGES / 2; peer++) {
                    send[i](NULL, 1000, 7, peer, comms[i], NULL);
                    receive[i](NULL, 1000, 7, peer, comms[i], NULL);
                }
                end[i]();
            }
            printf("%.1f ", (now() - began) / GROUPS);
        }
        printf("\\n");
    }
    return 0;
}
"""
BUDGET = 1.5
"""Of what the group takes longer with us to what it does with bpftrace: ours also counts bytes, by communicator."""


def run() -> list[Result]:
    """Takes five seconds; needs root, BPF, gcc and bpftrace (RuntimeError without)."""
    if missing := [tool for tool in ("gcc", "bpftrace") if not shutil.which(tool)]:
        raise RuntimeError(f"groups cannot be compared without {' and '.join(missing)}: install them")
    subprocess.run(["make", "-s", "-C", STANDINS], check=True)
    default, bare = _measure(messages_timed=False)
    timed, _ = _measure(messages_timed=True)
    how = f"median of {ROUNDS} interleaved rounds by CPU time, less the same group without a probe ({bare:.0f} ns)"
    return [
        Result(f"a group of {MESSAGES} messages", default[0], "ns", None, how),
        Result("the same, counted by bpftrace", default[1], "ns", None, "one uprobe at each of the four functions"),
        Result("group against bpftrace's", default[0] / default[1], "ratio", BUDGET, how),
        Result("group with message-spans against bpftrace's", timed[0] / timed[1], "ratio", None, how),
    ]


def _measure(messages_timed: bool) -> tuple[tuple[float, float], float]:
    """Nanoseconds that a group takes longer, ours and bpftrace's; and the time of one without a probe."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copies = [shutil.copy(STANDINS / "build" / "libnccl.so.2", folder / f"{it}.so") for it in range(3)]
        program = folder / "groups"
        flags = [f"-DROUNDS={ROUNDS}", f"-DGROUPS={GROUPS}", f"-DMESSAGES={MESSAGES}"]
        subprocess.run(["gcc", "-O2", *flags, "-x", "c", "-", "-o", program], input=PROGRAM, text=True, check=True)
        with attached(copies[1], 0, messages_timed) as loaded, _bpftrace(copies[2]):
            output = subprocess.run([program, *copies], capture_output=True, text=True, timeout=120, check=True).stdout
            counted = sum(value.calls for key, value in loaded.maps["calls"].items())
    if counted < ROUNDS * GROUPS * MESSAGES:
        raise RuntimeError(f"of {ROUNDS * GROUPS * MESSAGES} messages we counted {counted}")
    rounds = [[float(value) for value in line.split()] for line in output.splitlines()]
    ours, theirs = (median(it[at] - it[0] for it in rounds) for at in (1, 2))
    return (ours, theirs), median(it[0] for it in rounds)


@contextmanager
def _bpftrace(library: Path) -> Iterator[None]:
    functions = ",".join(f"uprobe:{library}:nccl{it}" for it in ("GroupStart", "Send", "Recv", "GroupEnd"))
    script = f'{functions} {{ @calls[func] = count(); }} BEGIN {{ printf("ready\\n"); }}'
    with subprocess.Popen(["bpftrace", "-e", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as tracer:
        assert tracer.stdout is not None
        try:
            if b"ready\n" not in iter(tracer.stdout.readline, b""):
                raise RuntimeError("bpftrace ended before it was attached")
            yield
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.communicate(timeout=30)
