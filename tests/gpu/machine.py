"""Machine of the checks: one with a GPU, or the stand-ins; the exporter and jobs as processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

from deploy.demo.summary import Scrape, parse
from tests.gpu.outcome import CannotRun
from tests.standins.nvml import Scenario
from tests.support import free_port

ROOT = Path(__file__).parents[2]
STANDINS = ROOT / "tests" / "standins" / "build"
WITHIN, LONGEST = 60.0, 300.0
"""Seconds for the exporter and small programs, and for one loop of a job."""
QUICK = tuple(
    f"--collector.nvml.{readings}-interval={s}" for readings, s in (("fast", 1), ("processes", 1), ("slow", 2))
)


@dataclass
class Machine:
    """`scenario` is NVML's stand-in's, None on a real GPU; times in seconds, `pairs` of runs with and without."""

    dry: bool
    environment: Mapping[str, str]
    scenario: Scenario | None = None
    pairs: int = 10
    soak: float = 600.0
    wheels: tuple[Path, ...] = ()
    _torch: list[str] = field(default_factory=list)

    def library(self, name: str) -> Path:
        """The file of a shared library by the start of its name. Raises CannotRun."""
        folders = [*self.wheels]
        folders += [Path(it) for it in self.environment.get("LD_LIBRARY_PATH", "").split(":") if it]
        folders += [*Path(sysconfig.get_path("purelib"), "nvidia").glob("*/lib")]
        for folder in folders:
            for found in sorted(folder.glob(f"{name}*")):
                return found.resolve()
        if not self.dry:
            cached = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
            if found_there := re.search(rf"^\s*{re.escape(name)}.*=> (\S+)$", cached, re.MULTILINE):
                return Path(found_there[1]).resolve()
        raise CannotRun(f"there is no {name} on this machine; LD_LIBRARY_PATH may name its folder")

    def python(self, *arguments: str, **options: Any) -> Any:
        """Run a module of this repository; return its JSON output. Raises CannotRun with its last error."""
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=WITHIN,
            check=False,
            **options,
        )
        if done.returncode:
            errors = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
            raise CannotRun(f"{arguments[0]}: {errors[-1]}")
        return json.loads(done.stdout.splitlines()[-1])

    @contextlib.contextmanager
    def job(self, *loops: str, also: tuple[str, ...] = ()) -> Iterator[Job]:
        """A job that can do these loops, and `also` others if possible: with PyTorch, or by itself in a dry run.

        Raises CannotRun.
        """
        module = "tests.gpu.jobs.standin" if self.dry else "tests.gpu.jobs.pytorch"
        with Job([module, *loops, *also], {**os.environ, **self.environment}) as job:
            missing = sorted(set(loops) - set(job.loops))
            if missing:
                raise CannotRun(f"the job cannot do {', '.join(missing)}: {job.why}")
            if self.scenario is not None and job.pid:
                self.scenario.set({"gpu0.process.0": f"{job.pid} compute {8 << 30} 50 20"})
            yield job

    def exporter(self, *arguments: str) -> Exporter:
        """A running exporter."""
        return Exporter(arguments, {**os.environ, **self.environment})


class Exporter:
    """The exporter on a free port, to be used with `with`. Raises CannotRun where it does not start."""

    def __init__(self, arguments: tuple[str, ...], environment: Mapping[str, str]) -> None:
        self._address = f"127.0.0.1:{free_port()}"
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with this
        self._layers = ("driver", "runtime") if "--collector.cuda.layers=both" in arguments else ("driver",)
        command = [
            sys.executable,
            "-m",
            "exporter",
            f"--web.listen-address={self._address}",
            "--profile=debug",
            *QUICK,
            *arguments,
        ]
        self.process = psutil.Popen(command, cwd=ROOT, env=environment, stderr=self._log, stdout=subprocess.DEVNULL)

    def __enter__(self) -> Self:
        try:
            self.until(lambda: bool(self.get("/-/ready")), "it was not ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self.process.terminate()
        try:
            self.process.wait(20)
        except psutil.TimeoutExpired:
            self.process.kill()
            self.process.wait(20)
        self._log.close()

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self._address}{path}", timeout=30) as answer:
            text: str = answer.read().decode()
        return text

    def scrape(self) -> Scrape:
        began = time.monotonic()
        text = self.get("/metrics")
        return Scrape(at=time.monotonic(), seconds=time.monotonic() - began, series=parse(text))

    def until(self, happened: Callable[[], bool], otherwise: str, seconds: float = WITHIN) -> None:
        """Waits for something. Raises CannotRun with the log's end, RuntimeError when the exporter has ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError):
                if happened():
                    return
            time.sleep(0.2)
        self._log.seek(0)
        log = " / ".join(self._log.read().splitlines()[-3:])
        if self.process.poll() is not None:
            raise RuntimeError(f"the exporter ended; its log ends with: {log or 'nothing'}")
        raise CannotRun(f"{otherwise} within {seconds:.0f} s; the exporter's log ends with: {log or 'nothing'}")

    def await_attached(self) -> None:
        """Until all functions are probed, returns too, which is later: a job that starts then is seen from its start.

        Some kernels allow no return probes: then it goes on without.
        """

        def attached() -> bool:
            found = [value for _, value in self.scrape().rows("accel_exporter_probe_attached", probe="cuda")]
            return bool(found) and all(found)

        with contextlib.suppress(CannotRun):
            self.until(attached, "not all functions are probed")
        time.sleep(1 / os.sysconf("SC_CLK_TCK"))  # processes that start within a tick of the clock look alike

    def watch(self, job: Job) -> None:
        """Until the probes are attached and count the job's calls. Raises CannotRun."""

        def counted() -> bool:
            job.run("tiny", 1)
            seen = self.scrape()
            if seen.total("accel_exporter_collector_available", collector="cuda") == 0:
                return False
            launches = seen.by("api_layer", "gpu_cuda_kernel_launch_calls_total", pid=str(job.pid))
            return all(launches.get(layer) for layer in self._layers)

        self.until(counted, "no launch of the job was seen")


class Job:
    """A process that prints what it can do, then does a loop at each line (JSON) and prints what it did."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with this
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        try:
            first = self._answer()
        except BaseException:
            self.__exit__()
            raise
        self.loops: Mapping[str, object] = dict.fromkeys(first["loops"])
        self.uuid: str = first["uuid"]
        self.why: str = first.get("why", "")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()

    def run(self, loop: str, steps: int) -> dict[str, Any]:
        """Return the job's own account of a run. Raises CannotRun when the job ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"loop": loop, "steps": steps}) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], LONGEST)[0]:
            raise CannotRun(f"the job did not answer within {LONGEST:.0f} s")
        line = self._process.stdout.readline()
        if line.startswith("{"):
            answer: dict[str, Any] = json.loads(line)
            return answer
        self._log.seek(0)
        errors = self._log.read().strip().splitlines() or ["nothing"]
        raise CannotRun(f"the job ended; its last error: {errors[-1]}")
