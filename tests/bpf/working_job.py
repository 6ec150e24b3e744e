"""A process that calls a library without pause, and counts its calls and their CPU time itself, for tests."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from tests.bpf.cuda_node import BUILD, build_standins

T = TypeVar("T")

JOB = """
#include <stdio.h>
#include <time.h>
#include <unistd.h>
DECLARATIONS
static long now(int clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000 + t.tv_nsec;
}
int main(void)
{
	long ms, own, waits, pause, total = 0;
	BEGIN
	puts("ready");
	for (fflush(stdout); scanf("%ld %ld %ld %ld", &ms, &own, &waits, &pause) == 4; fflush(stdout)) {
		long begun = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID), made = 0;
		while (now(CLOCK_MONOTONIC) < begun + ms * 1000000) {
			for (int i = 0; i < AT_ONCE; i++) {
				for (volatile long turn = 0; turn < own; turn++)
					;
				CALL
			}
			made += AT_ONCE;
			if (waits) {
				WAIT
			}
			if (pause)
				usleep(pause);
		}
		total += made;
		printf("%ld %ld %ld\\n", made, now(CLOCK_PROCESS_CPUTIME_ID) - cpu, total);
	}
	return 0;
}
"""


@dataclass(frozen=True)
class Stretch:
    """Some time of the job: calls in it and their CPU time in seconds, and all calls until its end."""

    calls: int
    cpu: float
    total: int

    @property
    def each(self) -> float:
        """Seconds of a call."""
        return self.cpu / self.calls


@dataclass(frozen=True)
class Api:
    """A library, and C for it: `begin` is what a process begins with, `call` is what is counted, `at_once` in a row."""

    library: str
    declarations: str
    begin: str
    call: str
    wait: str = ""
    at_once: int = 100

    @property
    def definitions(self) -> list[str]:
        """Arguments of the compiler."""
        texts = {"DECLARATIONS": self.declarations, "BEGIN": self.begin, "CALL": self.call, "WAIT": self.wait}
        return [f"-D{name}={text}" for name, text in texts.items()] + [f"-DAT_ONCE={self.at_once}"]


def _launching(library: str, launch: str, wait: str, declarations: str = "", begin: str = "") -> Api:
    grid = ", ".join(["unsigned"] * 7)
    return Api(
        library,
        f"int {wait}(void *), {launch}(void *, {grid}, void *, void **, void **); {declarations}",
        begin,
        f"{launch}(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);",
        f"{wait}(0);",
    )


CUDA = _launching(
    *("libcuda.so.1", "cuLaunchKernel", "cuStreamSynchronize"),
    "int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int);",
    "void *context; cuInit(0); cuCtxCreate_v2(&context, 0, 0);",
)
HIP = _launching("libamdhip64.so.5", "hipModuleLaunchKernel", "hipStreamSynchronize")


class Job:
    """A process; several in one folder use one file. As a context, it is killed at the end."""

    def __init__(self, api: Api, folder: Path) -> None:
        self.library = folder / api.library
        if not self.library.exists():
            build_standins()
            shutil.copy(BUILD / api.library, self.library)
            command = ["gcc", "-O2", *api.definitions, f"-Wl,-rpath,{folder}", "-o", folder / "job"]
            subprocess.run([*command, "-x", "c", "-", "-x", "none", self.library], input=JOB, text=True, check=True)
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([folder / "job"], stdin=pipe, stdout=pipe, text=True, bufsize=1)
        self._line()

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def work(self, seconds: float, own: int = 0, waits: bool = False, pause_us: int = 0) -> Stretch:
        """Call for so long, after `own` turns of a loop each; after each `at_once` of them a wait, and a pause."""
        assert self.process.stdin
        self.process.stdin.write(f"{seconds * 1000:.0f} {own} {waits:d} {pause_us}\n")
        made, cpu, total = map(int, self._line().split())
        return Stretch(made, cpu / 1e9, total)

    def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            self.process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


@contextmanager
def background(stretch: Callable[[], T]) -> Iterator[list[T]]:
    """Let a job work in the background, one stretch after the other; what it did is known at the end."""
    done, over = list[T](), threading.Event()

    def work() -> None:
        while not over.is_set():
            done.append(stretch())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()
