"""The command that runs the measurements."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from bench import __main__ as bench
from bench.result import Result

WITHIN = Result("scrape", 41.5, "ms", budget=60.0, note="10,000 series")
OVER = Result("resident memory", 70.25, "MB", budget=64.0)
FREE = Result("hit", 12345.6, "ns")


def measurement(
    monkeypatch: pytest.MonkeyPatch, name: str, *results: Result, error: Exception | None = None
) -> ModuleType:
    module = ModuleType(f"bench.{name}")

    def run() -> list[Result]:
        if error:
            raise error
        return list(results)

    vars(module)["run"] = run
    monkeypatch.setitem(sys.modules, f"bench.{name}", module)
    known = bench.names()
    monkeypatch.setattr(bench, "names", lambda: [*known, name])
    return module


def numbers(output: str) -> list[str]:
    return [line.split()[1] for line in output.splitlines() if line.startswith("  ")]


def test_table_shows_value_budget_and_verdict() -> None:
    """Each line has the value in its unit; a budget and a verdict only where there is a budget."""
    expected = [
        "  scrape             41.5  ms  at most 60  ok        10,000 series",
        "  resident memory    70.2  MB  at most 64  EXCEEDED",
        "  hit              12,346  ns",
    ]
    assert expected == list(bench.table([WITHIN, OVER, FREE]))


def test_within_budget_is_status_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement within its budget succeeds."""
    measurement(monkeypatch, "good", WITHIN, FREE)
    assert 0 == bench.main(["good"])


def test_over_budget_is_status_1_unless_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exceeded budget fails and is named; --report only names it."""
    measurement(monkeypatch, "heavy", WITHIN, OVER)
    assert (1, 0) == (bench.main(["heavy"]), bench.main(["--report", "heavy"]))
    assert 2 == capsys.readouterr().err.count("over its budget: resident memory")


def test_a_measurement_that_fails_is_named_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A crash is status 1 even with --report, and the next measurement is still printed."""
    measurement(monkeypatch, "broken", error=RuntimeError("no clock"))
    measurement(monkeypatch, "good", WITHIN)
    assert 1 == bench.main(["--report", "broken", "good"])
    shown = capsys.readouterr()
    assert "could not be measured: broken" in shown.err and "no clock" in shown.err
    assert "41.5  ms" in shown.out


def test_brief_measures_with_less_and_prints_what(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--brief replaces constants of a measurement while it runs, and its output has which; without, nothing changes."""
    long = measurement(monkeypatch, "long")
    vars(long).update(ROUNDS=9, SECONDS=20.0, BRIEF={"ROUNDS": 2})
    vars(long)["run"] = lambda: [Result("rounds", long.ROUNDS, ""), Result("seconds", long.SECONDS, "")]
    assert 0 == bench.main(["long"])
    shown = capsys.readouterr()
    assert ["9", "20"] == numbers(shown.out) and "brief" not in shown.out + shown.err
    assert 0 == bench.main(["--brief", "long"])
    shown = capsys.readouterr()
    assert "in brief: ROUNDS 2 in place of 9)" in shown.out and "numbers are rough" in shown.err
    assert ["2", "20"] == numbers(shown.out)
    assert 9 == long.ROUNDS


def test_brief_is_less_of_what_there_is() -> None:
    """Constants replaced by --brief belong to the measurement, and their brief values are smaller."""
    modules = [importlib.import_module(f"bench.{name}") for name in bench.names()]
    less = {(it.__name__, name): value for it in modules for name, value in getattr(it, "BRIEF", {}).items()}
    full = {(it.__name__, name): getattr(it, name) for it in modules for name in getattr(it, "BRIEF", {})}
    assert less and all(0 < value < full[name] for name, value in less.items())


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is no measurement is an error that lists those there are."""
    with pytest.raises(SystemExit):
        bench.main(["nothing"])
    assert "no measurement named nothing; there are " in capsys.readouterr().err
