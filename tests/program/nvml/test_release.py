"""POST /-/release-gpus: requests and answers."""

from __future__ import annotations

import pytest

from tests.standins.served import Served


def answer(query: str, release: object, method: str = "POST") -> tuple[int, str]:
    with Served([], release=release) as served:  # type: ignore[arg-type]
        got = served.get(f"/-/release-gpus{query}", method)
        return got.status, got.text


@pytest.mark.parametrize(("query", "seconds"), [("", 300.0), ("?seconds=", 300.0), ("?seconds=1.5", 1.5)])
def test_seconds(query: str, seconds: float) -> None:
    """The time is five minutes, or that of the request."""
    requested: list[float] = []

    def release(seconds: float) -> bool:
        requested.append(seconds)
        return True

    assert (200, f"no GPU is held for {seconds:g} s\n") == answer(query, release)
    assert [seconds] == requested


@pytest.mark.parametrize("seconds", ["x", "0", "-1", "3601", "inf", "nan"])
def test_nonsense(seconds: str) -> None:
    """An invalid time is refused before GPUs are released."""
    assert 400 == answer(f"?seconds={seconds}", pytest.fail)[0]


def test_no_answer() -> None:
    """The answer while NVML hangs is that handles may be held."""
    assert (504, "NVML does not answer: its handles may still be held\n") == answer("", lambda _: False)


def test_no_gpus() -> None:
    """Without the collector there is nothing to release."""

    def release(_: float) -> bool:
        raise LookupError("no GPU is held")

    assert (404, "no GPU is held\n") == answer("", release)


def test_only_posted() -> None:
    """GET releases nothing."""
    assert 405 == answer("", pytest.fail, "GET")[0]
