"""The package as a person installs it: source archive, wheel, a fresh virtual environment, outside the checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from exporter import __version__

pytestmark = pytest.mark.evidence(feature="wheel", on="real software")

ROOT = Path(__file__).parents[2]
REVISION = "0123456789abcdef0123456789abcdef01234567"
SOURCES = sorted((ROOT / "bpf").rglob("*.bpf.c"))
PROBES = sorted(path.name.removesuffix(".c") for path in SOURCES)


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where pip reaches no package index: a build installs setuptools. REQUIRE_WHEELS=1 makes that a failure."""
    folder = tmp_path_factory.mktemp("index")
    done = run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "setuptools>=77", cwd=folder)
    if done.returncode:
        reason = f"pip reaches no package index: {done.stderr.strip().splitlines()[-1]}"
        if os.environ.get("REQUIRE_WHEELS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git would hold of this checkout: no objects, no virtual environment."""
    copy = tmp_path_factory.mktemp("checkout")
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    assert 0 == listed.returncode, listed.stderr
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def archive(checkout: Path, index: None) -> Path:
    done = run(sys.executable, "-m", "build", "--sdist", "--outdir", "dist", cwd=checkout)
    assert 0 == done.returncode, done.stderr
    return next((checkout / "dist").glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, archive)
    done = run(*pip, cwd=folder, REVISION=REVISION, SOURCE_DATE_EPOCH="1700000000")
    assert 0 == done.returncode, done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of a virtual environment that holds nothing but the wheel and what it depends on."""
    folder = tmp_path_factory.mktemp("installed")
    made = run(sys.executable, "-m", "venv", "venv", cwd=folder)
    assert 0 == made.returncode, made.stderr
    done = run(folder / "venv/bin/python", "-m", "pip", "install", "--quiet", wheel, cwd=folder)
    assert 0 == done.returncode, done.stderr
    return folder / "venv" / "bin" / "accel-exporter"


def outside(installed: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the installed command where no checkout is on the path."""
    return run(installed, *arguments, cwd=installed.parent, PYTHONPATH="", **environment)


def test_source_archive_holds_the_probes_source_and_nothing_built(archive: Path) -> None:
    """The BPF sources, their Makefile and the licence are in it; objects are not."""
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    sources = {str(path.relative_to(ROOT)) for path in SOURCES}
    wanted = {"LICENSE", "README.md", "setup.py", "bpf/Makefile", "bpf/probe.h", "bpf/cuda/calls.h", *sources}
    assert set() == wanted - names
    assert [] == [name for name in names if name.endswith(".o")]


def test_wheel_holds_every_probe_for_both_architectures(wheel: Path) -> None:
    """Each probe is there as a BPF object for x86-64 and for arm64, the licence beside them, and no tests."""
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        heads = {name: packed.read(name)[:20] for name in names if name.endswith(".bpf.o")}
    folder = "exporter/bpf/objects"
    assert {f"{folder}/{machine}/{stem}.o" for machine in ("x86_64", "aarch64") for stem in PROBES} == set(heads)
    assert {b"\x7fELF"} == {head[:4] for head in heads.values()}
    assert {247} == {int.from_bytes(head[18:20], "little") for head in heads.values()}, "EM_BPF"
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {"exporter", f"accel_exporter-{__version__}.dist-info"} == {name.partition("/")[0] for name in names}


def test_wheel_has_what_modules_read_beside_them(wheel: Path) -> None:
    """Every file under exporter/ that is not Python or built here is in the wheel too."""
    tracked = run("git", "ls-files", "exporter", cwd=ROOT).stdout.splitlines()
    with zipfile.ZipFile(wheel) as packed:
        missing = {name for name in tracked if (ROOT / name).is_file()} - set(packed.namelist())
    assert set() == missing


def test_installed_command_prints_version_and_revision(installed: Path) -> None:
    """--version in a fresh virtual environment names the version, the commit and the day it was built from."""
    done = outside(installed, "--version")
    assert (0, "") == (done.returncode, done.stderr)
    assert done.stdout.startswith(f"accel-exporter {__version__} (revision {REVISION}, built 2023-11-14T22:13:20Z, ")


def test_installed_doctor_finds_its_objects(installed: Path) -> None:
    """doctor runs from the wheel alone, reports in JSON, and finds the object of every probe."""
    done = outside(installed, "doctor", "--json")
    assert done.returncode in (0, 1), done.stderr
    assert json.loads(done.stdout)
    assert not re.search(r"no such object|of another version", done.stdout)


@pytest.mark.needs_bpf
def test_installed_exporter_loads_and_attaches(installed: Path) -> None:
    """`doctor --check` of the installed wheel loads and attaches everything on a machine that allows it."""
    done = outside(installed, "doctor", "--check")
    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("tools", "packages"),
    [((), "clang llvm make"), (("make",), "clang llvm"), (("make", "clang"), "llvm")],
)
def test_building_without_a_compiler_names_the_packages(
    checkout: Path, index: None, tmp_path: Path, tools: tuple[str, ...], packages: str
) -> None:
    """Without clang, llvm-strip or make the build stops with one sentence and the command that installs them."""
    done = build_with(checkout, tmp_path, {tool: shutil.which(tool) or "" for tool in tools})
    assert 0 != done.returncode
    named = re.findall(r"^ *(?:> *)?apt-get install (.*)$", done.stdout + done.stderr, re.MULTILINE)
    assert packages in named


def build_with(checkout: Path, folder: Path, tools: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Builds a wheel with a PATH that has only these programs."""
    path = folder / "path"
    path.mkdir()
    for name, target in tools.items():
        (path / name).symlink_to(target)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, checkout)
    return run(*pip, cwd=folder, PATH=str(path))
