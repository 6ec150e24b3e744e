"""Results of the trial of return probes, and the processes that may get return probes."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.bpf.safety import (
    REFUSED,
    RETURNED,
    Confinement,
    Protection,
    Survival,
    judge,
    protection,
    returns_allowed,
)

ALL_RETURN = dict.fromkeys(Confinement, RETURNED)
SAFE, DEADLY_FILTERS, DEADLY_SHADOWS = Survival(True, True), Survival(False, True), Survival(True, False)
UNTRIED = Survival(False, False, "no such object")
SIGSEGV, SIGKILL, SIGSYS = -11, -9, -31


@pytest.mark.parametrize(
    ("ends", "survival"),
    [
        pytest.param({}, SAFE, id="all return"),
        pytest.param({Confinement.SHADOW_STACK: REFUSED}, SAFE, id="no shadow stacks here"),
        pytest.param({Confinement.SHADOW_STACK: SIGSEGV}, DEADLY_SHADOWS, id="shadow stack"),
        pytest.param({Confinement.STRICT: SIGKILL}, DEADLY_FILTERS, id="strict mode"),
        pytest.param({Confinement.FILTER_DENIES: SIGSEGV}, DEADLY_FILTERS, id="filter denies"),
        pytest.param({Confinement.FILTER_KILLS: SIGSYS}, DEADLY_FILTERS, id="filter kills"),
        pytest.param({Confinement.FILTER_KILLS: REFUSED}, DEADLY_FILTERS, id="not proven"),
        pytest.param({Confinement.FILTER_DENIES: 41}, DEADLY_FILTERS, id="wrong value"),
        pytest.param({Confinement.NONE: SIGSYS}, Survival(False, False), id="our own filter kills"),
    ],
)
def test_judge(ends: dict[Confinement, int], survival: Survival) -> None:
    """Only what returned the right value under a confinement survives it."""
    assert survival == judge(ALL_RETURN | ends, hits=5)


def test_judge_without_hits() -> None:
    """A trial in which the probe did not fire each time proves nothing."""
    assert Survival(False, False, "return probes attach but do not fire on this kernel") == judge(ALL_RETURN, hits=4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("Name:\tpython\nSeccomp:\t0\nx86_Thread_features:\t\n", Protection(False, False), id="none"),
        pytest.param("Seccomp:\t1\n", Protection(True, False), id="strict"),
        pytest.param("Seccomp:\t2\nx86_Thread_features:\tshstk wrss \n", Protection(True, True), id="both"),
        pytest.param(
            f"Groups:\t{'1234567890 ' * 3000}\nSeccomp:\t2\nx86_Thread_features:\tshstk\n",
            Protection(True, True),
            id="in many groups",
        ),
        pytest.param("Name:\tSeccomp:\t2\n", Protection(False, False), id="a process that calls itself so"),
    ],
)
def test_protection(tmp_path: Path, text: str, expected: Protection) -> None:
    """A process' own words on its protection are read, and nothing else."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text(text)
    assert expected == protection(tmp_path, 7)


def test_protection_of_nobody(tmp_path: Path) -> None:
    """A process that is gone needs none."""
    assert protection(tmp_path, 7) is None


BARE, FILTERED, SHADOWED = Protection(False, False), Protection(True, False), Protection(False, True)


@pytest.mark.parametrize(
    ("survival", "users", "allowed", "expected"),
    [
        pytest.param(SAFE, [BARE, FILTERED, SHADOWED], True, "", id="a kernel that harms nobody"),
        pytest.param(DEADLY_FILTERS, [BARE], False, "(0 of the 1 ", id="a filtered process may come later"),
        pytest.param(DEADLY_FILTERS, [BARE, FILTERED], False, "(1 of the 2 ", id="filtered"),
        pytest.param(UNTRIED, [BARE], False, "no such object; they might", id="not tried"),
        pytest.param(DEADLY_SHADOWS, [BARE, FILTERED], True, "", id="no shadow stack in use"),
        pytest.param(DEADLY_SHADOWS, [BARE, SHADOWED], False, "shadow stack", id="shadow stack in use"),
    ],
)
def test_policy(survival: Survival, users: list[Protection], allowed: bool, expected: str) -> None:
    """Return probes are attached only where no process can be harmed; a refusal has its reason."""
    answer, reason = returns_allowed(survival, users)
    assert (allowed, "" if allowed else reason) == (answer, reason)
    assert expected in reason
