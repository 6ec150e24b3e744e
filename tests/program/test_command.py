"""The command as a person or systemd uses it: flags, files of settings, signals and its output."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.program.process import COMMAND, ROOT, WITHOUT_CAPABILITIES, Exporter, needs_root, once, run

__all__ = ["run"]

ALONE = "--collector.disable-defaults"


def test_signal_twice(run: Callable[..., Exporter]) -> None:
    """Two signals at once, as timeout(1) sends them, are one end."""
    exporter = run(ALONE).await_ready()
    exporter.process.send_signal(signal.SIGTERM)

    assert 0 == exporter.end()


def test_log_is_logfmt_or_json(run: Callable[..., Exporter]) -> None:
    """Every line of the log is whole in the form that was chosen."""
    exporter = run(ALONE, "--log.format=json").await_ready()
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
        (["--otlp.endpoint=nowhere"], {}, "otlp.endpoint: 'nowhere' is not a URL such as http://host:4318"),
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


def test_port_in_use() -> None:
    """A port that is taken is one clear error and exit code 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = once(ALONE, f"--web.listen-address={address}")

    assert 1 == done.returncode
    (line,) = done.stderr.splitlines()
    assert f"cannot listen on {address}: Address already in use" in line


def test_reload_over_http(run: Callable[..., Exporter], tmp_path: Path) -> None:
    """POST /-/reload reads the file again too, and answers with what was wrong."""
    file = tmp_path / "c.yaml"
    file.write_text("")
    exporter = run(ALONE, f"--config.file={file}").await_ready()
    assert 200 == exporter.get("/-/reload", b" ")[0]

    file.write_text("zzz: 1\n")
    status, text = exporter.get("/-/reload", b" ")

    assert 500 == status
    assert f"{file}:1: unknown key 'zzz'" in text


def test_systemd_is_notified(run: Callable[..., Exporter], tmp_path: Path) -> None:
    """systemd hears of ready, reloading and stopping, and twice per watchdog time that we are alive."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind(str(tmp_path / "notify"))
        inbox.settimeout(60)
        exporter = run(ALONE, NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="1000000")
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


def test_a_hangup_during_the_start() -> None:
    """SIGHUP does not end the program before it handles it: its imports take a second or two on a busy machine."""
    program = """if True:
        import os, signal, sys
        from exporter import __main__, shortage
        shortage.foreseen = lambda: os.kill(os.getpid(), signal.SIGHUP) or "it goes on"
        sys.exit(__main__.main([]))
    """
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert (1, "accel-exporter: it goes on\n") == (done.returncode, done.stderr)


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


@needs_root
@pytest.mark.parametrize(
    "command", [f"doctor {ALONE}", f"doctor --json {ALONE}", "--help", "--version", "check-custom {folder}"]
)
@pytest.mark.parametrize(
    ("redirection", "statuses", "error"),
    [
        (">&3", {128 + signal.SIGPIPE}, ""),
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
        ["bash", "-c", f"exec 3> >(true); wait $!; {words}"],  # 3 is a pipe of which the reader has gone
        cwd=ROOT,
        env=buffered,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (True, error) == (done.returncode in statuses, done.stderr), done


def test_doctor_without_capabilities() -> None:
    """Without capabilities the doctor names what to do, exits with 1 and never shows a traceback."""
    done = once("doctor", "--check", "--json", prefix=tuple(WITHOUT_CAPABILITIES))

    findings = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert 1 == done.returncode
    assert ("fail", True) == (findings["capabilities"]["status"], bool(findings["capabilities"]["do"]))
    assert "fail" == findings["attaching"]["status"]
    assert "Traceback" not in done.stderr + done.stdout
