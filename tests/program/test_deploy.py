"""Capabilities granted by deployments are those that the exporter keeps."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from exporter.bpf import privileges

ROOT = Path(__file__).parents[2]
KEPT = {*privileges.OBSERVING, privileges.READING_THE_LOG}


def test_the_image_names_the_capabilities_it_needs() -> None:
    """The image's label lists those that are kept on a current kernel, and no others."""
    label = re.search(r'accel-exporter\.capabilities="([^"]*)"', (ROOT / "Dockerfile").read_text())
    assert label
    assert KEPT == {f"CAP_{name}" for name in label[1].split()}


def test_the_service_grants_the_capabilities_it_needs() -> None:
    """The unit's ambient and bounding sets are those that are kept on a current kernel."""
    unit = (ROOT / "deploy" / "systemd" / "accel-exporter.service").read_text()
    sets = dict(re.findall(r"^(AmbientCapabilities|CapabilityBoundingSet)=(.*)$", unit, re.MULTILINE))
    assert {"AmbientCapabilities": KEPT, "CapabilityBoundingSet": KEPT} == {
        name: set(granted.split()) for name, granted in sets.items()
    }


def test_the_service_forbids_what_its_capabilities_would_allow() -> None:
    """CAP_SYS_PTRACE is for /proc: what else it opens is refused, and so are core files and endless forks."""
    unit = (ROOT / "deploy" / "systemd" / "accel-exporter.service").read_text()
    denied = " ".join(re.findall(r"^SystemCallFilter=~(.*)$", unit, re.MULTILINE)).split()
    assert {"ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "@keyring", "@module"} <= set(denied)
    assert re.search(r"^TasksMax=[0-9]+$", unit, re.MULTILINE)
    assert re.search(r"^LimitCORE=0$", unit, re.MULTILINE)


def test_the_composition_is_for_this_machine() -> None:
    """Grafana and Prometheus without a password are published on the loopback only."""
    services = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text())["services"]
    published = [port for it in services.values() for port in it.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_the_image_is_built_from_locked_versions() -> None:
    """Everything that pyproject.toml wants of the image has a version and hashes in the lock, nothing is without."""
    given = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = given["project"]
    wanted = given["build-system"]["requires"] + project["dependencies"] + project["optional-dependencies"]["otlp"]
    text = (ROOT / "deploy/image/requirements.txt").read_text()
    hashes = r"((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)"
    locked = re.findall(r"^([a-z0-9-]+)==([^ ]+) \\\n" + hashes, text, re.MULTILINE)
    versions = {name: version for name, version, _ in locked}

    assert len(versions) == sum(not line.startswith((" ", "#")) and bool(line) for line in text.splitlines())
    for requirement in wanted:
        name, least = re.split(">=", requirement)
        assert _number(versions[name]) >= _number(least), requirement
    assert "--require-hashes -r deploy/image/requirements.txt" in (ROOT / "Dockerfile").read_text()


def _number(version: str) -> list[int]:
    return [int(part) for part in re.findall("[0-9]+", version)]


@pytest.mark.parametrize("name", ["uo$te", "{x}", "x}"])
def test_a_path_that_packaging_cannot_take(tmp_path: Path, name: str) -> None:
    """Setup names the path in one sentence, before anything is installed."""
    script = tmp_path / name / "deploy" / "setup.sh"
    script.parent.mkdir(parents=True)
    shutil.copy(ROOT / "deploy" / "setup.sh", script)
    done = subprocess.run([script, "base"], capture_output=True, text=True, timeout=60)
    assert (1, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
    assert str(tmp_path / name) in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="without root this is refused")
@pytest.mark.parametrize("variables", [{}, {"PATH": "/nonexistent"}])
def test_root_without_a_path(variables: dict[str, str]) -> None:
    """Root is known as such without PATH, or with one that has no programs."""
    make = shutil.which("make")
    assert make
    done = subprocess.run([make, "-s", "as-root"], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60)
    assert (0, "") == (done.returncode, done.stderr)
