"""Builds the BPF objects (bpf/*.bpf.c) into the package; everything else about the package stands in pyproject.toml."""

from __future__ import annotations

import shutil
import subprocess
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
    if subprocess.run(["make", "--no-print-directory", "-C", str(ROOT / "bpf")]).returncode:
        raise SystemExit("accel-exporter: the BPF programs did not compile; the compiler's messages are above")


class BuildObjects(build_py):
    def run(self) -> None:
        build_objects()
        super().run()


class BuildObjectsInPlace(editable_wheel):
    def run(self) -> None:
        build_objects()
        super().run()


setup(cmdclass={"build_py": BuildObjects, "editable_wheel": BuildObjectsInPlace})
