"""Debian's kernels for x86-64 and arm64, and for arm64 what else a machine needs: a root file system and stand-ins."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bpf.cuda_node import BUILD as STANDINS_HERE
from tests.bpf.cuda_node import STANDINS, build_standins
from tests.packages import NotAvailable, Release
from tests.rdma import rig
from tests.rdma.boot import ARM64, Kernel, System
from tests.rdma.rig import REPOSITORY, Host

TOOLS = {
    "amd64": ("qemu-system-x86_64", "busybox"),
    "arm64": ("qemu-system-aarch64", "aarch64-linux-gnu-gcc"),
}
"""Programs that a machine of an architecture takes."""
ROOT_SUITE, ROOT_PYTHON = "bookworm", "3.11"
ROOT_PACKAGES = (
    *("base-passwd", "bash", "busybox-static", "coreutils", "dash", "grep", "iproute2", "mawk", "mount", "sed"),
    *("ibverbs-providers", "libbpf1", "libc6-dev", "libibverbs-dev", "make", "python3"),
)
ROOT_LINKS = {
    "etc/passwd": "../usr/share/base-passwd/passwd.master",
    "etc/group": "../usr/share/base-passwd/group.master",
    "usr/bin/awk": "mawk",
}
"""Links that the packages' install scripts would make."""
PROCESSORS = {"amd64": 16, "arm64": 4}
"""Of a machine of an architecture."""
TEST_TOOLS = ("hypothesis", "pytest", "pytest-timeout")
"""Of the extra `dev` in pyproject.toml, what the tests in the machine import."""


@dataclass(frozen=True)
class Guest:
    """A machine with the checkout, stand-in libraries for its processors, and a Python that runs the tests."""

    host: Host
    architecture: str
    python: str

    def run(self, arguments: str, seconds: float) -> str:
        """Run Python in the checkout, where BPF may not be refused, and return the output. Raises RigError."""
        return self.host.run(f"cd {REPOSITORY}; REQUIRE_BPF=1 exec {self.python} {arguments}", seconds)


@contextmanager
def guest(suite: str, architecture: str) -> Iterator[Guest]:
    """A machine with the kernel of a Debian release. Raises NotAvailable, or RigError if it does not come up."""
    kernel = Kernel(_kernel(suite, architecture))
    if architecture == "amd64":
        build_standins()
        with rig.machine("v", processors=PROCESSORS[architecture], system=System(kernel)) as host:
            yield Guest(host, architecture, ".venv/bin/python")
        return
    root = _root(architecture)
    standins = _standins(root)
    with rig.machine("v", processors=PROCESSORS[architecture], system=System(kernel, root, ARM64)) as host:
        host.run(f"mkdir -p {STANDINS_HERE}; mount --bind {standins} {STANDINS_HERE}")
        yield Guest(host, architecture, "python3")


def _kernel(suite: str, architecture: str) -> Path:
    kept = rig.BUILD / "kernels" / f"{suite}-{architecture}"
    if kept.exists():
        return kept
    part = _emptied(kept.with_suffix(".part"))
    release = Release(suite, architecture, part)
    [image] = [it for it in release.needs(f"linux-image-{architecture}") if it.startswith("linux-image-")]
    version = image.removeprefix("linux-image-")
    root = release.unpack([image, *(it for it in release.needs(image) if it.endswith(version))])
    subprocess.run(["depmod", "--basedir", Kernel(root).modules.parents[2], version], check=True)
    return _kept(root, part, kept)


def _root(architecture: str) -> Path:
    """Files of Debian's packages, with what the exporter and its tests need of PyPI. No script of theirs is run."""
    requirements = _requirements()
    digest = hashlib.sha256(repr((ROOT_PACKAGES, ROOT_LINKS, requirements)).encode()).hexdigest()[:12]
    kept = rig.BUILD / "roots" / f"{architecture}-{digest}"
    if kept.exists():
        return kept
    part = _emptied(kept.with_suffix(".part"))
    root = Release(ROOT_SUITE, architecture, part).unpack_with_needs(ROOT_PACKAGES)
    for name, to in ROOT_LINKS.items():
        (root / name).symlink_to(to)
    _wheels(requirements, root / f"usr/local/lib/python{ROOT_PYTHON}/dist-packages")
    return _kept(root, part, kept)


def _standins(root: Path) -> Path:
    """The stand-in libraries for arm64, compiled here against the root."""
    build = rig.BUILD / "standins-arm64"
    compiler = f"aarch64-linux-gnu-gcc --sysroot={root}"
    subprocess.run(["make", "-s", "-C", STANDINS, f"BUILD={build}", f"CC={compiler}"], check=True)
    return build


def _requirements() -> list[str]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    tools = [it for it in project["optional-dependencies"]["dev"] if it.partition(">=")[0] in TEST_TOOLS]
    return [*project["dependencies"], *tools]


def _wheels(requirements: Sequence[str], folder: Path) -> None:
    platforms = [f"--platform=manylinux{it}_aarch64" for it in ("2014", "_2_17", "_2_28")]
    choices = ["--only-binary=:all:", f"--python-version={ROOT_PYTHON}", "--implementation=cp", *platforms]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, *choices, *requirements]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotAvailable(f"pip: {done.stderr.strip()[-500:]}")


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _kept(root: Path, part: Path, kept: Path) -> Path:
    root.rename(kept)
    shutil.rmtree(part)
    return kept
