"""Log lines: one line each, bounded, repetitions held back."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from exporter import log


class Now:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def record(message: str, *args: object, level: int = logging.WARNING, line: int = 1) -> logging.LogRecord:
    made = logging.LogRecord("exporter.test", level, "test.py", line, message, args, None)
    made.created = 1_700_000_000.25
    return made


def test_logfmt() -> None:
    """A line names time, level, module and message; what is not plain is quoted."""
    expected = 'ts=2023-11-14T22:13:20.250Z level=warn source=test msg="two words"'
    assert expected == log.LogfmtFormatter().format(record("two %s", "words"))


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("plain", "plain"),
        ("a=b", '"a=b"'),
        ('"', '"\\""'),
        ("a\nb\x1b", '"a\\nb\\u001b"'),
        ("", '""'),
        ("é", '"\\u00e9"'),
    ],
)
def test_logfmt_quotes(message: str, shown: str) -> None:
    """No message, whatever it quotes, makes a second line or another field."""
    assert f"msg={shown}" == log.LogfmtFormatter().format(record(message)).partition("source=test ")[2]


def test_json() -> None:
    """The same fields as one JSON object."""
    made = record("a\nb")
    made.collector = "cuda"

    line = log.JsonFormatter().format(made)

    assert "\n" not in line
    expected = {"ts": "2023-11-14T22:13:20.250Z", "level": "warn", "source": "test", "msg": "a\nb", "collector": "cuda"}
    assert expected == json.loads(line)


def test_bounded() -> None:
    """A message of any length makes a line of bounded length."""
    assert len(log.LogfmtFormatter().format(record("x" * 1_000_000))) < 5000


def test_wrong_arguments() -> None:
    """A message whose arguments do not fit is logged as it stands."""
    assert "msg=\"%d ('x',)\"" in log.LogfmtFormatter().format(record("%d", "x"))


@pytest.mark.parametrize(("level", "traceback"), [("info", False), ("debug", True)])
def test_exception(level: str, traceback: bool) -> None:
    """An exception is said with its place in one line; the traceback only where debug lines are logged."""
    stream = io.StringIO()
    log.configure(level, "json", stream)
    try:
        raise ValueError("bad\nvalue")
    except ValueError:
        logging.getLogger("exporter.x").exception("it failed")

    (line,) = map(json.loads, stream.getvalue().splitlines())

    assert ("error", "it failed", "ValueError: bad\nvalue") == (line["level"], line["msg"], line["err"])
    assert line["at"].startswith("test_log.py:")
    assert traceback == ("traceback" in line)


def test_repetitions() -> None:
    """The same warning passes once a minute, then with how many were held back."""
    now = Now()
    repetitions = log.Repetitions(now=now)
    passed = [repetitions.filter(record("again")) for _ in range(4)]
    now.time += 60
    later = record("again")

    assert [True, False, False, False] == passed
    assert repetitions.filter(later)
    assert 3 == vars(later)["repeated"]


def test_burst_of_one_place() -> None:
    """Messages that differ, from one place in the code, pass up to a number a minute: names in them are not ours."""
    repetitions = log.Repetitions(now=Now())
    passed = [repetitions.filter(record(f"process {number}")) for number in range(100)]

    assert 20 == sum(passed)
    assert repetitions.filter(record("elsewhere", line=2))


def test_information_is_not_held_back() -> None:
    """Lines below a warning always pass."""
    repetitions = log.Repetitions(now=Now())

    assert [True, True] == [repetitions.filter(record("again", level=logging.INFO)) for _ in range(2)]


def test_repetitions_are_bounded() -> None:
    """However many different messages there are, the memory for them is bounded."""
    repetitions = log.Repetitions(now=Now())
    for number in range(5000):
        repetitions.filter(record("x", line=number))

    assert repetitions.LIMIT == len(repetitions._windows)


def test_level() -> None:
    """Lines below the level are not written."""
    stream = io.StringIO()
    log.configure("warn", "logfmt", stream)
    logging.getLogger("exporter.x").info("no")
    logging.getLogger("exporter.x").warning("yes")

    assert 1 == stream.getvalue().count("\n")
