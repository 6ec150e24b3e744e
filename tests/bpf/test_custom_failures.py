"""A failure of one probe is reported with the compiler's output, and disturbs no other probe."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from exporter.collectors import custom
from exporter.model import Unavailable
from tests.bpf.custom_node import Caller, Observed, bcc_missing, kernel_headers, observe, put
from tests.support import PATIENCE, until

pytestmark = pytest.mark.needs_bpf

GOOD = """
BPF_ARRAY(calls, u64, 1);
int on_take(void *ctx) {
    int zero = 0;
    calls.increment(zero);
    return 0;
}
"""
MEANING = """
probes: [{uprobe: take, library: libsite.so, program: on_take}]
metrics: [{name: %s.calls, help: Calls of take()., type: counter, map: calls}]
"""


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> str:
    if missing := bcc_missing():
        pytest.skip(f"no bcc: {missing}; apt-get install python3-bpfcc")
    return kernel_headers(tmp_path_factory.mktemp("headers"))


@pytest.fixture(scope="module")
def library(compile_library: Callable[[str, str], Path]) -> Path:
    return compile_library("libsite.so", "int take(int n) { return n * 2; }")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put(tmp_path, "good", GOOD, MEANING % "good")
    return tmp_path


def counted(observed: Observed, library: Path, metric: str = "good_calls_total", calls: int = 23) -> None:
    """The good probe counts as if nothing were wrong."""
    before = observed.value(metric) or 0
    with Caller(library) as caller:
        found = "accel_exporter_probe_attached"
        until(lambda: observed.value(found, probe="custom_good", library=str(library)) == 1, "attached")
        caller.call("take", calls, 1)
        until(lambda: observed.value(metric) == before + calls, "counted")


BAD = {
    "syntax": ("BPF_ARRAY(calls, u64, 1);\nint on_take(void *ctx) {\n    return nothing;\n}\n", "bad.c:3:12: error:"),
    "verifier": (
        GOOD.replace("return 0", "u64 *a = (u64 *)ctx; a[4096] = 1; return 0"),
        "the kernel refuses on_take",
    ),
    "endless": (
        GOOD.replace("return 0;", "for (u64 i = 0;; i++) zero += i; return zero;"),
        "the kernel refuses on_take",
    ),
    "no program": (GOOD.replace("on_take", "on_other"), "bad.c has no function on_take"),
    "no map": (GOOD.replace("calls", "others"), "bad.c has no map calls"),
    "a struct": (
        "struct v { u64 a; u64 b; };\n" + GOOD.replace("u64, 1", "struct v, 1").replace("calls.increment(zero)", ";"),
        "the value of calls has no number field ''; it has a, b",
    ),
    "no tracepoint": (GOOD + "TRACEPOINT_PROBE(nothing, such) { return 0; }\n", "bad.c"),
    "an include": ('#include "nowhere.h"\n' + GOOD, "bad.c:1:10: fatal error: 'nowhere.h' file not found"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_probe_is_reported(what: str, folder: Path, headers: str, library: Path) -> None:
    """The reason names the file and, where the compiler does, the line; the probe beside it counts 23 of 23."""
    code, expected = BAD[what]
    put(folder, "bad", code, MEANING % "bad")
    with observe(folder, headers) as observed:
        [problem] = observed.problems()
        assert problem.startswith("bad: ")
        assert expected in problem
        assert 0 == observed.value("accel_exporter_custom_up", probe="bad")
        assert 1 == observed.value("accel_exporter_custom_up", probe="good")
        assert None is observed.value("bad_calls_total")
        assert 1 <= observed.value("accel_exporter_custom_restarts_total", probe="bad", reason="refused")
        counted(observed, library)


def test_a_child_that_is_killed_is_replaced(
    folder: Path, headers: str, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash another child compiles, attaches to what is there, and counts from zero."""
    with observe(folder, headers) as observed:
        counted(observed, library)
        [probe] = observed.collector.probes
        child = probe.child
        assert child
        spawn, replaced = probe.spawn, threading.Event()
        monkeypatch.setattr(probe, "spawn", lambda: spawn() if replaced.wait(PATIENCE) else None)
        os.kill(child.pid, signal.SIGSEGV)
        crashed = "accel_exporter_custom_restarts_total"
        until(lambda: observed.value(crashed, reason="crashed") == 1, "noticed")
        assert None is observed.value("good_calls_total")
        assert ["good: its process crashed: Segmentation fault"] == observed.problems()
        replaced.set()
        until(lambda: observed.value("accel_exporter_custom_up") == 1, "replaced")
        counted(observed, library)
        assert [] == observed.problems()


def test_a_child_that_hangs_is_given_up(
    folder: Path, headers: str, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped child sends nothing: after a while it is killed and replaced; meanwhile a scrape does not wait."""
    monkeypatch.setattr("exporter.custom.probe.SILENT_SECONDS", PATIENCE)
    with observe(folder, headers) as observed:
        [probe] = observed.collector.probes
        child = probe.child
        assert child
        os.kill(child.pid, signal.SIGSTOP)
        stalled = "accel_exporter_custom_restarts_total"
        assert not observed.value(stalled, reason="stalled")  # the scrape came before the child was given up
        monkeypatch.setattr(probe, "_patience", 3.0)
        until(lambda: probe.child is not child, "given up")
        monkeypatch.setattr(probe, "_patience", PATIENCE)
        until(lambda: observed.value(stalled, reason="stalled") == 1, "noticed")
        until(lambda: not psutil.pid_exists(child.pid), "killed")
        until(lambda: observed.value("accel_exporter_custom_up") == 1, "replaced")
        counted(observed, library)


def test_nothing_is_left_behind(folder: Path, headers: str) -> None:
    """Closing ends the children; none outlives the collector."""
    with observe(folder, headers) as observed:
        [probe] = observed.collector.probes
        child = probe.child
        assert child
    assert not psutil.pid_exists(child.pid)


def test_an_interpreter_without_bcc(folder: Path, headers: str) -> None:
    """The problem names the package to install, or the setting for another interpreter."""
    bare = folder / "python"
    bare.write_text('#!/bin/sh\nshift\nexec /usr/bin/python3 -S -I "$@"\n')  # no site: no packages
    bare.chmod(0o755)
    with observe(folder, headers, **{custom.PYTHON: str(bare)}) as observed:
        [problem] = observed.problems()
        assert "has no bcc: install python3-bpfcc (Debian, Ubuntu)" in problem


def test_no_interpreter(folder: Path, headers: str) -> None:
    """An interpreter that does not exist is reported as such."""
    with observe(folder, headers, **{custom.PYTHON: "/nowhere/python3"}) as observed:
        assert ["good: /nowhere/python3 cannot be started: No such file or directory"] == observed.problems()


def test_no_headers(folder: Path, tmp_path: Path) -> None:
    """Without kernel headers nothing is compiled, and the remedy is a package."""
    with pytest.raises(Unavailable) as error, observe(folder, str(tmp_path)):
        pass
    assert "holds no kernel headers" in error.value.reason


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    code = GOOD.replace("BPF_ARRAY(calls, u64, 1)", "BPF_HASH(calls, u64, u64, 4)").replace(
        "int zero = 0;", "u64 zero = bpf_ktime_get_ns();"
    )
    put(tmp_path, "good", code, MEANING % "good")
    yield tmp_path


def test_a_full_map_is_a_problem(full: Path, headers: str, library: Path) -> None:
    """Keys beyond what the map holds are not counted: a full map is a problem."""
    with observe(full, headers) as observed, Caller(library) as caller:
        found = "accel_exporter_probe_attached"
        until(lambda: observed.value(found, library=str(library)) == 1, "attached")
        caller.call("take", 23, 1)
        until(lambda: observed.value("accel_exporter_custom_map_entries", map="calls") == 4, "full")
        assert 4 == observed.value("accel_exporter_custom_map_max_entries", map="calls")
        assert 4 == observed.value("good_calls_total")
        assert ["good: its map calls is full with 4 keys: nothing is counted for new ones"] == observed.problems()


def test_an_lru_map_is_never_full(tmp_path: Path, headers: str, library: Path) -> None:
    """An LRU map gives up old keys for new ones: no limit of it is shown, and no problem."""
    code = GOOD.replace("BPF_ARRAY(calls, u64, 1)", 'BPF_TABLE("lru_hash", u64, u64, calls, 256)').replace(
        "int zero = 0;", "u64 now = bpf_ktime_get_ns();"
    )
    code = code.replace(
        "calls.increment(zero)", "calls.update(&now, &now)"
    )  # bcc's increment adds no key to an LRU map
    put(tmp_path, "good", code, MEANING % "good")
    with observe(tmp_path, headers) as observed, Caller(library) as caller:
        found = "accel_exporter_probe_attached"
        until(lambda: observed.value(found, library=str(library)) == 1, "attached")
        caller.call("take", 2300, 1)
        until(lambda: observed.value("accel_exporter_custom_map_entries", map="calls"), "read")
        assert observed.value("accel_exporter_custom_map_max_entries", map="calls") is None
        assert [] == observed.problems()
