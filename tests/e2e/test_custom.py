"""The real process with probes of a site's own: capabilities dropped, an unprivileged user, reloads, check-custom."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporter.bpf import privileges
from tests.bpf.custom_node import bcc_missing, kernel_headers, put
from tests.program.process import Exporter, needs_root, once, run

__all__ = ["run"]

pytestmark = [
    pytest.mark.needs_bpf,
    needs_root,
    pytest.mark.usefixtures("tracefs"),
    pytest.mark.evidence(feature="custom probes", on="real software"),
]

CODE = """
BPF_ARRAY(calls, u64, 1);
int on_call(void *ctx) { int zero = 0; calls.increment(zero); return 0; }
TRACEPOINT_PROBE(sched, sched_process_fork) { int zero = 0; calls.increment(zero); return 0; }
"""
MEANING = """
probes:
  - {uprobe: getenv, library: libc.so.6, program: on_call}
  - {tracepoint: "sched:sched_process_fork"}
metrics: [{name: site.%s, help: Calls of getenv() and forks., type: counter, map: calls}]
"""
WITHOUT_TRACEFS = """
for place in /sys/kernel/tracing /sys/kernel/debug; do
    while umount --lazy $place 2>/dev/null; do :; done
done
exec "$@"
"""
ON_FORK = (MEANING % "first").replace('"sched:sched_process_fork"', '"sched:sched_process_fork", program: on_fork')
ALONE = ("--collector.disable-defaults", "--custom.interval=200ms")
UP = 'accel_exporter_custom_up{probe="%s"}'


@pytest.fixture(scope="module")
def headers() -> Iterator[str]:
    if missing := bcc_missing():
        pytest.skip(f"no bcc: {missing}; apt-get install python3-bpfcc")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield kernel_headers(Path(folder))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of root's that any user can read."""
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        made.chmod(0o755)
        put(made, "first", CODE, MEANING % "first")
        yield made


@contextlib.contextmanager
def calling_getenv() -> Iterator[None]:
    """Calls the C library's getenv() all the time: on a machine with nothing else to do nobody does in two seconds."""
    libc, ended = ctypes.CDLL(None), threading.Event()

    def call() -> None:
        while not ended.wait(0.05):
            libc.getenv(b"HOME")

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def start(run: Callable[..., Exporter], folder: Path, headers: str, *more: str, **words: object) -> Exporter:
    return run(
        *ALONE, "--profile=debug", f"--custom.dir={folder}", f"--custom.kernel-headers={headers}", *more, **words
    ).await_ready()


def attached(exporter: Exporter, probe: str = "first") -> None:
    exporter.await_(lambda: exporter.value(UP % probe) == 1)
    found = 'placement="emulated",probe="custom_%s",symbol="getenv"} 1\n' % probe  # noqa: UP031  # braces are part of it
    exporter.await_(lambda: found in exporter.get("/metrics")[1])
    with calling_getenv():
        exporter.await_(lambda: (exporter.value(f"site_{probe}_total") or 0) > 0)


def test_capabilities_are_dropped_all_the_same(run: Callable[..., Exporter], folder: Path, headers: str) -> None:
    """Probes compile, attach and are timed with no more capabilities than the shipped ones; it ends within 5 s."""
    exporter = start(run, folder, headers)
    attached(exporter)
    assert {f"{sum(1 << number for number in (2, 19, 34, 38, 39, 40)):016x}"} == exporter.status("CapEff")
    exporter.await_(lambda: bool(exporter.value('accel_exporter_probe_run_seconds_total{probe="custom_first"}')))
    code = exporter.end()
    assert 0 == code


def test_unprivileged_user(run: Callable[..., Exporter], folder: Path, headers: str) -> None:
    """A user that is not root passes its few capabilities on to the processes that compile."""
    kept = (*privileges.OBSERVING, privileges.READING_THE_LOG)
    only = "-all," + ",".join("+" + name.removeprefix("CAP_").lower() for name in kept)
    sets = [f"--inh-caps={only}", f"--bounding-set={only}", f"--ambient-caps={only}"]
    user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *sets)
    exporter = start(run, folder, headers, prefix=user)
    attached(exporter)


def test_a_reload_follows_the_folder(run: Callable[..., Exporter], folder: Path, headers: str) -> None:
    """Files that came, changed and went are followed at SIGHUP; nothing else has to change."""
    exporter = start(run, folder, headers)
    attached(exporter)
    put(folder, "second", CODE, MEANING % "second")
    exporter.process.send_signal(signal.SIGHUP)
    attached(exporter, "second")
    attached(exporter, "first")
    put(folder, "second", CODE.replace("BPF_ARRAY", "nothing"), MEANING % "second")
    exporter.process.send_signal(signal.SIGHUP)
    exporter.await_(lambda: exporter.value(UP % "second") == 0 and "the compiler refuses it" in exporter.get("/")[1])
    attached(exporter, "first")
    for suffix in (".c", ".yaml"):
        (folder / f"first{suffix}").unlink()
    exporter.process.send_signal(signal.SIGHUP)
    exporter.await_(lambda: exporter.value(UP % "first") is None and exporter.value(UP % "second") == 0)


def test_files_of_others_are_not_loaded(run: Callable[..., Exporter], folder: Path, headers: str) -> None:
    """A file of another user is refused in words, and does not reach the compiler. A reload follows the remedy."""
    os.chown(folder / "first.c", 65534, 65534)
    exporter = start(run, folder, headers)
    assert 0 == exporter.value(UP % "first")
    assert "first.c does not belong to root" in exporter.get("/")[1]
    os.chown(folder / "first.c", 0, 0)
    exporter.process.send_signal(signal.SIGHUP)
    attached(exporter)


def test_check_custom(folder: Path, headers: str) -> None:
    """check-custom compiles, attaches, reads and prints: 0 when all works, 1 and the compiler's output when not."""
    given = (f"--custom.kernel-headers={headers}",)
    done = once("check-custom", str(folder), *given)
    assert 0 == done.returncode, done.stdout + done.stderr
    # Containers here may have a C library of their own.
    assert re.search(
        r"^ok    first             compiled; (\d+) of \1 points attached, 1 metrics, 0 spans$", done.stdout, re.M
    )
    assert "site_first_total" in done.stdout
    put(folder, "bad", "int f( {\n", MEANING % "bad")
    done = once("check-custom", str(folder), *given)
    assert 1 == done.returncode
    assert "bad.c:1:8: error:" in done.stdout
    assert "ok    first" in done.stdout


def test_without_tracefs(run: Callable[..., Exporter], folder: Path, headers: str) -> None:
    """Without a mounted tracefs, the log, check-custom and the doctor name the command that mounts tracefs."""
    given = (f"--custom.dir={folder}", f"--custom.kernel-headers={headers}")
    alone = ("unshare", "--mount", "sh", "-c", WITHOUT_TRACEFS, "-")
    reason = "tracefs is not mounted, and bcc finds tracepoints only there"
    mount = "mount -t tracefs nodev /sys/kernel/tracing"
    exporter = start(run, folder, headers, prefix=alone)
    exporter.await_(lambda: f"the custom probe first does not run: first.c: {reason}: {mount}" in exporter.log)
    assert 0 == exporter.value(UP % "first")

    done = once("check-custom", str(folder), *given[1:], prefix=alone)
    assert 1 == done.returncode
    assert f"first.c: {reason}: {mount}" in done.stdout

    done = once("doctor", *given, prefix=alone)
    assert re.search(rf"^warn  tracefs +{reason}: first cannot work as they should -> {mount}$", done.stdout, re.M)
    done = once("doctor", prefix=alone)
    assert re.search(rf"^info  tracefs +{reason}; no custom probe uses a tracepoint -> {mount}$", done.stdout, re.M)
    put(folder, "first", CODE.replace("TRACEPOINT_PROBE(sched, sched_process_fork)", "int on_fork(void *ctx)"), ON_FORK)
    with calling_getenv():
        done = once("check-custom", str(folder), *given[1:], prefix=alone)
    assert f"{reason}: {mount}" in done.stdout
    attached = re.search(r"^fail  first +compiled; (\d+) of (\d+) points attached", done.stdout, re.M)
    assert attached and 1 == int(attached[2]) - int(attached[1])  # the tracepoint is not; each C library is a point
    assert re.search(r"^site_first_total [1-9]", done.stdout, re.M)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ((), 2, "check-custom needs a folder: accel-exporter check-custom DIR"),
        (("/nowhere",), 1, "/nowhere cannot be read: No such file or directory"),
        (("/tmp",), 1, "others than root can write in /tmp, so nothing is loaded"),
    ],
)
def test_check_custom_of_nothing(arguments: tuple[str, ...], code: int, expected: str) -> None:
    """A folder that cannot be one of probes is reported in a sentence."""
    done = once("check-custom", *arguments)
    assert code == done.returncode
    assert expected in done.stdout + done.stderr


def test_doctor(folder: Path, headers: str) -> None:
    """The doctor reports whether custom probes can run on this node."""
    done = once("doctor", f"--custom.dir={folder}", f"--custom.kernel-headers={headers}")
    assert "kernel headers are there; probes: first" in done.stdout
    (folder / "first.c").chmod(0o666)
    done = once("doctor", f"--custom.dir={folder}", f"--custom.kernel-headers={headers}")
    assert "first: others than root can write first.c" in done.stdout
