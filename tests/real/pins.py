"""The version of each package in the environments of tests/real that the table of releases gives no version of.

A file of constraints for pip for each environment. As a program: writes the versions that are installed, of the
environments that are named, after a change of the table. What is not installed keeps its line: another build of PyTorch
may need it.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

FOLDER = Path(__file__).parent / "constraints"


def file(name: str) -> Path:
    """Return the constraints of an environment."""
    return FOLDER / f"{name}.txt"


def package(requirement: str) -> str:
    """Return the name in a requirement, as PyPI compares names."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[=]", requirement)[0]).lower()


def write(name: str, requirements: tuple[str, ...], packages: Path) -> None:
    """Write the versions that are installed in an environment, of any build; pip itself comes with Python."""
    kept = dict(line.split("==") for line in file(name).read_text().splitlines()) if file(name).exists() else {}
    held = kept | {
        package(it.name): it.version.partition("+")[0] for it in metadata.distributions(path=[str(packages)])
    }
    left_out = {"pip", *(package(it) for it in requirements if "==" in it)}
    file(name).write_text("".join(f"{it}=={held[it]}\n" for it in sorted(held.keys() - left_out)))


if __name__ == "__main__":
    from tests.real.releases import ALL, packages

    for release in ALL:
        if release.name in sys.argv[1:]:
            write(release.name, (*release.requirements, *release.alone), packages(release))
