"""The table of Xids."""

from __future__ import annotations

import re

import pytest

from exporter.faults.xid import catalog

BY_ACTION = {
    "RESTART_APP": "8 11 13 25 31 32 39-41 60 68-72 75-77 80 82-86 88 89 94 96-105 126-135 139",
    "RESET_GPU": "46 62 64 95 109 110 119 120 136 140 143 155 156 158",
    "RESTART_BM": "79 173",
    "RESTART_VM": "151",
    "WORKFLOW_XID_45": "45",
    "WORKFLOW_XID_48": "48",
    "WORKFLOW_NVLINK_ERR": "74",
    "WORKFLOW_NVLINK5_ERR": "144-150",
    "CHECK_MECHANICALS": "54",
    "UPDATE_SWFW": "78",
    "CHECK_UVM": "159",
    "XID_154": "154",
    "CONTACT_SUPPORT": "142",
    "IGNORE": "37 38 43 44 63 66 67 92 93 106 107 121 137 141 152 153 157 160 161",
    "": "162-172",
}
"""Codes of NVIDIA's catalog, October 2025, by immediate action; 173 after gpud."""


def codes(listed: str) -> set[int]:
    ranges = (part.partition("-") for part in listed.split())
    return {code for first, _, last in ranges for code in range(int(first), int(last or first) + 1)}


@pytest.mark.parametrize("action", BY_ACTION)
def test_actions_are_the_vendors(action: str) -> None:
    """Each code has the action that the vendor's catalog gives it, and no other code has that action."""
    assert codes(BY_ACTION[action]) == {code for code, it in catalog.XIDS.items() if it.action == action}


def test_words_are_explained() -> None:
    """Every action and category that a code has is explained, and every category is used."""
    given = {it.action for it in catalog.XIDS.values()} | set(catalog.RECOVERIES.values())
    assert set() == given - {catalog.NOT_GIVEN} - catalog.ACTIONS.keys()
    used = {it.category for it in catalog.XIDS.values()}
    assert catalog.CATEGORIES.keys() == used | {catalog.NETWORK, catalog.UNKNOWN}


def test_texts_are_short_and_distinct() -> None:
    """A text fits a line, is no name in capitals out of a header file, and belongs to one code."""
    texts = [it.text for it in catalog.XIDS.values()]
    assert len(set(texts)) == len(texts)
    assert [] == [text for text in texts if len(text) > 80 or re.search(r"[A-Z]+_[A-Z]+|\.$", text)]


def test_engines() -> None:
    """Engines are numbered as the driver numbers them, though their codes are strewn."""
    texts = [catalog.xid(code).text for code in (39, 70, 85, 126, 135, 68, 98, 82, 105)]
    expected = [f"copy engine {n} failed" for n in (0, 3, 9, 10, 19)]
    expected += [f"video decoder {n} failed" for n in (0, 7)] + [f"JPEG engine {n} failed" for n in (0, 7)]
    assert expected == texts


@pytest.mark.parametrize("code", [0, 1, 42, 61, 174, 99999])
def test_unknown_code(code: int) -> None:
    """A code outside the catalog has the action CONTACT_SUPPORT and the category unknown."""
    assert ("CONTACT_SUPPORT", "unknown") == (catalog.xid(code).action, catalog.xid(code).category)
