"""Collapsed stacks, rows for Grafana, groups, and limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exporter.stack_profiles import bounds
from exporter.stack_profiles.model import INUSE, Frame, StackProfile, StackSample
from exporter.views.stack_profiles import collapsed, tree
from exporter.views.stack_profiles import rows as rows_module
from exporter.views.stack_profiles.rows import SMALLER, rows
from exporter.views.stack_profiles.tree import BY, group
from tests import made_up_profiles as made_up

TENSOR = "at::empty_cuda(c10::IntArrayRef) (EmptyTensor.cpp:69)"


def test_collapsed_stacks() -> None:
    """A line for each stack, from the root to the leaf, and its value; of the other type its count."""
    expected = (
        "[unknown stack] 7\n"
        "cudaMalloc;do_syscall_64 23\n"
        f"main (serve.py:7);allocate_kv_cache (engine.py:23);{TENSOR};libc10_cuda.so+0x5e10;cudaMalloc 600\n"
        f"main (serve.py:7);load_weights (model.py:120);{TENSOR};libc10_cuda.so+0x5e10;cudaMalloc 1000\n"
    )
    assert expected == collapsed.encode(made_up.inuse()).decode()
    assert ["1", "1", "3", "2"] == [
        line.split()[-1] for line in collapsed.encode(made_up.inuse(), 1).decode().split("\n")[:-1]
    ]
    assert b"train (815);[unknown stack] 7\n" in collapsed.encode(made_up.inuse(), by="process")


def test_semicolons_do_not_split_a_frame() -> None:
    """A frame is one frame, whatever its name; what was freed is no line."""
    frame = Frame("a;b\nc")
    samples = (StackSample((frame,), {}, (23, 1)), StackSample((Frame("freed"),), {}, (-5, -1)))

    assert b"a:b\\nc 23\n" == collapsed.encode(StackProfile(INUSE, samples, made_up.SPACE))


@pytest.mark.parametrize("by", BY)
def test_groups(by: str) -> None:
    """A sample's group has its labels, and one without has none made up."""
    sample = made_up.inuse().samples[0]
    expected = {
        "process": "serve (4711)",
        "gpu": "GPU-aaaa",
        "workload": "llm",
        "pod": "llm-0",
        "kind": "device",
        "rank": "0",
    }

    assert expected[by] == group(sample, by)
    assert f"no {by}" == group(replace(sample, labels={}), by)


def test_rows_are_a_tree_in_order() -> None:
    """Level, value and self of each row: a child comes below its caller, the largest first, and selves add up."""
    found = rows(made_up.inuse())

    assert [(0, 1630, 0, "total"), (1, 1600, 0, "main (serve.py:7)"), (2, 1000, 0, "load_weights (model.py:120)")] == [
        (row["level"], row["value"], row["self"], row["label"]) for row in found[:3]
    ]
    assert 1630 == sum(row["self"] for row in found)
    for before, row in zip(found, found[1:], strict=False):
        assert row["level"] <= before["level"] + 1
    assert rows(StackProfile(INUSE, (), made_up.SPACE)) == [{"level": 0, "value": 0, "self": 0, "label": "total"}]


def test_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a wide tree the largest rows stay, and the others are added up under their caller: selves still add up."""
    monkeypatch.setattr(rows_module, "MOST_ROWS", 20)
    samples = tuple(StackSample((Frame(f"f{at}"), Frame("main")), {}, (at + 1, 1)) for at in range(100))
    found = rows(StackProfile(INUSE, samples, made_up.SPACE))

    assert len(found) <= 20
    assert 5050 == sum(row["self"] for row in found) == found[0]["value"]
    assert ["f99", "f98"] == [row["label"] for row in found[2:4]]
    assert SMALLER in [row["label"] for row in found]


def test_a_profile_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest samples stay, the others are one; a deep stack keeps its leaf; the sum is that of all."""
    monkeypatch.setattr(bounds, "MOST_SAMPLES", 4)
    monkeypatch.setattr(bounds, "MOST_FRAMES", 3)
    deep = tuple(Frame(f"d{at}") for at in range(10))
    samples = tuple(StackSample((Frame(f"f{at}"),) if at else deep, {"pid": "1"}, (at or 1000, 1)) for at in range(10))
    kept = bounds.bounded(StackProfile(INUSE, samples, made_up.SPACE))

    assert ["d0", "f9", "f8", bounds.REST.name] == [it.stack[0].name for it in kept.samples]
    assert ["d0", "d1", bounds.FURTHER.name] == [it.name for it in kept.samples[0].stack]
    assert (1045, 10) == (kept.total(), kept.total(1))

    monkeypatch.setattr(bounds, "MOST_PLACES", 4)
    kept = bounds.bounded(StackProfile(INUSE, samples, made_up.SPACE))
    assert ["d0", "f9", bounds.REST.name] == [it.stack[0].name for it in kept.samples]
    assert (1045, 10) == (kept.total(), kept.total(1))


def test_trees_and_lines_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many and however long the names are, a tree and the lines have a size, and the sum of all."""
    monkeypatch.setattr(tree, "MOST_NODES", 7)
    monkeypatch.setattr(collapsed, "MOST_CHARACTERS", 20)
    samples = tuple(StackSample((Frame(f"leaf{at}"), Frame(f"f{at}")), {}, (at + 1, 1)) for at in range(10))
    profile = StackProfile(INUSE, samples, made_up.SPACE)
    found = rows(profile)

    assert [(0, "total", 55, 0), (1, tree.DEEPER, 21, 21), (1, "f9", 10, 0), (2, "leaf9", 10, 10)] == [
        (row["level"], row["label"], row["value"], row["self"]) for row in found[:4]
    ]
    assert (2, tree.DEEPER, 7, 7) == tuple(found[-1][name] for name in ("level", "label", "value", "self"))
    assert 55 == sum(row["self"] for row in found)
    assert b"[stacks too small to be shown] 28\nf7;leaf7 8\nf8;leaf8 9\nf9;leaf9 10\n" == collapsed.encode(profile)
