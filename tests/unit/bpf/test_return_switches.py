"""Numbers of libraries, by which programs know whether returns are probed."""

from __future__ import annotations

from exporter.bpf.return_switches import MOST_LIBRARIES, Switches


class Returning(dict[int, int]):
    """The map of that name."""

    def set(self, key: int, value: int) -> None:
        self[key] = value


def test_more_libraries_than_numbers() -> None:
    """Each library has a number of its own; where none is left there is no switch, and the last number stays off."""
    returning = Returning()
    switches = Switches(returning)
    taken = [it for _ in range(MOST_LIBRARIES + 10) if (it := switches.take())]
    assert [*range(MOST_LIBRARIES - 1)] == sorted(it.library for it in taken)
    for it in taken:
        it.turn(on=True)
    assert MOST_LIBRARIES - 1 == len(set(returning.values())) and MOST_LIBRARIES - 1 not in returning
    taken[3].close()
    again = switches.take()
    assert again and 3 == again.library
    assert switches.take() is None
