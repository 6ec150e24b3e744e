"""Builds the BPF objects (bpf/**/*.bpf.c) into the package and records which revision it is; the rest of the packaging
stands in pyproject.toml. The wheel is for any platform: BPF objects are data to Python, and those of both
architectures are in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

ROOT = Path(__file__).resolve().parent
NEEDED = {"clang": "clang", "llvm-strip": "llvm", "make": "make"}


def build_objects() -> None:
    """Compile every probe for both architectures into exporter/bpf/objects (bpf/Makefile).

    Raises SystemExit naming the packages to install when a tool or the libbpf headers are missing.
    """
    missing = [package for tool, package in NEEDED.items() if shutil.which(tool) is None]
    if not Path("/usr/include/bpf/bpf_helpers.h").exists():
        missing.append("libbpf-dev")
    if missing:
        raise SystemExit(
            "accel-exporter: the BPF programs cannot be compiled here; install what is missing and try again:\n"
            f"    apt-get install {' '.join(missing)}"
        )
    if subprocess.run(["make", "--no-print-directory", f"-j{os.cpu_count() or 1}", "-C", str(ROOT / "bpf")]).returncode:
        raise SystemExit("accel-exporter: the BPF programs did not compile; the compiler's messages are above")
    sources = {source.name for source in ROOT.glob("bpf/**/*.bpf.c")}
    for built in ROOT.glob("exporter/bpf/objects/*/*.bpf.o"):
        if built.with_suffix(".c").name not in sources:
            built.unlink()


def revision() -> str:
    """The commit this is built from: $REVISION (an image's build has no git), else git's; "unknown" without either."""
    given = os.environ.get("REVISION", "")
    if not given and (ROOT / ".git").exists() and shutil.which("git"):
        done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
        given = done.stdout.strip()
    return given or "unknown"


class BuildPackage(build_py):
    def run(self) -> None:
        build_objects()
        # setuptools never removes from its build folder what the source no longer has.
        shutil.rmtree(Path(self.build_lib, "exporter"), ignore_errors=True)
        super().run()
        if not self.editable_mode:
            built = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
            facts = {"revision": revision(), "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", built)}
            Path(self.build_lib, "exporter", "build.json").write_text(json.dumps(facts) + "\n")


class BuildInPlace(editable_wheel):
    def run(self) -> None:
        build_objects()
        super().run()


setup(cmdclass={"build_py": BuildPackage, "editable_wheel": BuildInPlace})
