"""The real process with probes: its end, reloading, privileges and the doctor."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporter.bpf import privileges
from tests.bpf.cuda_node import build_standins
from tests.program.process import ROOT, WITHOUT_CAPABILITIES, Exporter, needs_root, once, run
from tests.support import PATIENCE

__all__ = ["run"]


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """The stand-in libraries and the job where any user can run them."""
    build_standins()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for file in ("libcuda.so.1", "libcudart.so.12", "workload"):
            shutil.copy(ROOT / "tests" / "standins" / "build" / file, folder)
        yield folder


@contextlib.contextmanager
def job(program: Path, user: int | None = None, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A steady synthetic CUDA job with the stand-ins beside it."""
    process = subprocess.Popen(
        [program, "--steady"],
        env=os.environ | {"LD_LIBRARY_PATH": str(program.parent)} | variables,
        stdout=subprocess.DEVNULL,
        user=user,
        cwd="/",
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_runs_and_ends(run: Callable[..., Exporter], number: signal.Signals) -> None:
    """The exporter serves its metrics, and ends on a signal."""
    exporter = run().await_ready()
    assert exporter.value("accel_exporter_config_last_reload_successful") == 1

    code = exporter.end(number)

    assert 0 == code
    assert "Traceback" not in exporter.log


def test_reload(run: Callable[..., Exporter], tmp_path: Path) -> None:
    """SIGHUP reads the file again; one that is wrong keeps what runs, and both are logged and counted."""
    file = tmp_path / "c.yaml"
    file.write_text("log: {level: info}\n")
    exporter = run(f"--config.file={file}").await_ready()
    first = exporter.value("accel_exporter_config_last_reload_success_timestamp_seconds")
    assert first is not None

    file.write_text("log: {level: loud}\n")
    exporter.process.send_signal(signal.SIGHUP)
    exporter.await_(lambda: exporter.value("accel_exporter_config_last_reload_successful") == 0)
    assert first == exporter.value("accel_exporter_config_last_reload_success_timestamp_seconds")
    exporter.await_(lambda: "settings were not reloaded, those before stay in force" in exporter.log)
    assert "'loud' is not one of debug, info, warn, error" in exporter.log

    file.write_text("collector:\n  ras: {timeout: 601}\n")
    exporter.process.send_signal(signal.SIGHUP)
    wrong = f"{file}:2: collector.ras.timeout: 601 is not a number, 1 to 600"
    exporter.await_(lambda: wrong in exporter.log)
    assert 0 == exporter.value("accel_exporter_config_last_reload_successful")
    assert 1 == exporter.value('accel_exporter_collector_available{collector="ras"}')

    file.write_text("log: {level: debug}\ncollector: {disable-defaults: true}\nweb: {max-requests: 3}\n")
    exporter.process.send_signal(signal.SIGHUP)
    exporter.await_(lambda: exporter.value("accel_exporter_config_last_reload_successful") == 1)
    again = exporter.value("accel_exporter_config_last_reload_success_timestamp_seconds")

    assert again is not None and again > first
    exporter.await_(lambda: "collectors: none" in exporter.log)
    assert "settings of web have changed; they count after a restart" in exporter.log
    assert 400 == exporter.get("/metrics?collect[]=cuda")[0]
    assert 0 == exporter.end()


@pytest.mark.needs_bpf
def test_collector_off_and_on(run: Callable[..., Exporter], tmp_path: Path, public_folder: Path) -> None:
    """A reload detaches a collector that is switched off, and attaches one that is switched on to what runs already."""
    file = tmp_path / "c.yaml"
    file.write_text("collector: {cuda: true}\n")
    exporter = run(f"--config.file={file}").await_ready()
    with job(public_folder / "workload") as process:
        series = f'gpu_cuda_kernel_launch_calls_total{{api_layer="driver",comm="workload",pid="{process.pid}"}}'
        exporter.await_(lambda: bool(exporter.value(series)))

        file.write_text("collector: {cuda: false}\n")
        assert 200 == exporter.get("/-/reload", b" ")[0]
        assert exporter.value(series) is None
        assert "gpu_cuda" not in exporter.get("/metrics")[1]

        file.write_text("collector: {cuda: {enabled: true}}\n")
        assert 200 == exporter.get("/-/reload", b" ")[0]
        exporter.await_(lambda: bool(exporter.value(series)))
    assert 0 == exporter.end()
    assert "level=error" not in exporter.log


@needs_root
def test_capabilities_are_dropped(run: Callable[..., Exporter]) -> None:
    """While running, every thread has the six capabilities that observing needs and no way to more."""
    exporter = run().await_ready()
    needed = sum(1 << number for number in (2, 19, 34, 38, 39, 40))

    assert {f"{needed:016x}"} == exporter.status("CapEff") == exporter.status("CapPrm")
    assert {"1"} == exporter.status("NoNewPrivs")


@needs_root
def test_capabilities_are_kept(run: Callable[..., Exporter]) -> None:
    """--privileges.keep keeps what there was."""
    own = re.search(r"^CapEff:\s*(\S+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert own is not None

    assert {own[1]} == run("--privileges.keep").await_ready().status("CapEff")


@pytest.mark.needs_bpf
@needs_root
def test_unprivileged_user(run: Callable[..., Exporter]) -> None:
    """A user that is not root needs no more than the six as ambient capabilities."""
    kept = (*privileges.OBSERVING, privileges.READING_THE_LOG)
    capabilities = ",".join("+" + name.removeprefix("CAP_").lower() for name in kept)
    only = f"-all,{capabilities}"
    sets = [f"--inh-caps={only}", f"--bounding-set={only}", f"--ambient-caps={only}"]
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *sets]

    exporter = run(prefix=tuple(user)).await_ready()

    assert exporter.value('accel_exporter_collector_success{collector="cuda"}') == 1
    assert exporter.value('accel_exporter_xid_source{source="kmsg"}') == 1
    assert "level=warn" not in exporter.log


@pytest.mark.needs_bpf
@needs_root
def test_statistics(run: Callable[..., Exporter], public_folder: Path) -> None:
    """With --bpf.stats the kernel times the programs, and the capability it takes is given up all the same."""
    exporter = run("--bpf.stats").await_ready()
    with job(public_folder / "workload"):
        exporter.await_(lambda: bool(exporter.value('accel_exporter_probe_run_seconds_total{probe="cuda"}')))

    assert exporter.status("CapEff") == {f"{sum(1 << number for number in (2, 19, 34, 38, 39, 40)):016x}"}


@needs_root
def test_without_capabilities(run: Callable[..., Exporter]) -> None:
    """Without any capability the exporter logs that in one line, and serves what it can without a traceback."""
    exporter = run(prefix=tuple(WITHOUT_CAPABILITIES)).await_ready()

    assert exporter.value('accel_exporter_collector_success{collector="cuda"}') == 0
    exporter.await_(lambda: "probes will not work without CAP_BPF, CAP_PERFMON" in exporter.log)
    assert 1 == exporter.log.count("probes will not work without CAP_BPF, CAP_PERFMON")
    assert "Traceback" not in exporter.log
    assert len([line for line in exporter.log.splitlines() if "level=info" not in line]) <= 3
    assert 0 == exporter.end()


@pytest.mark.needs_bpf
@needs_root
def test_another_pid_namespace(run: Callable[..., Exporter]) -> None:
    """Outside of the host's PID namespace collectors of libraries are not available, and nothing of theirs is 0."""
    inside = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    exporter = run("--collector.cuda", "--collector.nccl", "--collector.verbs", prefix=inside).await_ready()

    page = exporter.get("/metrics")[1]
    for name in ("cuda", "nccl", "verbs", "exits"):
        assert f'accel_exporter_collector_available{{collector="{name}"}} 0' in page
        assert f'accel_exporter_collector_success{{collector="{name}"}} 0' in page
    landing = exporter.get("/")[1]
    assert "no library can be probed: not in the host&#x27;s PID namespace: use hostPID: true" in landing
    assert "CUDA memory</span><b>–</b>" in landing
    assert "No calls of" not in landing
    assert "Traceback" not in exporter.log


@pytest.mark.needs_bpf
@needs_root
def test_hostile_name_of_another_user(run: Callable[..., Exporter], public_folder: Path) -> None:
    """A job of another user that starts later, named with a newline, a quote and bytes that are no text, is covered
    with the capabilities that are left, and its name breaks neither page nor log.
    """
    program = os.fsencode(public_folder) + b'/a"b\nc\xff} 1'
    (public_folder / "workload").rename(os.fsdecode(program))
    exporter = run().await_ready()
    with job(Path(os.fsdecode(program)), user=65534, SLURM_JOB_ID="4242") as process:
        labels = rf'api_layer="driver",comm="a\"b\\nc\\xff}} 1",pid="{process.pid}",slurm_job_id="4242"'
        series = f"gpu_cuda_kernel_launch_calls_total{{{labels}}}"
        exporter.await_(lambda: bool(exporter.value(series)))
        checked = subprocess.run(["promtool", "check", "metrics"], input=exporter.get("/metrics")[1], text=True)
        assert 0 == checked.returncode
        assert 0 == exporter.end()
    assert [] == [line for line in exporter.log.splitlines() if not line.startswith("ts=")]


@pytest.mark.needs_bpf
def test_doctor_here() -> None:
    """On a machine that can run probes the doctor finds nothing that fails, also when it attaches everything."""
    done = once("doctor", "--check", "--web.listen-address=127.0.0.1:0")

    assert (0, "") == (done.returncode, done.stderr), done.stdout
    assert " 0 fail" in done.stdout.splitlines()[-1]
    assert "\x1b" not in done.stdout
