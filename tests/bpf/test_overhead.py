"""The estimate of what the probes cost, against the processor time of a thread with and without them."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from exporter.bpf import targets
from exporter.bpf.mappings import Lister
from exporter.bpf.mappings import Mapping as Mapped
from tests.bpf import nccl_node
from tests.bpf.cuda_node import BUILD, observe
from tests.bpf.observed import Observed
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.timeout(300)]

CALLS, ROUNDS, SESSIONS = 32, 500, 12
TOLERANCE = 0.15
LOOP = """
	struct timespec t[2];
	int pattern;
	long calls, rounds;
	puts("ready");
	for (fflush(stdout); scanf("%d %ld %ld", &pattern, &calls, &rounds) == 3; fflush(stdout)) {
		while (rounds--) {
			clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t[0]);
			for (long i = 0; i < calls; i++)
				switch (pattern) { CASES }
			clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t[1]);
			printf("%ld ", (t[1].tv_sec - t[0].tv_sec) * 1000000000 + t[1].tv_nsec - t[0].tv_nsec);
		}
		puts("");
	}
	return 0;
}
"""
CUDA = """
#include <stdio.h>
#include <time.h>
int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int), cuMemAlloc_v2(void **, unsigned long);
int cuMemFree_v2(void *), cuMemcpyHtoD_v2(void *, const void *, unsigned long), cuStreamSynchronize(void *);
int cuLaunchKernel(const void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
	void *, void **, void **);
int main(void)
{
	static char source[4096];
	void *context, *target, *block;
	cuInit(0);
	cuCtxCreate_v2(&context, 0, 0);
	cuMemAlloc_v2(&target, sizeof(source)); /* and then to where large allocations begin */
	cuMemAlloc_v2(&block, (2 << 20) + 4096 - ((unsigned long)target + 4096) % (2 << 20));
"""
CUDA_PATTERNS = {
    "launch": "cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);",
    "copy": "cuMemcpyHtoD_v2(target, source, sizeof(source));",
    "wait": "cuStreamSynchronize(0);",
    "alloc+free": "cuMemAlloc_v2(&block, 1 << 20); cuMemFree_v2(block);",
}
NCCL = """
#include <stdio.h>
#include <time.h>
struct id { char bytes[128]; };
int ncclCommInitRank(void **, int, struct id, int), ncclGroupStart(void), ncclGroupEnd(void);
int ncclAllReduce(const void *, void *, unsigned long, int, int, void *, void *);
int ncclSend(const void *, unsigned long, int, int, void *, void *);
int main(void)
{
	void *comm;
	struct id id = {"overhead"};
	ncclCommInitRank(&comm, 2, id, 0);
"""
NCCL_PATTERNS = {
    "call": "ncclAllReduce(0, 0, 1024, 7, 0, comm, 0);",
    "group of 8 sends": "ncclGroupStart();for (int k = 0; k < 8; k++) ncclSend(0, 1024, 7, 1, comm, 0);ncclGroupEnd();",
}


class Caller:
    """A process that makes rounds of calls of a pattern at a request, and writes what CPU time each took."""

    def __init__(self, program: Path) -> None:
        environment = os.environ | {"LD_LIBRARY_PATH": str(program.parent)}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([program], env=environment, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        self._read()

    def _read(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def short(self, pattern: int) -> float:
        """Seconds of a short round: one in 50 is shorter, for the clock may be wrong where the processor changes."""
        assert self.process.stdin
        self.process.stdin.write(f"{pattern} {CALLS} {ROUNDS}\n")
        return sorted(map(int, self._read().split()))[ROUNDS // 50] / 1e9


class Only:
    """Lists the mappings of one file: what other tests on this machine call is not in the sums."""

    def __init__(self, lister: Lister, file: Path) -> None:
        self._lister, self._number = lister, file.stat().st_ino
        self.name, self.one_process, self.close = lister.name, lister.one_process, lister.close

    def everything(self) -> list[Mapped]:
        return [it for it in self._lister.everything() if it.number == self._number]

    def of(self, pids: Collection[int]) -> list[Mapped]:
        return [it for it in self._lister.of(pids) if it.number == self._number]


@contextmanager
def calling(folder: Path, begin: str, patterns: Mapping[str, str], library: str) -> Iterator[Caller]:
    cases = " ".join(f"case {number}: {calls} break;" for number, calls in enumerate(patterns.values()))
    command = ["gcc", "-O2", "-x", "c", "-", "-o", folder / "caller", f"-L{BUILD}", f"-l:{library}"]
    subprocess.run(command, input=begin + LOOP.replace("CASES", cases), text=True, check=True)
    caller = Caller(folder / "caller")
    try:
        yield caller
    finally:
        caller.process.kill()
        caller.process.communicate()


def estimated(observed: Observed) -> Any:
    return observed.value("accel_exporter_overhead_seconds_total")


@dataclass(frozen=True)
class Session:
    """Seconds that CALLS calls of a pattern took before, during and after one exporter, and its estimate of them."""

    before: float
    observed: float
    after: float
    estimate: float

    @property
    def alone(self) -> bool:
        """True if no other exporter probed the library before and after."""
        return max(self.before, self.after) < self.estimate / 4


def session(
    caller: Caller, patterns: Collection[str], watch: Callable[[], AbstractContextManager[Any]], library: Path
) -> dict[str, Session]:
    seen: list[tuple[float, float]] = []
    before = [caller.short(pattern) for pattern in range(len(patterns))]
    with watch() as observed:
        until(lambda: observed.attached(caller.process.pid, {str(library)}), "attached")
        until(lambda: estimated(observed) is not None, "tried")
        for pattern in range(len(patterns)):
            counted = estimated(observed)
            seen.append((caller.short(pattern), (estimated(observed) - counted) / ROUNDS))
    after = [caller.short(pattern) for pattern in range(len(patterns))]
    return {name: Session(before[i], seen[i][0], after[i], seen[i][1]) for i, name in enumerate(patterns)}


def ratio(several: Sequence[Session]) -> float | None:
    """Of estimates to what the calls took longer; None where no round was bare.

    The nearer to 1 of two: the least of each, where a session may be disturbed, and the median of the sessions' own
    ratios, where the machine is faster in one session than in another.
    """
    alone = [it for it in several if it.alone]
    if not alone:
        return None
    bare = min(min(it.before, it.after) for it in alone)
    least = min(it.estimate for it in alone) / (min(it.observed for it in alone) - bare)
    own = statistics.median(it.estimate / (it.observed - min(it.before, it.after)) for it in alone)
    return min(least, own, key=lambda ratio: abs(ratio - 1))


@pytest.mark.parametrize(
    ("begin", "patterns", "library", "watch"),
    [(CUDA, CUDA_PATTERNS, "libcuda.so.1", observe), (NCCL, NCCL_PATTERNS, "libnccl.so.2", nccl_node.observe)],
    ids=["cuda", "nccl"],
)
def test_overhead(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    begin: str,
    patterns: Mapping[str, str],
    library: str,
    watch: Callable[[], AbstractContextManager[Any]],
) -> None:
    """Within 15 % of what the calls take longer by the thread's own clock, for each pattern.

    Bare and observed rounds alternate with the exporter coming and going. A short one of many rounds is compared,
    for that is what the estimate is made of too; on a busy machine it takes more sessions to a quiet one.
    """
    ours = Path(shutil.copy(BUILD / library, tmp_path))
    choose = targets.choose_lister
    monkeypatch.setattr(targets, "choose_lister", lambda proc: Only(choose(proc), ours))
    sessions: list[dict[str, Session]] = []
    ratios: dict[str, float | None] = {}
    with calling(tmp_path, begin, patterns, library) as caller:
        for _ in range(SESSIONS):
            sessions.append(session(caller, patterns, watch, ours))
            ratios = {name: ratio([it[name] for it in sessions]) for name in patterns}
            if len(sessions) > 1 and all(it and abs(it - 1) <= TOLERANCE for it in ratios.values()):
                return
    if None in ratios.values():
        pytest.skip("another exporter on this machine probes the same library at times: there is no bare call")
    pytest.fail(f"estimates to what calls take longer: {ratios}")
