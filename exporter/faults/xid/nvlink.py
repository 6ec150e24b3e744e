"""Xids 144 to 150 (NVLink 5): the action follows from the unit, its status and, for a lost link, the reason.

Most of these Xids need no action; the code alone would give too many alerts. Layout and table: NVIDIA's Xid catalog,
sheet "XID 144-150 Decode" (October 2025). The units' names differ between drivers before and from R575.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from exporter.faults.xid.catalog import AWAIT_VERDICT, FAULTY_GPU, IGNORE, NETWORK, NVLINK5, RESET_GPU

CODES = range(144, 151)

_LINE = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_/ a-z]{0,40}?) (?P<severity>Fatal|Non-?fatal|Link Fatal) (?P<contained>XC[01]) "
    r"(?P<injected>i[01]) Link (?P<link>-?\d{1,3}) \(0x(?P<info>[0-9a-f]{1,8}) 0x(?P<status>[0-9a-f]{1,8})",
    re.IGNORECASE | re.ASCII,
)
_GRAVITY = (IGNORE, AWAIT_VERDICT, NVLINK5, RESET_GPU)
"""Actions by gravity: the gravest bit of a status decides; NVLINK5 stands for bits missing in the table."""


def _table(**statuses: str) -> dict[int, str]:
    """Returns a mapping of status to action: `RESET_GPU="2 10"` gives {0x2: "RESET_GPU", 0x10: "RESET_GPU"}."""
    return {int(status, 16): action for action, listed in statuses.items() for status in listed.split()}


_BITS: Mapping[str, Mapping[int, str]] = {
    "SAW_MVB": _table(IGNORE="1 4 8 20", RESET_GPU="2 10"),
    "RLW_CTRL": _table(IGNORE="80000000"),
    "RLW_REMAP": _table(XID_154_EVAL="1 2 4 8 10 20", RESET_GPU="40 80", IGNORE="100 200 80000000"),
    "RLW_RSPCOL": _table(RESET_GPU="2", IGNORE="1 80000000"),
    "RLW_RXPIPE": _table(IGNORE="1 2 4 8 80000000"),
    "RLW_SRC_TRACK": _table(RESET_GPU="1 10 20", XID_154_EVAL="4 8", IGNORE="2 80000000"),
    "RLW_TAGSTATE": _table(RESET_GPU="2 20000 100000", IGNORE="1 10000 80000000"),
    "TLW_CTRL": _table(RESET_GPU="4", IGNORE="1 2 80000000"),
    "TLW_RX": _table(RESET_GPU="4", IGNORE="1 2 80000000"),
    "TLW_TX": _table(RESET_GPU="4", IGNORE="1 2 80000000"),
    "TREX": _table(IGNORE="1 80000000"),
    "NVLPW": _table(IGNORE="80000000"),
}
_VALUES: Mapping[str, Mapping[int, str]] = {
    "NETIR_BER_EVENT": _table(IGNORE="0 1 2 3"),
    "NETIR_MFDE_EVENT": _table(RESET_GPU="1 4 5 7", IGNORE="3"),
    "MSE_WATCHDOG": _table(RESET_GPU="0"),
    "MSE_DEGRADED": _table(RESET_GPU="0 ffffffff"),
    "NETIR_INT": {},
}
_RESET_REASONS = frozenset((0, 1, 2, 4, 10, 15, 16, 17, 18, 21, 22, *range(32, 38), 42, 43))
_IGNORED_REASONS = frozenset((38, 40))
_CABLE_REASONS = frozenset((42, 43))
_NAMES: Mapping[str, str] = {
    "NETIR": "NETIR_INT",
    "NETIR_LINK_EVT": "NETIR_LINK_DOWN",
    "NVLPW_CTRL": "NVLPW",
    "TLW_RX_PIPE0": "TLW_RX",
    "TLW_RX_PIPE1": "TLW_RX",
    "TLW_TX_PIPE0": "TLW_TX",
    "TLW_TX_PIPE1": "TLW_TX",
}
"""Names of other driver versions for a unit, or for a part of a unit."""
UNITS = (*_BITS, *_VALUES, "NETIR_LINK_DOWN")


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded line: `unit` is one of UNITS, empty when unknown; `reason` is that of a lost link, else None."""

    unit: str
    action: str
    category: str
    severity: str
    link: int
    status: int
    reason: int | None


def decode(message: str) -> Decoded | None:
    """Decodes the text after the code of an Xid 144 to 150. Returns None for text of another form."""
    found = _LINE.search(message)
    if not found:
        return None
    unit = found["unit"].upper().replace(" ", "_").rpartition("/")[2]
    unit = _NAMES.get(unit, unit)
    info, status = int(found["info"], 16), int(found["status"], 16)
    reason = info >> 20 & 0x3F if unit == "NETIR_LINK_DOWN" else None
    return Decoded(
        unit if unit in UNITS else "",
        _action(unit, info, status, reason),
        NETWORK if reason in _CABLE_REASONS else FAULTY_GPU,
        found["severity"].lower().replace("-", "").replace(" ", "_"),
        int(found["link"]),
        status,
        reason,
    )


def _action(unit: str, info: int, status: int, reason: int | None) -> str:
    if reason is not None:
        return RESET_GPU if reason in _RESET_REASONS else IGNORE if reason in _IGNORED_REASONS else NVLINK5
    if unit == "NETIR_INT" or (unit == "RLW_RXPIPE" and status & 7 and _promoted(info)):
        return RESET_GPU
    if unit in _VALUES:
        return _VALUES[unit].get(status, NVLINK5)
    table = _BITS.get(unit, {})
    bits = [1 << bit for bit in range(32) if status >> bit & 1]
    return max((table.get(bit, NVLINK5) for bit in bits), key=_GRAVITY.index, default=NVLINK5)


def _promoted(info: int) -> bool:
    """Returns whether RLW_RXPIPE promoted an error to a fatal one.

    The bit follows the unit's number, 6, which has another position before R575.
    """
    return bool(info >> 7 & 1 if info & 0x7F == 6 else info >> 10 & 1)
