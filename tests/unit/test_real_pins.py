"""Each package of the software that tests/real installs has one version."""

from __future__ import annotations

import re

import pytest

from tests.real import pins
from tests.real.releases import ALL, Release


@pytest.mark.parametrize("release", ALL, ids=lambda release: release.name)
def test_versions(release: Release) -> None:
    """The table or the constraints have the version of a requirement; constraints are nothing but exact versions."""
    lines = pins.file(release.name).read_text().splitlines()
    assert [] == [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[a-zA-Z0-9.!]+", line)]
    constrained = [pins.package(line) for line in lines]
    assert sorted(set(constrained)) == constrained
    for requirement in (*release.requirements, *release.alone):
        assert ("==" in requirement) != (pins.package(requirement) in constrained), requirement


def test_no_others() -> None:
    """Each file of constraints is that of a release."""
    assert {release.name for release in ALL} == {path.stem for path in pins.FOLDER.iterdir()}
