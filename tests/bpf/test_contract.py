"""The contract between C and Python: every compiled object loads here, and has whatever Python looks up in it by name.

Objects and Python files are found by being there: a new probe is covered without a line here.
"""

from __future__ import annotations

import ast
import functools
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest

from exporter.bpf.libbpf import Object

ROOT = Path(__file__).parents[2]
SOURCES = {path.name.removesuffix(".bpf.c"): path for path in (ROOT / "bpf").rglob("*.bpf.c")}
MODULES = sorted((ROOT / "exporter").rglob("*.py"))
LOOKS_UP = re.compile(r"""\b(maps|programs)\[["']|\.(struct|enum)\(["']""")


@pytest.fixture(scope="module")
def objects() -> Path:
    """The exporter's objects, built again where a source has changed since."""
    made = subprocess.run(["make", "-s", "-j2", "-C", ROOT / "bpf"], capture_output=True, text=True, timeout=300)
    assert not made.returncode, made.stderr
    return ROOT / "exporter" / "bpf" / "objects"


@pytest.fixture(scope="module")
def load(objects) -> Iterator[Callable[[str], Object]]:
    """Loads an object, once for all tests: the kernel takes a second for the larger ones."""
    with ExitStack() as stack:
        yield functools.cache(
            lambda stem: stack.enter_context(Object(objects / platform.machine() / f"{stem}.bpf.o", multi=False))
        )


def stem_of(path: Path, tree: ast.AST) -> str | None:
    """The object that a module uses: one that the module opens by a literal name, else that of its file or folder."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="object_path"), args=[ast.Constant(value=str(stem))]) if stem in SOURCES:
                return stem
    return next((stem for stem in (path.stem, path.parent.name) if stem in SOURCES), None)


def names_used(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Yield the names that a module looks up, as in maps["calls"], object.programs["on_call"], types.struct("call").
    The first item is the object that the code names, as in cuda.types.enum("layer"), cuda_types.enum("layer") and
    cuda.maps["calls"], else empty.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(
                value=ast.Attribute(value=ast.Name(id=owner), attr=("maps" | "programs") as kind),
                slice=ast.Constant(value=str(name)),
            ) if owner in SOURCES:
                yield owner, kind, name
            case ast.Subscript(
                value=ast.Attribute(attr=("maps" | "programs") as kind) | ast.Name(id=("maps" | "programs") as kind),
                slice=ast.Constant(value=str(name)),
            ):
                yield "", kind, name
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Attribute(value=ast.Name(id=owner), attr="types") | ast.Name(id=owner),
                    attr=("struct" | "enum") as kind,
                ),
                args=[ast.Constant(value=str(name))],
            ) if owner.removesuffix("_types") in SOURCES:
                yield owner.removesuffix("_types"), kind, name
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Attribute(attr="types") | ast.Name(id="types"), attr=("struct" | "enum") as kind
                ),
                args=[ast.Constant(value=str(name))],
            ):
                yield "", kind, name


def uses() -> list[tuple[str, str, str, str]]:
    """Object, kind, name and file of everything that Python looks up."""
    found = []
    for path in MODULES:
        text = path.read_text()
        if not LOOKS_UP.search(text):
            continue  # each worker of pytest collects this: to parse all modules takes it a second
        tree = ast.parse(text)
        if stem := stem_of(path, tree):
            found += [
                (named or stem, kind, name, str(path.relative_to(ROOT))) for named, kind, name in names_used(tree)
            ]
    return sorted(set(found))


@pytest.mark.needs_bpf
@pytest.mark.parametrize("stem", sorted(SOURCES))
def test_every_object_loads_on_this_kernel(objects, load, stem, multi):
    """The verifier accepts every program, for multi-uprobe links and for perf events."""
    path = objects / platform.machine() / f"{stem}.bpf.o"
    with Object(path, multi=True) if multi else nullcontext(load(stem)) as loaded:
        assert loaded.programs
        assert [program.fd for program in loaded.programs.values() if program.fd < 0] == []


@pytest.mark.needs_bpf
@pytest.mark.parametrize(("stem", "kind", "name", "module"), uses(), ids=lambda value: str(value).replace("/", "."))
def test_what_python_names_is_declared_in_c(load, stem, kind, name, module):
    """Every map, program, struct and enum that a module names exists in its object."""
    if kind in ("struct", "enum"):
        assert getattr(load(stem).types, kind)(name)
    else:
        assert name in getattr(load(stem), kind), f"{module} looks it up"


def test_both_architectures_are_built(objects):
    """Whatever there is for one machine is there for the other."""
    x86, arm = ({path.name for path in (objects / machine).iterdir()} for machine in ("x86_64", "aarch64"))

    assert {f"{stem}.bpf.o" for stem in SOURCES} <= x86 & arm


@pytest.mark.needs_bpf
@pytest.mark.parametrize("stem", sorted(SOURCES))
def test_only_programs_with_kernel_types_need_kernel_btf(objects, stem):
    """An object loads with an empty /sys/kernel/btf unless its source includes kernel.h."""
    hide = 'mount -t tmpfs none /sys/kernel/btf && exec "$0" -c "$1" "$2"'
    script = "import sys, pathlib, exporter.bpf.libbpf as bpf; bpf.Object(pathlib.Path(sys.argv[1]))"
    path = objects / platform.machine() / f"{stem}.bpf.o"
    command = ["unshare", "--mount", "sh", "-c", hide, sys.executable, script, path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)

    assert ('#include "kernel.h"' in SOURCES[stem].read_text()) == bool(done.returncode), done.stderr
