"""Frames of Python in interpreters that this machine does not have: Debian's, each in a root of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import debian_interpreters, interpreters
from tests.program.stacks import test_interpreter as checks

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.evidence(feature="profiles of stacks", on="real software"),
]


@pytest.mark.parametrize(
    "check",
    [
        checks.test_names_and_lines,
        checks.test_the_threads_of_an_interpreter,
        checks.test_lines_are_those_of_the_interpreter,
    ],
    ids=lambda check: check.__name__.removeprefix("test_"),
)
@pytest.mark.parametrize("suite", debian_interpreters.PACKAGES)
def test_debian(monkeypatch: pytest.MonkeyPatch, suite: str, check: Callable[[str], None]) -> None:
    program = debian_interpreters.program(suite)
    version = interpreters._version(program)
    assert f"python{version}".startswith(debian_interpreters.PACKAGES[suite])
    monkeypatch.setitem(checks.FOUND, version, program)
    check(version)
