"""Xids 144 to 150 by unit, status and reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.faults.xid.catalog import ACTIONS, CATEGORIES
from exporter.faults.xid.nvlink import UNITS, decode


def message(unit: str, info: int, status: int, severity: str = "Nonfatal", link: str = "05") -> str:
    return f"{unit} {severity} XC0 i0 Link {link} ({info:#010x} {status:#010x} 0x00000000 0x00000000 0x00000000)"


def reason(number: int) -> int:
    """intrInfo of a driver from R575 on: unit 17 in bits 0 to 6, the reason in bits 20 to 25."""
    return number << 20 | 17


TABLE = {
    "SAW_MVB": {"RESET_GPU": (0x2, 0x10), "IGNORE": (0x1, 0x4, 0x8, 0x20)},
    "RLW_CTRL": {"IGNORE": (0x80000000,)},
    "RLW_REMAP": {
        "XID_154_EVAL": (0x1, 0x2, 0x4, 0x8, 0x10, 0x20),
        "RESET_GPU": (0x40, 0x80),
        "IGNORE": (0x100, 0x200, 0x80000000),
    },
    "RLW_RSPCOL": {"RESET_GPU": (0x2,), "IGNORE": (0x1, 0x80000000)},
    "RLW_RXPIPE": {"IGNORE": (0x1, 0x2, 0x4, 0x8, 0x80000000)},
    "RLW_SRC_TRACK": {"RESET_GPU": (0x1, 0x10, 0x20), "XID_154_EVAL": (0x4, 0x8), "IGNORE": (0x2, 0x80000000)},
    "RLW_TAGSTATE": {"RESET_GPU": (0x2, 0x20000, 0x100000), "IGNORE": (0x1, 0x10000, 0x80000000)},
    "TLW_CTRL": {"RESET_GPU": (0x4,), "IGNORE": (0x1, 0x2, 0x80000000)},
    "TLW_RX": {"RESET_GPU": (0x4,), "IGNORE": (0x1, 0x2, 0x80000000)},
    "TLW_TX": {"RESET_GPU": (0x4,), "IGNORE": (0x1, 0x2, 0x80000000)},
    "TREX": {"IGNORE": (0x1, 0x80000000)},
    "NVLPW": {"IGNORE": (0x80000000,)},
    "NETIR_INT": {"RESET_GPU": (0, 7)},
    "NETIR_BER_EVENT": {"IGNORE": (0, 1, 2, 3)},
    "NETIR_MFDE_EVENT": {"RESET_GPU": (1, 4, 5, 7), "IGNORE": (3,)},
    "MSE_WATCHDOG": {"RESET_GPU": (0,)},
    "MSE_DEGRADED": {"RESET_GPU": (0, 0xFFFFFFFF)},
}


@pytest.mark.parametrize(
    ("unit", "status", "action"),
    [
        (unit, status, action)
        for unit, actions in TABLE.items()
        for action, statuses in actions.items()
        for status in statuses
    ],
)
def test_unit_and_status(unit: str, status: int, action: str) -> None:
    """Each status of a unit has its own action."""
    decoded = decode(message(unit, 0, status))
    assert decoded is not None
    assert (unit, action, status) == (decoded.unit, decoded.action, decoded.status)


@pytest.mark.parametrize("number", range(64))
def test_lost_link(number: int) -> None:
    """The reason of a lost link decides: most reasons need a reset, two nothing, two a look at the cables."""
    reset = {0, 1, 2, 4, 10, 15, 16, 17, 18, 21, 22, 32, 33, 34, 35, 36, 37, 42, 43}
    decoded = decode(message("NETIR_LINK_DOWN", reason(number), 0, "Fatal"))
    assert decoded is not None
    expected = "RESET_GPU" if number in reset else "IGNORE" if number in {38, 40} else "WORKFLOW_NVLINK5_ERR"
    category = "network_switch_cable" if number in {42, 43} else "faulty_gpu"
    assert (number, expected, category) == (decoded.reason, decoded.action, decoded.category)


@pytest.mark.parametrize(
    ("line", "unit", "action", "link"),
    [
        # Lines of real machines, from public reports.
        (
            "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
            "NETIR_LINK_DOWN",
            "RESET_GPU",
            8,
        ),
        (
            "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
            "NETIR_LINK_DOWN",
            "IGNORE",
            0,
        ),
        (
            "NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
            "NETIR_INT",
            "RESET_GPU",
            -1,
        ),
        (
            "pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 "
            "0x00000000 0x00100000 0x00000004)",
            "RLW_RXPIPE",
            "IGNORE",
            13,
        ),
        (
            "RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x00000000 0x00000000 0x00000000 0x00000000)",
            "RLW_SRC_TRACK",
            "XID_154_EVAL",
            12,
        ),
        (
            "NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x00082226 0x00000001 0x00000000 0x00000000 0x00000000)",
            "NETIR_BER_EVENT",
            "IGNORE",
            1,
        ),
        ("pid=4, name=<unknown>, TLW_RX/TLW_RX_PIPE1 Fatal XC0 i1 Link 00 (0x0000000b 0x4)", "TLW_RX", "RESET_GPU", 0),
        ("MSE Degraded Fatal XC0 i0 Link 00 (0x00000000 0xffffffff 0x0)", "MSE_DEGRADED", "RESET_GPU", 0),
    ],
)
def test_real_lines(line: str, unit: str, action: str, link: int) -> None:
    """Unit names of older drivers, and a process before the unit, change nothing."""
    decoded = decode(line)
    assert decoded is not None
    assert (unit, action, link) == (decoded.unit, decoded.action, decoded.link)


@pytest.mark.parametrize(
    ("info", "action"),
    [(0b0110, "IGNORE"), (0b1000_0110, "RESET_GPU"), (0b000_1100_0010, "IGNORE"), (0b100_1100_0010, "RESET_GPU")],
)
@pytest.mark.parametrize("status", [1, 2, 4])
def test_promoted_errors(info: int, action: str, status: int) -> None:
    """An error that RLW_RXPIPE promoted to a fatal one is fatal, by the bit of drivers before and from R575."""
    decoded = decode(message("RLW_RXPIPE", info, status))
    assert decoded is not None and decoded.action == action


@pytest.mark.parametrize(
    ("unit", "status", "action"),
    [
        ("SAW_MVB", 0x6, "RESET_GPU"),
        ("SAW_MVB", 0x5, "IGNORE"),
        ("RLW_SRC_TRACK", 0x6, "XID_154_EVAL"),
        ("SAW_MVB", 0x41, "WORKFLOW_NVLINK5_ERR"),
        ("SAW_MVB", 0x42, "RESET_GPU"),
        ("SAW_MVB", 0, "WORKFLOW_NVLINK5_ERR"),
        ("NETIR_MFDE_EVENT", 2, "WORKFLOW_NVLINK5_ERR"),
        ("NEW_UNIT", 1, "WORKFLOW_NVLINK5_ERR"),
    ],
)
def test_what_the_table_lacks(unit: str, status: int, action: str) -> None:
    """The gravest of several bits decides; a bit that the table lacks has to be looked up by a person."""
    decoded = decode(message(unit, 0, status))
    assert decoded is not None
    assert (action, unit if unit in UNITS else "") == (decoded.action, decoded.unit)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NETIR Fatal XC0 i0 Link -1 (0x000fe406",
        "NETIR Fatal XC0 i0",
        "SAW_MVB Sad XC0 i0 Link 01 (0x1 0x1)",
        "0x1 0x2",
    ],
)
def test_other_forms(line: str) -> None:
    """A line of another form, or cut short, is not decoded."""
    assert decode(line) is None


@given(
    st.from_regex(
        r"\A[A-Z][A-Z_]{0,7} (Fatal|Nonfatal) XC0 i0 Link [0-9]{2} \(0x[0-9a-f]{8} 0x[0-9a-f]{8}", fullmatch=True
    )
)
def test_any_numbers(line: str) -> None:
    """Any numbers give an action, a category and a unit that docs/xid.md explains."""
    decoded = decode(line)
    assert decoded is not None
    assert decoded.action in ACTIONS and decoded.category in CATEGORIES and decoded.unit in {*UNITS, ""}


def test_every_unit_is_tested() -> None:
    """The table of this test has all units."""
    assert {*TABLE, "NETIR_LINK_DOWN"} == set(UNITS)
