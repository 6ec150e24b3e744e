"""Queries to the management controller, with scripts in place of ipmi-sensors; tests/drivers/ has the real one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.faults import categories, ipmi, metrics
from exporter.faults.ipmi import Ipmi, samples
from exporter.faults.ledger import Fault
from exporter.faults.transitions import Transitions
from exporter.model import Sample
from tests.support import until

FAN = "7,Fan FAN1,Fan,Nominal,0000h"


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a controller that is not closed leaves its cache


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a shell script in place of ipmi-sensors."""

    def put(script: str) -> Path:
        path = tmp_path / "bin/ipmi-sensors"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
        return path

    return put


def states(lines: list[str]) -> dict[str, object]:
    return {it.labels["sensor"]: it.value for it in samples(lines)}


def test_states() -> None:
    """As FreeIPMI has them: nominal, warning, critical. A state that it does not know is none."""
    lines = [FAN, "8,PS1,Power Supply,Critical,0009h", "9,P1 Temp,Temperature,Warning,0008h", "10,P2,Fan,N/A,0000h"]
    assert {"Fan FAN1": 0, "PS1": 2, "P1 Temp": 1} == states(lines)


def test_rows() -> None:
    """Each sensor is of a row of the table."""
    [sample] = samples(["8,PS1,Power Supply,Critical,0009h"])
    assert {"sensor": "PS1", "type": "Power Supply", "category": categories.POWER} == sample.labels
    assert set(ipmi.TYPES.values()) <= {row.label for row in categories.CATEGORIES}


def test_names() -> None:
    """A name with commas stays whole, one that comes again gets its record's number, what cannot be printed is cut."""
    lines = [
        "1,A, B,Fan,Nominal,0000h",
        "2,Temp,Fan,Nominal,0000h",
        "3,Temp,Fan,Critical,0000h",
        "4,x\x1b[2Jy,Fan,Nominal,h",
    ]
    assert {"A, B": 0, "Temp": 0, "Temp #3": 2, "x[2Jy": 0} == states(lines)
    assert ["é" * 64] == list(states([f"1,{'é' * 300},Fan,Nominal,0000h"]))
    assert ["unknown"] == list(states(["1,,Fan,Nominal,0000h"]))


@pytest.mark.parametrize(
    "line", ["", ",", "x,Fan,Fan,Nominal,0000h", "1,Fan,Nominal,0000h", "1,Lid,Physical Security,Critical,1h"]
)
def test_other_lines(line: str) -> None:
    """Lines of sensors without a type that stops jobs are skipped."""
    assert {} == states([line])


def test_bounded() -> None:
    """More sensors than a machine has are left out."""
    assert ipmi.MOST_SENSORS == len(states([f"{number},F{number},Fan,Nominal,0h" for number in range(5000)]))


def test_how_it_is_called(program: Callable[[str], Path]) -> None:
    """The kernel's driver is used, whatever the configuration, unless a controller in the network is named."""
    path = program("")
    local = ipmi.command("", "", "/cache")
    assert [str(path), "--driver-type=OPENIPMI"] == local[:2]
    assert "--sdr-cache-directory=/cache" == local[-1]
    assert [str(path), "--hostname=bmc:623", "--config-file=/f"] == ipmi.command("bmc:623", "/f", "/cache")[:3]
    assert ["--driver-type=OPENIPMI", "--config-file=/f"] == ipmi.command("", "/f", "/cache")[1:3]


def test_polled_repeatedly(program: Callable[[str], Path], tmp_path: Path) -> None:
    """The folder for the sensors' descriptions is the same each time, private, and removed at the end."""
    program(f'for last; do :; done; folder=${{last#*=}}; stat -c "%a %n" "$folder" >>{tmp_path}/calls; echo "{FAN}"')
    controller = Ipmi(0.05)
    controller.start()
    calls = tmp_path / "calls"
    until(lambda: calls.exists() and len(calls.read_text().splitlines()) >= 3)
    assert ["Fan FAN1"] == [it.labels["sensor"] for it in controller.newest()]
    controller.close()
    [line] = set((tmp_path / "calls").read_text().splitlines())
    mode, folder = line.split()
    assert "700" == mode
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (f"echo '{FAN}'; echo 'ipmi-sensors: driver timeout' >&2; exit 1", "driver timeout"),
        (f"echo '{FAN}'; exit 3", "ended with status 3"),
        ("kill -9 $$", "ended with status -9"),
        ("yes '1,Fan,Fan,Nominal,0000h'", "printed more than"),
        ("echo nothing of use", "reported no sensor"),
        ("exec 2>/dev/null; head -c 9000000 /dev/zero", "printed a line of more than"),
    ],
)
def test_refusals(program: Callable[[str], Path], script: str, reason: str) -> None:
    """A program that fails or prints nonsense has its message shown, and none of its lines."""
    program(script)
    controller = Ipmi(300)
    controller.poll()
    with pytest.raises(OSError, match=reason) as refused:
        controller.newest()
    assert "ipmi-sensors" == refused.value.filename or "no sensor" in reason


def test_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without FreeIPMI, the error names its package."""
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    controller = Ipmi(300)
    with pytest.raises(OSError, match="not queried yet"):
        controller.newest()
    controller.poll()
    with pytest.raises(FileNotFoundError, match="freeipmi-tools"):
        controller.newest()


def test_no_place_for_the_cache(program: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a folder to write in the controller is not queried; with one again it is."""
    program(f"echo '{FAN}'")
    with monkeypatch.context() as context:
        context.setattr("tempfile.tempdir", "/nowhere")
        controller = Ipmi(300)
        controller.poll()
        with pytest.raises(FileNotFoundError):
            controller.newest()
    controller.poll()
    assert controller.newest()


def test_one_that_never_ends(program: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that never ends is killed after its time."""
    program("exec sleep 1000")
    monkeypatch.setattr(ipmi, "ROUND_SECONDS", 0.3)
    controller = Ipmi(300)
    controller.poll()
    with pytest.raises(TimeoutError, match="did not end"):
        controller.newest()


def test_closing_during_a_query(program: Callable[[str], Path], tmp_path: Path) -> None:
    """Closing does not wait for the program, which ends with it."""
    program(f"echo $$ >{tmp_path}/pid; exec sleep 1000")
    controller = Ipmi(300)
    controller.start()
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    controller.close()
    until(lambda: not (Path("/proc") / (tmp_path / "pid").read_text().strip()).exists(), "its end")


def test_old_answers(program: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that no other has followed for two rounds is not shown any more."""
    program(f"echo '{FAN}'")
    controller = Ipmi(300)
    controller.poll()
    assert controller.newest()
    monkeypatch.setattr("time.monotonic", lambda: (controller.last.at or 0.0) + 600 + ipmi.ROUND_SECONDS + 1)
    with pytest.raises(TimeoutError, match="does not answer"):
        controller.newest()


def test_only_critical_is_a_fault() -> None:
    """A warning is not; each row has a signal of its own."""
    faults: list[tuple[str, str, str, int]] = []

    def add(fault: Fault, times: int) -> None:
        faults.append((fault.category, fault.component, fault.signal, times))

    def sensor(state: int) -> Sample:
        return metrics.IPMI.sample(state, {"sensor": "PS1", "type": "Power Supply", "category": categories.POWER})

    transitions = Transitions(add)
    for state in (0, 1, 2, 2, 1, 0):
        transitions.observe([sensor(state)], 1000.0)
    assert [("power_supply", "PS1", "ipmi_power_supply", times) for times in (1, 0)] == faults
