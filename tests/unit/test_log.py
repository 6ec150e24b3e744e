"""Log lines: one line each, bounded, repetitions held back."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter import log
from exporter.log.limits import MOST_KEYS, RATES, Limits
from exporter.log.lines import fields
from exporter.log.losses import dropped


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


@pytest.mark.parametrize("character", ["x", "\x01", '"', "\\", "é", "😀", "\udc80", "\n"])
@pytest.mark.parametrize("formatter", [log.LogfmtFormatter(), log.JsonFormatter()])
def test_bounded(formatter: logging.Formatter, character: str) -> None:
    """A line has at most 4,096 bytes with its end, whatever is in it and however it is escaped."""
    made = record(character * 1_000_000)
    for number in range(20):
        setattr(made, f"field{number}", character * 5000)
    try:
        raise ValueError(character * 5000)
    except ValueError as error:
        made.exc_info = (ValueError, error, error.__traceback__)

    line = formatter.format(made)

    assert 3500 < len(line.encode()) < 4096
    assert line.count("…") == 0 and "\n" not in line
    if isinstance(formatter, log.JsonFormatter):
        assert json.loads(line)["msg"].endswith("…")


@pytest.mark.parametrize("path", ["/" + "\x01" * 4000, Path("/" + "\x01" * 4000)])
def test_paths_in_messages_are_short(path: object) -> None:
    """Text after a long path stays readable."""
    line = log.LogfmtFormatter().format(record("cannot attach to %s: %s", path, OSError("no permission")))

    assert line.endswith(': no permission"')
    assert len(line) < 700


def test_whole_values_are_kept() -> None:
    """A value that just fits is not cut."""
    made = record("x" * 2048)
    made.library = "é" * 85

    assert ["x" * 2048, "é" * 85] == [fields(made)[name] for name in ("msg", "library")]


def test_wrong_arguments() -> None:
    """A message with arguments that do not fit is logged as it stands."""
    assert "msg=\"%d ('x',)\"" in log.LogfmtFormatter().format(record("%d", "x"))


@pytest.mark.parametrize(("level", "traceback"), [("info", False), ("debug", True)])
def test_exception(level: str, traceback: bool) -> None:
    """An exception is logged with its place in one line; the traceback only where debug lines are logged."""
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
    limits = Limits(now)
    passed = [limits.filter(record("again")) for _ in range(4)]
    now.time += 60
    later = record("again")

    assert [True, False, False, False] == passed
    assert limits.filter(later)
    assert 3 == vars(later)["repeated"]


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR])
def test_rate_of_one_place(level: int) -> None:
    """Messages that differ, from one place in the code, pass at a rate: processes of others choose what is in them."""
    now, before = Now(), dropped["rate_limit"]
    limits, rate = Limits(now), RATES[min(level, logging.WARNING)]
    passed = [limits.filter(record(f"process {number}", level=level)) for number in range(rate.burst + 80)]
    now.time += rate.seconds
    later, next_one = record("later", level=level), record("next", level=level)

    assert [True] * rate.burst + [False] * 80 == passed
    assert [True, False] == [limits.filter(later), limits.filter(next_one)]
    assert 80 == vars(later)["suppressed"]
    assert 81 == dropped["rate_limit"] - before
    assert limits.filter(record("elsewhere", level=level, line=2))


def test_errors_pass_beside_warnings() -> None:
    """A place that logs at two levels has a rate for each."""
    limits = Limits(Now())
    passed = [limits.filter(record(f"{number}")) for number in range(100)]

    assert RATES[logging.WARNING].burst == sum(passed)
    assert limits.filter(record("worse", level=logging.ERROR))


def test_a_flood_leaves_other_places_alone() -> None:
    """Thousands of different messages of one place make no room for more lines of another."""
    limits = Limits(Now())
    for number in range(100):
        limits.filter(record(f"{number}", line=2))
    for number in range(5000):
        limits.filter(record(f"{number}", line=1))

    assert not limits.filter(record("more", line=2))


def test_information_may_be_repeated() -> None:
    """The same line below a warning passes again, within the rate."""
    limits = Limits(Now())

    assert [True, True] == [limits.filter(record("again", level=logging.INFO)) for _ in range(2)]


def test_limits_are_bounded() -> None:
    """However many different messages there are, the memory for them is bounded."""
    limits = Limits(Now())
    for number in range(5000):
        limits.filter(record("x", line=number))

    assert [MOST_KEYS] * 2 == [len(limits._messages), len(limits._places)]


@pytest.mark.parametrize("form", log.FORMATS)
def test_a_day_of_hostile_paths(form: str) -> None:
    """A process maps a library under a new path of 4,000 control characters, 30 times a second for a day."""
    now, stream = Now(), io.StringIO()
    log.configure("info", form, stream)
    logging.getLogger().handlers[0].filters = [Limits(now)]
    logger, calls = logging.getLogger("exporter.x"), 30 * 3600
    for number in range(calls):
        path = ("/" + "\x01" * 249) * 16
        logger.info("attached to a library", extra={"library": f"{path}{number}", "functions": 3})
        now.time += 86400 / calls
    lines = stream.getvalue().splitlines()

    assert len(lines) < RATES[logging.INFO].burst + 86400 / RATES[logging.INFO].seconds
    assert len(stream.getvalue()) < 1_500_000
    assert any("suppressed" in line for line in lines)


def test_level() -> None:
    """Lines below the level are not written."""
    stream = io.StringIO()
    log.configure("warn", "logfmt", stream)
    logging.getLogger("exporter.x").info("no")
    logging.getLogger("exporter.x").warning("yes")

    assert 1 == stream.getvalue().count("\n")
