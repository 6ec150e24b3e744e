"""A process that launches without pause, and counts its launches and their CPU time itself, for tests."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.bpf.cuda_node import BUILD, build_standins

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
	long ms, own, waits, pause, launches = 0;
	BEGIN
	puts("ready");
	for (fflush(stdout); scanf("%ld %ld %ld %ld", &ms, &own, &waits, &pause) == 4; fflush(stdout)) {
		long begun = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID), made = 0;
		while (now(CLOCK_MONOTONIC) < begun + ms * 1000000) {
			for (int i = 0; i < 100; i++) {
				for (volatile long turn = 0; turn < own; turn++)
					;
				LAUNCH(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
			}
			made += 100;
			if (waits)
				WAIT(0);
			if (pause)
				usleep(pause);
		}
		launches += made;
		printf("%ld %ld %ld\\n", made, now(CLOCK_PROCESS_CPUTIME_ID) - cpu, launches);
	}
	return 0;
}
"""


@dataclass(frozen=True)
class Stretch:
    """Some time of the job: launches in it and their CPU time in seconds, and all launches until its end."""

    launches: int
    cpu: float
    total: int

    @property
    def each(self) -> float:
        """Seconds of a launch."""
        return self.cpu / self.launches


@dataclass(frozen=True)
class Api:
    """A library by its functions: `begin` are the C lines that a process begins with."""

    library: str
    launch: str
    wait: str
    begin: str = ""

    @property
    def definitions(self) -> list[str]:
        """Arguments of the compiler."""
        grid = ", ".join(["unsigned"] * 7)
        declared = f"int {self.wait}(void *), {self.launch}(void *, {grid}, void *, void **, void **);"
        return [f"-DDECLARATIONS={declared}", f"-DBEGIN={self.begin}", f"-DLAUNCH={self.launch}", f"-DWAIT={self.wait}"]


CUDA = Api(
    *("libcuda.so.1", "cuLaunchKernel", "cuStreamSynchronize"),
    "int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int); void *context; cuInit(0); "
    "cuCtxCreate_v2(&context, 0, 0);",
)
HIP = Api("libamdhip64.so.5", "hipModuleLaunchKernel", "hipStreamSynchronize")


class Job:
    """A process; several in one folder use one file."""

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
        """Launches for so long, after `own` turns of a loop each; after each hundred a wait, and a pause."""
        assert self.process.stdin
        self.process.stdin.write(f"{seconds * 1000:.0f} {own} {waits:d} {pause_us}\n")
        made, cpu, total = map(int, self._line().split())
        return Stretch(made, cpu / 1e9, total)

    def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            self.process.communicate()
