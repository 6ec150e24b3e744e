"""The server that a process works for, from the process tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exporter.linking.lineage import MOST_GENERATIONS, Lineages, server_of

PYTHON, SHELL = "/usr/bin/python3", "/usr/bin/bash"


class Tree:
    """A /proc of processes with these parents. Pids are above those that the kernel gives."""

    FIRST = 1 << 23

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, pid: int, parent: int, program: str = PYTHON, started: int = 5) -> None:
        process = self.folder / str(self.FIRST + pid)
        process.mkdir(exist_ok=True)
        above = self.FIRST + parent if parent else 1
        (process / "stat").write_text(f"{pid} (a) S 9 b) S {above} {'0 ' * 17}{started} 0\n")
        (process / "exe").unlink(missing_ok=True)
        (process / "exe").symlink_to(program)

    def end(self, pid: int) -> None:
        (self.folder / str(self.FIRST + pid) / "stat").unlink()

    def server(self, pid: int, servers: set[int], lineages: Lineages | None = None) -> int | None:
        found = server_of(self.FIRST + pid, {self.FIRST + it for it in servers}, lineages or Lineages(self.folder))
        return None if found is None else found - self.FIRST


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A program (2) that starts API servers (3, 4) and an engine (5) with a worker (6), from a shell (1)."""
    tree = Tree(tmp_path)
    tree.add(1, 0, SHELL)
    for pid, parent in ((2, 1), (3, 2), (4, 2), (5, 2), (6, 5), (7, 1)):
        tree.add(pid, parent)
    return tree


@pytest.mark.parametrize(
    ("pid", "servers", "found"),
    [
        (6, {6, 5}, 6),
        (6, {5, 2}, 5),
        (6, {2, 7}, 2),
        (6, {1}, 1),
        (6, {3}, 3),
        (6, {7}, None),  # only the shell is above both
        (6, set(), None),
        (99, {2}, None),
    ],
)
def test_the_nearest_server(tree: Tree, pid: int, servers: set[int], found: int | None) -> None:
    """Return the process itself, one above it, or one that the same program has started."""
    assert found == tree.server(pid, servers)


def test_two_servers_are_ambiguous(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless one of them has ended."""
    ended: set[int] = set()
    monkeypatch.setattr("exporter.linking.lineage.has_ended", lambda pid: pid - Tree.FIRST in ended)
    assert tree.server(6, {3, 4}) is None
    ended.add(3)
    assert 4 == tree.server(6, {3, 4})


def test_a_lineage_is_kept(tree: Tree) -> None:
    """A lineage outlives the parents and the process, until another process has the pid."""
    lineages = Lineages(tree.folder)
    assert 2 == tree.server(6, {2}, lineages)
    tree.add(6, 0)
    assert 2 == tree.server(6, {2}, lineages)
    tree.end(6)
    assert 2 == tree.server(6, {2}, lineages)
    tree.add(6, 7, started=6)
    assert 7 == tree.server(6, {2, 7}, lineages)


def test_a_long_line_ends(tree: Tree) -> None:
    """A chain of parents, also one that is a circle, is followed for some generations."""
    tree.add(8, 9)
    tree.add(9, 8)
    lineage = Lineages(tree.folder).of(Tree.FIRST + 8)
    assert lineage
    assert MOST_GENERATIONS == len(lineage.above)


def test_the_real_one() -> None:
    """The parent of this process is above it."""
    lineage = Lineages(Path("/proc")).of(os.getpid())
    assert lineage
    assert os.getppid() == lineage.above[0]
