"""Restrictions of children: no capabilities but those they need, no passwords, and first for the OOM killer."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest

from exporter import bare
from exporter.background import child as children
from exporter.background.child import ChildProcess
from exporter.bpf import privileges
from exporter.compat.dcgm import engine
from exporter.faults.ipmi import Ipmi
from tests.support import PATIENCE, until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to give up")


def printed(words: list[str]) -> str:
    """Return the output of a command, run as a child with a line to read."""
    child, text = ChildProcess("", words[-1], command=words[:-1]), b""
    child.command("")
    while (lines := child.lines(20)) is not None:
        text += b"\n".join(lines) + b"\n"
    child.kill()
    return text.decode()


def masks(status: str) -> dict[str, int]:
    """The sets of capabilities of a /proc/PID/status."""
    return {name: int(mask, 16) for name, mask in re.findall(r"^(Cap\w+):\s*([0-9a-f]+)$", status, re.MULTILINE)}


@needs_root
def test_bare_program() -> None:
    """A program that is run bare has no capability, although it is root's, and no way to any."""
    status = printed(bare.command(["/bin/cat", "/proc/self/status"]))

    assert {"CapInh": 0, "CapPrm": 0, "CapEff": 0, "CapAmb": 0}.items() <= masks(status).items()
    assert "NoNewPrivs:\t1" in status


@needs_root
def test_ipmi_sensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FreeIPMI's program is run bare."""
    program = tmp_path / "ipmi-sensors"
    program.write_text("#!/bin/sh\ngrep -E '^CapEff' /proc/self/status; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    with pytest.raises(OSError, match=r"CapEff:\s*0{16}"):
        Ipmi(300).query()


@needs_root
def test_dcgm(tmp_path: Path) -> None:
    """The child that loads NVIDIA's bindings has what profiling takes, and nothing else."""
    for name in ("dcgm_structs", "dcgm_agent"):
        (tmp_path / f"{name}.py").write_text("DCGM_OPERATION_MODE_AUTO = 1\n")
    (tmp_path / "pydcgm.py").write_text(
        "def DcgmHandle(**_):\n    raise OSError(open('/proc/self/status').read().replace('\\n', ';'))\n"
    )
    options = engine.EngineOptions(engine.EMBEDDED, (1001,), 1.0, os.getpid())
    child = ChildProcess("exporter.compat.dcgm.engine", json.dumps(asdict(options)), [tmp_path])
    [line] = child.lines(20) or []
    child.kill()

    held = masks(engine.decode(line).problem.replace(";", "\n"))["CapEff"]
    most = sum(1 << privileges.CAPABILITIES[name] for name in ("CAP_PERFMON", "CAP_SYS_ADMIN"))
    assert held & ~most == 0


def test_a_child_that_ends_late_is_reaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed child that has not ended in time is no zombie once another child was made, and nothing warns of it."""
    monkeypatch.setattr(children, "KILL_SECONDS", 0.0)
    with monkeypatch.context() as stopped:
        stopped.setattr(subprocess.Popen, "kill", lambda _: None)
        os.mkfifo(end := tmp_path / "end")
        late = ChildProcess("", f"read line <{end}; exit 7", command=("/bin/sh", "-c"))
        assert not late.kill()
    pid = late.pid
    del late
    gc.collect()
    end.write_text("\n")
    until(lambda: state(pid) == "Z", "its end")

    another = ChildProcess("", "exit 0", command=("/bin/sh", "-c"))
    assert state(pid) == ""
    another.wait(PATIENCE)
    assert another.kill()


def state(pid: int) -> str:
    """The state of a process, empty for none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_no_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that may hold a backend's password stay here; the others are passed on."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
    monkeypatch.setenv("ACCEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/driver")
    found = printed(["/usr/bin/env", "-u", "LANG"])

    assert "secret" not in found
    assert "LD_LIBRARY_PATH=/opt/driver" in found


def test_first_for_the_oom_killer() -> None:
    """The OOM killer prefers a child to the exporter."""
    own = int(Path("/proc/self/oom_score_adj").read_text())

    assert min(own + 500, 1000) == int(printed(["/bin/sh", "-c", "read line; cat /proc/self/oom_score_adj"]))
