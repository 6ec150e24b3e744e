"""The messages by which the reader process sends a report: a line of JSON for each part, checked on arrival."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from exporter.ras.report import (
    MOST_COMMUNICATORS,
    MOST_RANKS,
    STATES,
    Missing,
    Rank,
    RasCommunicator,
    Report,
    ReportError,
)

FAILED = "failed"
_REPORT, _COMMUNICATOR, _RANK, _MISSING, _END = "report", "communicator", "rank", "missing", "end"


def encode(report: Report) -> Iterator[bytes]:
    """Yield the lines of a report, newlines included."""
    yield _line(
        _REPORT, report.version, report.count, report.dead_processes, report.timeouts, report.seconds, report.whole
    )
    for comm in report.communicators:
        yield _line(_COMMUNICATOR, comm.comm_hash, comm.size, comm.missing)
        for rank in comm.ranks:
            yield _line(_RANK, rank.rank, rank.host, rank.calls, rank.init_state, rank.async_error)
        for missing in comm.missing_ranks:
            yield _line(_MISSING, missing.rank, missing.host, missing.state)
    yield _line(_END)


def decode(lines: Iterable[bytes]) -> Report:
    """Return the report of these lines. Raises ReportError for a reported failure and for malformed lines."""
    try:
        return _decode(lines)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        if isinstance(error, ReportError):
            raise
        raise ReportError(f"the answer was not read: {type(error).__name__}") from error


def _line(*parts: object) -> bytes:
    return json.dumps(parts).encode() + b"\n"


def _decode(lines: Iterable[bytes]) -> Report:
    head: list[Any] = []
    found: list[tuple[str, int | None, int, list[Rank], list[Missing]]] = []
    names: dict[str, str] = {}
    for parts, line in enumerate(lines, 1):
        kind, *rest = json.loads(line)
        if parts > MOST_RANKS + MOST_COMMUNICATORS + 2:
            raise ReportError("the answer has too many parts")
        if kind == FAILED:
            raise ReportError(str(rest[0])[:300])
        if kind == _REPORT:
            head = rest
        elif kind == _COMMUNICATOR:
            found.append((str(rest[0]), rest[1], int(rest[2]), [], []))
        elif kind == _RANK:
            number, host, calls, init, error = rest
            counts = {names.setdefault(name, name): int(count) for name, count in calls.items()}
            found[-1][3].append(Rank(int(number), names.setdefault(host, host), counts, int(init), int(error)))
        elif kind == _MISSING:
            number, host, state = rest
            found[-1][4].append(Missing(int(number), names.setdefault(host, host), state if state in STATES else ""))
        elif kind == _END:
            version, count, dead, timeouts, seconds, whole = head
            communicators = tuple(RasCommunicator(*fields[:3], tuple(fields[3]), tuple(fields[4])) for fields in found)
            return Report(str(version), int(count), communicators, int(dead), int(timeouts), seconds, bool(whole))
    raise ReportError("the answer was not read to its end")
