"""The query of a request for a profile of stacks: which part, of which length, in which format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from multidict import MultiMapping

FORMATS = ("pprof", "collapsed", "speedscope", "rows", "json")
GROUPS = ("process", "gpu", "workload", "pod", "kind", "rank")
FILTERS = ("pid", "workload", "pod", "gpu_uuid")
MOST_SECONDS = 300
_MOST_TEXT = 512
_NUMBERS = {"seconds": MOST_SECONDS, "n": 10**9}


@dataclass(frozen=True, slots=True)
class ProfileQuery:
    """The query of a request.

    `seconds` is the time between the two moments to compare, 0 for a profile as it is; `n` the number of a frozen
    profile, 0 for the newest. `value` names a sample type, of formats that have one; empty for the first. `by` is a
    group (GROUPS) that stacks are put below.
    """

    seconds: int = 0
    n: int = 0
    format: str = "pprof"
    value: str = ""
    by: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, query: MultiMapping[str], frozen: bool, values: tuple[str, ...]) -> ProfileQuery:
        """Return a request's query for a profile with these values. Raises ValueError with a sentence.

        A frozen profile is of one moment: it has a number and no `seconds`.
        """
        known = ("n" if frozen else "seconds", "format", "value", "by", *FILTERS)
        for name in query:
            if name not in known:
                raise ValueError(f"there is no parameter {name[:40]!r}; there are {', '.join(known)}")
            if len(query.getall(name)) > 1:
                raise ValueError(f"{name} is given more than once")
        return cls(
            seconds=_number(query, "seconds"),
            n=_number(query, "n"),
            format=_one_of(query, "format", FORMATS) or "pprof",
            value=_one_of(query, "value", values),
            by=_one_of(query, "by", GROUPS),
            labels={name: _label(query, name) for name in FILTERS if name in query},
        )


def _number(query: MultiMapping[str], name: str) -> int:
    if name not in query:
        return 0
    text, most = query[name], _NUMBERS[name]
    if not (text.isascii() and text.isdecimal() and len(text) < 12 and 0 < int(text) <= most):
        raise ValueError(f"{name} has to be a whole number from 1 to {most}")
    return int(text)


def _one_of(query: MultiMapping[str], name: str, known: tuple[str, ...]) -> str:
    if name in query and query[name] not in known:
        raise ValueError(f"{name} has to be one of {', '.join(known)}")
    return query.get(name, "")


def _label(query: MultiMapping[str], name: str) -> str:
    text = query[name]
    if not 0 < len(text) <= _MOST_TEXT or (name == "pid" and not (text.isascii() and text.isdecimal())):
        raise ValueError(f"{name} has to be {'a number' if name == 'pid' else f'1 to {_MOST_TEXT} characters'}")
    return text
