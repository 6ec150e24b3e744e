"""Shares of users: time, places, and what libraries are called."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from exporter.bpf import naming, shares
from exporter.bpf.elf import Function
from exporter.bpf.library import Library
from exporter.bpf.shares import CREDIT, PLACES, REFILL, Shares


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(shares.time, "monotonic", lambda: self.now)


def test_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user that spends more than the credit waits until some has come back; others do not."""
    clock, kept = Clock(monkeypatch), Shares(tmp_path)
    kept.spend(1, CREDIT + 2)
    assert (False, True) == (kept.may_spend(1), kept.may_spend(2))
    clock.now += 2 / REFILL - 1
    assert not kept.may_spend(1)
    clock.now += 2
    assert kept.may_spend(1)
    clock.now += 1e6
    kept.spend(1, CREDIT + 1)
    assert not kept.may_spend(1)


def test_users_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users that would have all of their credit again are forgotten, and no one who owes."""
    monkeypatch.setattr(shares, "MAX_USERS", 3)
    clock, kept = Clock(monkeypatch), Shares(tmp_path)
    kept.spend(0, CREDIT * 2)
    kept.spend(1, 1)
    for user in range(2, 50):
        clock.now += 1
        assert kept.may_spend(user)
        assert len(kept._credits) <= 3
    assert not kept.may_spend(0)


def test_places(tmp_path: Path) -> None:
    """Everybody has so many places; one that is given back can be taken again."""
    kept = Shares(tmp_path)
    assert [True] * PLACES + [False] == [kept.take_place(1) for _ in range(PLACES + 1)]
    assert kept.take_place(2)
    kept.give_place(1)
    assert [True, False] == [kept.take_place(1), kept.take_place(1)]


def library(path: str, build_id: str = "") -> Library:
    return Library((0, 0), path, "", 62, build_id, {})


def test_names() -> None:
    """Copies have one name; long paths are cut and differ still; there are so many names and no more."""
    copies = [library(f"/home/{number}/libcuda.so.1", "aa") for number in range(100)]
    long = [library("/" + "x" * number + "/libcuda.so.1", str(number)) for number in (1000, 1001)]
    many = [library(f"/lib{number}.so", f"b{number}") for number in range(300)]
    found = naming.names([*copies, *long, *many])
    assert {"/home/0/libcuda.so.1"} == {found[id(it)] for it in copies}
    shown = [found[id(it)] for it in long]
    assert shown[0] != shown[1]
    assert all(len(it) == naming.LONGEST and it.endswith("/libcuda.so.1") for it in shown)
    assert naming.MOST + 1 == len(set(found.values()))
    assert naming.OTHERS == found[id(many[-1])]


def test_a_file_that_claims_to_be_another() -> None:
    """The name of a file of root is not for others: not by a build id, nor by a path, nor by being a copy."""
    path = "/usr/lib/libcuda.so.1"
    function = Function("cuInit", 64, 8, 64, 1)
    hostile = replace(library("/tmp/x.so", "aa"), owner=1000)
    bound = replace(library(path, "bb"), owner=1000)
    copy = replace(library("/tmp/y.so", "aa"), owner=1000, functions={"cuInit": function})
    system = replace(library(path, "aa"), owner=0, functions={"cuInit": function})
    image = replace(system, path="/image/libcuda.so.1")
    other = replace(system, path="/other/libcuda.so.1", functions={"cuInit": replace(function, offset=72)})
    found = naming.names([hostile, bound, copy, system, image, other])
    names = [found[id(it)] for it in (hostile, bound, copy, system, image, other)]
    assert ["/tmp/x.so", f"{path} (user 1000)", "/tmp/y.so", path, path, "/other/libcuda.so.1"] == names


def test_names_of_files_without_a_build_id() -> None:
    """Files without a build id are distinguished by path."""
    first, second, again = library("/a.so"), library("/b.so"), library("/a.so")
    found = naming.names([first, second, again])
    assert ["/a.so", "/b.so", "/a.so"] == [found[id(it)] for it in (first, second, again)]
