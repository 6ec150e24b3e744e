"""The demo as a person runs it: the real exporter and the real synthetic job, in a pipe and on a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import psutil
import pytest

from deploy.demo import __main__ as demo
from tests import workers
from tests.bpf.cuda_node import build_standins
from tests.support import PATIENCE

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "deploy.demo", "--interval=0.5"]


@pytest.fixture(autouse=True)
def _of_this_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in workers.environment(tmp_path).items():
        monkeypatch.setenv(variable, value)


@pytest.fixture(autouse=True)
def _nothing_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every process that a test starts carries a mark in its environment; none of them outlives the test."""
    mark = str(uuid.uuid4())
    monkeypatch.setenv("DEMO_TEST", mark)
    yield
    # A process is about to end when its parent has ended.
    _, left = psutil.wait_procs(
        [process for process in psutil.process_iter() if _marked(process, mark)], timeout=PATIENCE
    )
    commands = []
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            commands.append(process.cmdline())
            process.kill()  # other tests would see its jobs
    assert [] == commands


def _marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.pid != os.getpid() and process.environ().get("DEMO_TEST") == mark
    except psutil.Error:
        return False


@pytest.fixture(scope="module")
def standins() -> None:
    build_standins()


@pytest.mark.needs_bpf
def test_in_a_pipe_it_prints_a_line_a_scrape(standins: None) -> None:
    """Launches of the synthetic job are counted, its memory is in use, and the demo ends by itself with status 0."""
    done = _run([*COMMAND, "--seconds=4", "--listen=[::]:0"])
    assert (0, "") == (done.returncode, done.stderr)
    lines = [line for line in done.stdout.splitlines() if line.startswith("launches/s ")]
    assert len(lines) >= 2  # eight, unless the machine is busy
    launches = [_number(r"launches/s ([\d,]+)", line) for line in lines[1:]]
    assert any(launches), launches  # the job may not run for half a second
    assert _number(r"in use .*?device ([\d.]+) ", lines[-1]) > 0
    assert _number(r"probes (\d+) attached", lines[-1]) > 0
    assert "\x1b" not in done.stdout


def lines_until(conditions: Collection[Callable[[str], object]], *arguments: str) -> list[str]:
    """Run the demo until each condition holds for a line, end it with Ctrl-C, and return its lines."""
    with subprocess.Popen([*COMMAND, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout and running.stderr
        lines, missing, deadline = list[str](), [*conditions], time.monotonic() + 2 * PATIENCE
        for line in running.stdout:
            lines += [line.decode()] if line.startswith(b"launches/s ") else []
            missing = [it for it in missing if not (lines and it(lines[-1]))]
            if not missing or time.monotonic() > deadline:
                break
        running.send_signal(signal.SIGINT)
        rest, errors = running.communicate(timeout=PATIENCE)
        assert (0, b"") == (running.returncode, errors), rest
    assert not missing, (missing, lines)
    return lines


def _number(pattern: str, line: str) -> float:
    found = re.search(pattern, line)
    assert found, f"{pattern!r} is not in {line!r}"
    return float(found[1].replace(",", ""))


def shows_the_gpu(line: str) -> bool:
    gpu = re.search(r"GPU 0 use \d+% · memory 42.0 GiB of 79.6 GiB · tensor \d+% · \d+ W · \d+ °C", line)
    shown = ("its share memory 5.0 GiB · sm 57% · memory 34%", "Xids 79 on GPU 0: RESTART_BM (1)")
    return bool(gpu) and all(it in line for it in shown)


def shows_the_late_rank(line: str) -> bool:
    """Return whether the lags since the last line are as expected: on a busy machine others may be late too."""
    found = re.search(
        r"NCCL 4 ranks · .*"
        r"ranks late by rank 0 (\S+ \S+) · rank 1 (\S+ \S+) · rank 2 (\S+) ms · rank 3 (\S+ \S+) \|",
        line,
    )
    if not found or not 30 <= float(found[3]) <= 60:
        return False
    return all(float(lag.split()[0]) < 30 or lag.endswith("µs") for lag in (found[1], found[2], found[4]))


@pytest.mark.needs_bpf
def test_the_gpu_the_jobs_share_an_xid_and_the_late_rank(standins: None) -> None:
    """The GPU's line, what the job has of it by its true pid, and the Xid of the flag are all shown. Of four ranks the
    one that comes 35 ms late is shown with that lag, the others with far less.
    """
    assert "Xids - " in lines_until((shows_the_gpu, shows_the_late_rank), "--xid=79")[0]


@pytest.mark.needs_bpf
def test_ctrl_c_on_a_terminal_ends_it_cleanly(standins: None) -> None:
    """The demo draws in place, the key x makes an Xid; Ctrl-C ends all with status 0, the cursor restored."""
    master, slave = pty.openpty()
    running = subprocess.Popen(
        COMMAND,
        cwd=ROOT,
        env=os.environ | {"TERM": "xterm"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=_controlling,
    )
    os.close(slave)
    screen = _read_until(master, lambda text: text.count("launches/s") >= 3)
    os.write(master, b"x")
    screen += _read_until(master, lambda text: "94 on GPU 0" in text)
    os.write(master, b"\x03")
    screen += _read_until(master, lambda text: False)
    assert 0 == running.wait(timeout=PATIENCE), screen[-3000:]
    os.close(master)
    assert demo.HIDE_CURSOR in screen and screen.rindex(demo.SHOW_CURSOR) > screen.rindex("launches/s")
    assert "94 on GPU 0: " in screen
    assert "Traceback" not in screen


def _controlling() -> None:
    """Make standard input the terminal of the new session, so that a Ctrl-C typed there becomes a signal.

    It is ignored at first, as in what a script runs in the background.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.close(os.open(os.ttyname(0), os.O_RDWR))


def _read_until(terminal: int, enough: Callable[[str], bool]) -> str:
    text, deadline = "", time.monotonic() + PATIENCE
    while not enough(text) and time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                text += os.read(terminal, 65536).decode(errors="replace")
            except OSError:  # the other end is closed: the demo has ended
                break
    return text


@pytest.mark.needs_bpf
@pytest.mark.parametrize("address", ["[::1]:0", "localhost:0"])
def test_every_form_of_address(standins: None, address: str) -> None:
    """All addresses that the exporter takes are scraped by the demo: of IPv6 alone, and by name; without a host in
    other tests, as :0 and [::]:0.
    """
    done = _run([*COMMAND, "--seconds=1", f"--listen={address}"])
    assert (0, "") == (done.returncode, done.stderr)
    assert "launches/s " in done.stdout


@pytest.mark.parametrize("address", ["foo", "127.0.0.1:99999", "::1:19777", "192.0.2.7:19777"])
def test_a_wrong_address_is_one_sentence(address: str) -> None:
    """Text that is no address, and an address of another machine, are named; the exit code is that of wrong flags."""
    done = _run([*COMMAND, f"--listen={address}"])
    assert (2, "") == (done.returncode, done.stdout)
    assert re.fullmatch(rf"demo: [^\n]*{re.escape(address)}[^\n]*\n", done.stderr), done.stderr


def test_a_port_in_use() -> None:
    """Another port of the same host is chosen by the kernel, and nobody else can take it meanwhile."""
    with demo.listening("127.0.0.1:0") as taken:
        host, port = taken.getsockname()
        with demo.listening(f"{host}:{port}") as other:
            assert (host, True) == (other.getsockname()[0], other.getsockname()[1] != port)


@pytest.mark.needs_bpf
def test_a_killed_demo_leaves_nothing_behind(standins: None) -> None:
    """SIGKILL gives the demo no chance to end its exporter and its jobs: the kernel does."""
    with subprocess.Popen([*COMMAND, "--listen=:0"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout
        assert any(line.startswith("launches/s ") for line in running.stdout)
        children = psutil.Process(running.pid).children(recursive=True)
        running.kill()
    assert len(children) >= 2 + 4 + 1
    _, left = psutil.wait_procs(children, timeout=PATIENCE)
    assert [] == left


@pytest.mark.needs_bpf
@pytest.mark.parametrize("seconds", [2, 10])
def test_make_that_is_ended_by_timeout(standins: None, seconds: int) -> None:
    """The demo gets two signals, from timeout and from make, during its start or later, and ends all processes."""
    done = _run(["timeout", str(seconds), "make", "demo", "ARGS=--listen :0"])
    assert 124 == done.returncode
    assert "Traceback" not in done.stderr


@pytest.mark.needs_bpf
@pytest.mark.parametrize(
    ("redirection", "status", "error"),
    [
        ("<&-", 0, ""),
        (">&-", 0, ""),
        ("<&- >&-", 0, ""),
        (">/dev/full", 1, "demo: cannot write: No space left on device\n"),
        ("| head -n 1", 128 + signal.SIGPIPE, ""),
    ],
)
def test_streams_that_do_not_work(standins: None, redirection: str, status: int, error: str) -> None:
    """Closed streams, a full device and a reader that goes are no tracebacks."""
    words = " ".join([*COMMAND, "--seconds=2", "--listen=127.0.0.1:0", redirection])
    done = _run(["bash", "-c", f"{words}; exit ${{PIPESTATUS[0]}}"])
    assert (status, error) == (done.returncode, done.stderr)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)


def test_without_root_it_names_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Not being root is one sentence and status 1, and nothing is started."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["demo"])
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        assert 1 == demo.main()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert "demo: attaching probes needs root: run `sudo make demo`\n" == capsys.readouterr().err


def test_a_job_that_cannot_start_is_one_sentence(tmp_path: Path) -> None:
    """A stand-in that was not built is named together with the command that builds it."""
    expected = pytest.raises(demo.DemoError, match="cannot start /nonexistent/workload: .*`make standins` builds it")
    with (tmp_path / "log").open("a+b") as log, demo.Demo("http://127.0.0.1:1/", log) as running, expected:
        running.start("the job", ["/nonexistent/workload"])


def test_a_process_that_ends_is_shown_with_its_output(tmp_path: Path) -> None:
    """The demo's error after the end of the exporter has its status and the end of its output."""
    with (tmp_path / "log").open("a+b") as log, demo.Demo("http://127.0.0.1:1/", log) as running:
        running.start("the exporter", ["sh", "-c", "echo no such flag; exit 2"])
        with pytest.raises(demo.DemoError, match="(?s)^the exporter ended with status 2; .*\nno such flag"):
            running.await_ready()
