"""Parser of RAS answers, in JSON (NCCL 2.28.7 and newer) or in text (since 2.24), into one form of report.

The formats are those of NCCL's documentation ("RAS", troubleshooting) and of src/ras/client_support.cc. The text names
only communicators with a problem, and counts the others.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_RANKS, MOST_COMMUNICATORS = 1 << 15, 1 << 13
"""Limits of one report; an answer beyond them is not from a job."""
MOST_FUNCTIONS = 16
"""Functions of one rank at most; NCCL has eight."""
STATES = ("dead", "unresponsive", "absent")
_FUNCTION = re.compile(r"[A-Za-z][A-Za-z0-9]{0,31}", re.ASCII)
_HOST = re.compile(r"[0-9A-Za-z.:_-]{1,255}", re.ASCII)
_HASH = re.compile(r"(?:0x)?([0-9a-f]{1,16})", re.ASCII)
_VERSION = re.compile(r"NCCL version (\S{1,64})")
_GROUP = re.compile(r"^ *[0-9]+ +([0-9]{1,9}) +[0-9]+ +[0-9-]+ +[0-9]+ +[0-9]+ +[A-Z]+ +[A-Z,]+ *$", re.MULTILINE)
_DEAD = re.compile(r"^ *([0-9]{1,9}) job process(?:es are| is) considered dead", re.MULTILINE)
_TROUBLE = re.compile(r"^ *#[0-9]+-[0-9]+ \(([0-9a-f]{1,16})\) ([A-Z]+) *$")
_MISSING = re.compile(r"^ *Missing communicator data from ([0-9]{1,9}) ranks?\b")
_WHICH = re.compile(r"^ *The missing ranks?: ([0-9]{1,9}(?:,[0-9]{1,9})*),? *$")
_TIMEOUTS = re.compile(r"Encountered ([0-9]{1,9}) communication timeout")
_SECONDS = re.compile(r"^Communicators\.\.\. \(([0-9]{1,9}(?:\.[0-9]{1,9})?)s\)", re.MULTILINE)


class ReportError(ValueError):
    """The answer is not a RAS report."""


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank that answered. `calls` are its collectives by function; codes are those of ncclResult_t."""

    rank: int
    host: str
    calls: Mapping[str, int]
    init_state: int
    async_error: int


@dataclass(frozen=True, slots=True)
class Missing:
    """A rank that did not answer. `state` is one of STATES, or empty for a report in text, which has no states.

    absent means that the rank's process answered, but not for this communicator.
    """

    rank: int
    host: str
    state: str


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """A communicator; `comm_hash` has 16 hex digits, `missing` counts also the ranks that the text does not name."""

    comm_hash: str
    size: int | None
    missing: int
    ranks: tuple[Rank, ...] = ()
    missing_ranks: tuple[Missing, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The report of one process. `communicators` has the named ones, `count` counts all; None stands for unknown."""

    version: str
    count: int
    communicators: tuple[RasCommunicator, ...]
    dead_processes: int
    timeouts: int
    seconds: float | None
    whole: bool = field(default=True)
    """True if every communicator is named, as in JSON."""


def parse(answer: str) -> Report:
    """Return the report of an answer. Raises ReportError."""
    if answer[:1024].lstrip().startswith("{"):
        report = _from_json(answer)
    elif "Communicators..." in answer or "Job summary" in answer:
        report = _from_text(answer)
    else:
        raise ReportError("the answer has no format of RAS")
    if sum(len(comm.ranks) + len(comm.missing_ranks) for comm in report.communicators) > MOST_RANKS:
        raise ReportError(f"the answer has more than {MOST_RANKS} ranks")
    if len(report.communicators) > MOST_COMMUNICATORS:
        raise ReportError(f"the answer has more than {MOST_COMMUNICATORS} communicators")
    return report


def _from_json(text: str) -> Report:
    try:
        answer = json.loads(text)
        found = tuple(_communicator(entry) for entry in answer["communicators"])
        missing = (entry for comm in answer["communicators"] for entry in comm["missing_ranks"])
        dead = {(entry["host"], entry["pid"]) for entry in missing if _dead(entry)}
        ras = answer["ras"]
        seconds, timeouts = _seconds(ras["collection_time_sec"]), _number(ras["timeouts_count"])
        version = str(answer["nccl_version"])[:64]
    except (ValueError, OverflowError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ReportError(f"the answer is no RAS report: {type(error).__name__} {error}"[:200]) from error
    return Report(version, len(found), found, len(dead), timeouts, seconds)


def _communicator(entry: Mapping[str, Any]) -> RasCommunicator:
    ranks = tuple(_rank(rank) for rank in entry["ranks"])
    missing = tuple(
        Missing(_number(rank["rank"]), _host(rank["host"]), _state(rank)) for rank in entry["missing_ranks"]
    )
    return RasCommunicator(_hash(entry["hash"]), _number(entry["size"]), len(missing), ranks, missing)


def _rank(entry: Mapping[str, Any]) -> Rank:
    calls = {name: _number(count) for name, count in entry["collective_counts"].items() if _FUNCTION.fullmatch(name)}
    if len(calls) > MOST_FUNCTIONS:
        raise ValueError(f"more than {MOST_FUNCTIONS} functions")
    status = entry["status"]
    return Rank(
        _number(entry["rank"]),
        _host(entry["host"]),
        calls,
        _number(status["init_state"]),
        _number(status["async_error"]),
    )


def _state(missing: Mapping[str, Any]) -> str:
    if _dead(missing):
        return "dead"
    return "unresponsive" if missing["status"]["unresponsive"] else "absent"


def _dead(missing: Mapping[str, Any]) -> bool:
    return bool(missing["status"]["considered_dead"])


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"{value!r:.40} is no count")
    return value


def _seconds(value: object) -> float:
    seconds = float(value) if type(value) in (int, float) else math.nan  # type: ignore[arg-type]
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{value!r:.40} is no time")
    return seconds


def _host(value: object) -> str:
    return value if isinstance(value, str) and _HOST.fullmatch(value) and value != "unknown" else ""


def _hash(value: str) -> str:
    found = _HASH.fullmatch(value)
    if not found:
        raise ValueError(f"{value!r:.40} is no hash")
    return found[1].zfill(16)


def _from_text(text: str) -> Report:
    version, seconds = _VERSION.search(text), _SECONDS.search(text)
    return Report(
        version=version[1] if version else "",
        count=sum(int(found) for found in _GROUP.findall(text)),
        communicators=tuple(_troubled(text)),
        dead_processes=sum(int(found) for found in _DEAD.findall(text)),
        timeouts=sum(int(found) for found in _TIMEOUTS.findall(text)),
        seconds=float(seconds[1]) if seconds else None,
        whole=False,
    )


def _troubled(text: str) -> Iterator[RasCommunicator]:
    """Yield the communicators with ranks that did not answer."""
    comm_hash, missing = "", 0
    for line in text.splitlines():
        if found := _TROUBLE.match(line):
            comm_hash, missing = (found[1].zfill(16), 0) if found[2] == "INCOMPLETE" else ("", 0)
        elif comm_hash and (found := _MISSING.match(line)):
            missing = int(found[1])
        elif comm_hash and (found := _WHICH.match(line)):
            named = tuple(Missing(int(rank), "", "") for rank in found[1].split(","))
            yield RasCommunicator(comm_hash, None, missing, missing_ranks=named)
            comm_hash = ""
        elif comm_hash and missing and not line.strip():
            yield RasCommunicator(comm_hash, None, missing)
            comm_hash = ""
    if comm_hash and missing:
        yield RasCommunicator(comm_hash, None, missing)
