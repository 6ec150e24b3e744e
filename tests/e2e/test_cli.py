"""The real process: flags, signals, settings, privileges and the doctor, as a person or systemd uses them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from exporter.bpf import privileges
from tests.bpf.cuda_node import build_standins
from tests.support import PATIENCE, family

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "exporter"]
WITHOUT_CAPABILITIES = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to be without")


def once(*arguments: str, prefix: tuple[str, ...] = (), **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    return subprocess.run(
        [*prefix, *COMMAND, *arguments],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


class Exporter:
    """A running exporter on a free port, its log in a file."""

    def __init__(self, folder: Path, *arguments: str, prefix: tuple[str, ...] = (), **variables: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*prefix, *COMMAND, f"--web.listen-address={self.address}", *arguments],
                cwd=ROOT,
                env=os.environ | variables,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def get(self, path: str, data: bytes | None = None) -> tuple[int, str]:
        request = urllib.request.Request(f"http://{self.address}{path}", data, method="POST" if data else "GET")
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def value(self, series: str) -> float | None:
        """The value of a series on /metrics, by its whole text before the value."""
        found = re.search(rf"^{re.escape(series)} (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        return float(found[1]) if found else None

    def family(self, name: str) -> dict[str, float]:
        """The values of a metric's series on /metrics, by the text of their labels."""
        return family(self.get("/metrics")[1], name)

    def await_ready(self) -> Exporter:
        self.await_(lambda: self.get("/-/ready")[0] == 200)
        return self

    def await_(self, happened: Callable[[], bool], seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log
            with contextlib.suppress(OSError):
                if happened():
                    return
            time.sleep(0.05)
        pytest.fail(f"it did not happen within {seconds} s; the log: {self.log}")

    def status(self, field: str) -> set[str]:
        """The values of a field of /proc/PID/status in all threads."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        texts = []
        for task in tasks.iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
                texts.append((task / "status").read_text())
        return {value for text in texts for value in re.findall(rf"^{field}:\s*(\S+)$", text, re.MULTILINE)}

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """The exit code after a signal, and the seconds it took."""
        began = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(PATIENCE), time.monotonic() - began


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Exporter]]:
    started: list[Exporter] = []

    def start(*arguments: str, **words: object) -> Exporter:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Exporter(folder, *arguments, **words))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for exporter in started:
        if exporter.process.poll() is None:
            exporter.process.kill()
            exporter.process.wait(PATIENCE)


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
    """The exporter serves its metrics, and ends within five seconds of a signal."""
    exporter = run().await_ready()
    assert exporter.value("accel_exporter_config_last_reload_successful") == 1

    code, seconds = exporter.end(number)

    assert 0 == code
    assert seconds < 5
    assert "Traceback" not in exporter.log


def test_signal_twice(run: Callable[..., Exporter]) -> None:
    """Two signals at once, as timeout(1) sends them, are one end."""
    exporter = run().await_ready()
    exporter.process.send_signal(signal.SIGTERM)

    assert 0 == exporter.end()[0]


def test_log_is_logfmt_or_json(run: Callable[..., Exporter]) -> None:
    """Every line of the log is whole in the form that was chosen."""
    exporter = run("--log.format=json").await_ready()
    exporter.end()
    lines = [json.loads(line) for line in exporter.log.splitlines()]

    assert {"ts", "level", "source", "msg"} <= set.intersection(*(set(line) for line in lines))


@pytest.mark.parametrize(
    ("arguments", "variables", "expected"),
    [
        (["--colector.cuda"], {}, "unknown flag '--colector.cuda'; did you mean --collector.cuda?"),
        (["docter"], {}, "unknown argument 'docter'; see --help"),
        (["--check"], {}, "--check and --json are for `accel-exporter doctor`"),
        ([], {"ACCEL_EXPORTER_LOG_LEVEL": "loud"}, "variable ACCEL_EXPORTER_LOG_LEVEL: 'loud' is not one of debug"),
        (
            ["--collector.cuda.spans-per-second=2000000000"],
            {},
            "flag --collector.cuda.spans-per-second: '2000000000' is not a whole number, 0 to 1073741824",
        ),
        (
            ["doctor"],
            {"ACCEL_EXPORTER_COLLECTOR_NVML_FAST_INTERVAL": "0.1"},
            "variable ACCEL_EXPORTER_COLLECTOR_NVML_FAST_INTERVAL: '0.1' is not a number, 0.2 to 86400",
        ),
        (["--web.telemetry-path=x"], {}, "web.telemetry-path: 'x' is no path to serve on, such as /metrics"),
        (["--otlp.endpoint=nowhere"], {}, "otlp.endpoint: 'nowhere' has to start with http:// or https://"),
    ],
)
def test_wrong_settings(arguments: list[str], variables: Mapping[str, str], expected: str) -> None:
    """Wrong settings are one line and exit code 2."""
    done = once(*arguments, **variables)

    assert (2, "") == (done.returncode, done.stdout)
    assert [True] == [line.startswith(f"accel-exporter: {expected}") for line in done.stderr.splitlines()]


def test_wrong_file(tmp_path: Path) -> None:
    """A wrong key of the file is named with file and line."""
    file = tmp_path / "c.yaml"
    file.write_text("log:\n  levl: info\n")

    done = once(f"--config.file={file}")

    expected = f"accel-exporter: {file}:2: unknown key 'log.levl'; did you mean log.level?\n"
    assert (2, expected) == (done.returncode, done.stderr)


def test_port_in_use(run: Callable[..., Exporter]) -> None:
    """A port that is taken is one clear error and exit code 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = once(f"--web.listen-address={address}")

    assert 1 == done.returncode
    (line,) = done.stderr.splitlines()
    assert f"cannot listen on {address}: Address already in use" in line


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
    assert "settings were not reloaded, those before stay in force" in exporter.log
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
    assert "settings of web have changed; they count after a restart" in exporter.log
    assert "collectors: none" in exporter.log
    assert 400 == exporter.get("/metrics?collect[]=cuda")[0]
    assert 0 == exporter.end()[0]


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
    assert 0 == exporter.end()[0]
    assert "level=error" not in exporter.log


def test_reload_over_http(run: Callable[..., Exporter], tmp_path: Path) -> None:
    """POST /-/reload does the same and answers with what was wrong."""
    file = tmp_path / "c.yaml"
    file.write_text("")
    exporter = run(f"--config.file={file}").await_ready()
    assert 200 == exporter.get("/-/reload", b" ")[0]

    file.write_text("zzz: 1\n")
    status, text = exporter.get("/-/reload", b" ")

    assert 500 == status
    assert f"{file}:1: unknown key 'zzz'" in text


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
    assert 1 == exporter.log.count("probes will not work without CAP_BPF, CAP_PERFMON")
    assert "Traceback" not in exporter.log
    assert len([line for line in exporter.log.splitlines() if "level=info" not in line]) <= 3
    assert 0 == exporter.end()[0]


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
        assert exporter.end()[1] < 5
    assert [] == [line for line in exporter.log.splitlines() if not line.startswith("ts=")]


def test_systemd_is_notified(run: Callable[..., Exporter], tmp_path: Path) -> None:
    """systemd hears of ready, reloading and stopping, and twice per watchdog time that we are alive."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind(str(tmp_path / "notify"))
        inbox.settimeout(60)
        exporter = run(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="400000")
        heard: list[bytes] = []
        while b"READY=1" not in heard or heard.count(b"WATCHDOG=1") < 2:  # at once: its queue holds ten
            heard.append(inbox.recv(4096).partition(b"\n")[0])
        exporter.process.send_signal(signal.SIGHUP)
        while b"RELOADING=1" not in heard:
            heard.append(inbox.recv(4096).partition(b"\n")[0])
        exporter.end()
        while b"STOPPING=1" not in heard:
            heard.append(inbox.recv(4096).partition(b"\n")[0])

    assert {b"READY=1", b"WATCHDOG=1", b"RELOADING=1", b"STOPPING=1"} == set(heard)
    assert heard.index(b"READY=1") < heard.index(b"RELOADING=1")


def test_version() -> None:
    """--version prints version, revision, date, Python and platform in one line."""
    done = once("--version")

    assert 0 == done.returncode
    assert re.fullmatch(r"accel-exporter \S+ \(revision \S+, built \S+, Python 3\.\S+, linux/\S+\)\n", done.stdout)


def test_help() -> None:
    """--help is for people: flags in groups, each with its default."""
    done = once("--help")

    assert 0 == done.returncode
    assert "\nHTTP surface:\n" in done.stdout
    assert "(default: :19445)" in " ".join(done.stdout.split())


@pytest.mark.needs_bpf
def test_doctor_here() -> None:
    """On a machine that can run probes the doctor finds nothing that fails, also when it attaches everything."""
    done = once("doctor", "--check", "--web.listen-address=127.0.0.1:0")

    assert (0, "") == (done.returncode, done.stderr), done.stdout
    assert " 0 fail" in done.stdout.splitlines()[-1]
    assert "\x1b" not in done.stdout


@needs_root
@pytest.mark.parametrize("command", ["doctor", "doctor --json", "--help", "--version", "check-custom {folder}"])
@pytest.mark.parametrize(
    ("redirection", "statuses", "error"),
    [
        ("| true", {128 + signal.SIGPIPE}, ""),
        (">/dev/full", {1}, "accel-exporter: cannot write: No space left on device\n"),
        (">&-", {0, 1}, ""),  # the doctor's own
        ("<&- >&- 2>&-", {0, 1}, ""),
    ],
)
def test_output_that_cannot_be_written(
    tmp_path: Path, command: str, redirection: str, statuses: set[int], error: str
) -> None:
    """A reader that goes, a full device and closed streams: no traceback, at most a sentence, the usual exit code."""
    words = " ".join([*COMMAND, command.format(folder=tmp_path), redirection])
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        ["bash", "-c", f"{words}; exit ${{PIPESTATUS[0]}}"],
        cwd=ROOT,
        env=buffered,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (True, error) == (done.returncode in statuses, done.stderr), done


def test_doctor_without_capabilities() -> None:
    """Where nothing may be observed the doctor names what to do, exits with 1 and never shows a traceback."""
    done = once("doctor", "--check", "--json", prefix=tuple(WITHOUT_CAPABILITIES))

    findings = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert 1 == done.returncode
    assert ("fail", True) == (findings["capabilities"]["status"], bool(findings["capabilities"]["do"]))
    assert "fail" == findings["attaching"]["status"]
    assert "Traceback" not in done.stderr + done.stdout
