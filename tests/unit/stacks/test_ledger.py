"""The ledger of stacks and allocations, in whichever order they come."""

from __future__ import annotations

import pytest

from exporter.stack_profiles.model import Frame
from exporter.stacks import ledger as module
from exporter.stacks import table
from exporter.stacks.ledger import StackLedger
from exporter.stacks.table import NO_STACK

MALLOC = ["cuMemAlloc_v2", "", 0, "native", "/lib/libcuda.so.1", "ab", 4096]
TRAIN = ["train", "train.py", 7, "python", "", "", 0]


def message(id: int, number: int | None, pid: int = 7, **more: object) -> dict[str, object]:  # noqa: A002
    return {"id": id, "pid": pid, "program": 0, "weight": 10} | ({} if number is None else {"number": number}) | more


def totals(ledger: StackLedger) -> dict[tuple[str, ...], tuple[int, int]]:
    found: dict[tuple[str, ...], tuple[int, int]] = {}
    for _, index, sums in ledger.allocations():
        names = tuple(frame.function for frame in ledger.stack(index))
        before = found.get(names, (0, 0))
        found[names] = before[0] + sums.bytes, before[1] + sums.objects
    return found


@pytest.mark.parametrize("stack_first", [True, False])
def test_an_allocation_meets_its_stack(stack_first: bool) -> None:
    ledger = StackLedger()
    ledger.define(3, [MALLOC])
    ledger.define(3, [TRAIN])
    steps = [lambda: ledger.unwound(message(1, 3)), lambda: ledger.allocated(7, 0, 0, 100, 1)]
    for step in steps if stack_first else reversed(steps):
        step()
    assert totals(ledger) == {("cuMemAlloc_v2", "train"): (100, 1)}
    assert ledger.stack(ledger.stack_of(1))[1] == Frame("train", "train.py", 7, "python")
    assert ledger.unknown([1, 0, 2]) == [2]


def test_the_same_stack_of_two_children_is_one() -> None:
    ledger = StackLedger()
    for number in (3, 9):
        ledger.begin()
        ledger.define(number, [MALLOC])
        ledger.unwound(message(number, number))
        ledger.allocated(7, 0, 0, 50, number)
    assert totals(ledger) == {("cuMemAlloc_v2",): (100, 2)}


def test_without_a_stack_bytes_count_all_the_same() -> None:
    ledger = StackLedger()
    ledger.allocated(7, 0, 0, 11, 0)
    ledger.allocated(7, 0, 0, 13, 1)
    ledger.unwound(message(1, None, lost=1))
    ledger.allocated(7, 0, 0, 17, 2)
    assert totals(ledger) == {(): (41, 3)}
    ledger.begin()
    assert totals(ledger) == {(): (41, 3)}, "what waited for the child that has ended has no stack"


def test_programs_of_one_pid_are_apart() -> None:
    ledger = StackLedger()
    ledger.allocated(7, 0, 0, 11, 0)
    ledger.ended([7])
    ledger.allocated(7, 0, 0, 13, 0)
    assert sorted(sums.bytes for _, _, sums in ledger.allocations()) == [11, 13]


def test_launches_count_their_weight() -> None:
    ledger = StackLedger()
    ledger.define(1, [MALLOC])
    for _ in range(23):
        ledger.unwound(message(0, 1))
    [(pid, _, _, count)] = ledger.launches()
    assert (pid, count) == (7, 230)


def test_launches_without_a_stack_count_all_the_same() -> None:
    """Of those without a stack, with one that is not answered yet, or that was lost with its child."""
    ledger = StackLedger()
    ledger.define(1, [MALLOC])
    assert [ledger.taken(0, 7, 10) for _ in range(3)] == [0, 0, 0]
    ledger.unwound(message(0, 1))
    ledger.launched(7, 50)
    assert (sorted(ledger.launches()), ledger.waiting_launches) == ([(7, 0, 0, 20), (7, 0, 0, 50), (7, 0, 1, 10)], 20)
    ledger.begin()
    assert sorted(ledger.launches()) == [(7, 0, 0, 70), (7, 0, 1, 10)]
    ledger.lost(0, 7, 10)
    assert (sorted(ledger.launches()), ledger.waiting_launches) == ([(7, 0, 0, 80), (7, 0, 1, 10)], 0)


def test_an_answer_belongs_to_the_program_of_its_stack() -> None:
    """Also when the pid runs another program by then."""
    ledger = StackLedger()
    ledger.define(1, [MALLOC])
    program = ledger.taken(0, 7, 10)
    ledger.ended([7])
    assert (program, ledger.taken(0, 7, 10)) == (0, 1)
    ledger.unwound(message(0, 1))
    assert sorted(ledger.launches()) == [(7, 0, 1, 10), (7, 1, 0, 10)]


def test_a_stack_that_was_lost_is_known_to_be() -> None:
    ledger = StackLedger()
    ledger.taken(1, 7, 1)
    assert ledger.unknown([1])
    ledger.begin()
    assert not ledger.unknown([1]) and ledger.stack_of(1) == NO_STACK


def test_a_stack_that_was_never_given_to_a_child_is_known_to_be_lost() -> None:
    ledger = StackLedger()
    ledger.allocated(7, 0, 0, 100, 1)
    assert ledger.waiting == 1
    ledger.lost(1, 7, 1)
    assert (ledger.waiting, ledger.unknown([1]), totals(ledger)) == (0, [], {(): (100, 1)})


def test_stacks_beyond_the_limit_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MOST_STACKS", 3)
    ledger = StackLedger()
    for number in range(1, 5):
        ledger.define(number, [[f"f{number}", *MALLOC[1:]]])
        ledger.unwound(message(number, number))
    assert [ledger.stack_of(number) for number in range(1, 5)] == [1, 2, NO_STACK, NO_STACK]


def test_what_is_not_live_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 10)
    ledger = StackLedger()
    ledger.define(1, [MALLOC])
    for number in range(1, 101):
        ledger.unwound(message(number, 1))
    ledger.keep({1, 2}, ledger.settled)
    assert ledger.remembered == 7
    assert ledger.unknown([1, 2, 50, 96, 100]) == [50]


def test_what_came_after_the_table_was_read_may_be_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile waits for stacks, while others come."""
    monkeypatch.setattr(module, "MOST_WAITING", 10)
    ledger = StackLedger()
    for number in range(1, 51):
        ledger.unwound(message(number, None))
    settled = ledger.settled
    for number in range(51, 101):
        ledger.lost(number, 7, 1)
    ledger.keep({1, 2}, settled)
    assert ledger.unknown(range(1, 101)) == list(range(3, 46))


@pytest.mark.parametrize(
    "frames",
    [
        [MALLOC[:-1]],
        [[1, *MALLOC[1:]]],
        [["x" * 5000, *MALLOC[1:]]],
        [[*MALLOC[:2], -1, *MALLOC[3:]]],
        [[*MALLOC[:3], "kernel", *MALLOC[4:]]],
        [[*MALLOC[:6], 1 << 64]],
        [MALLOC] * 2000,
    ],
)
def test_what_is_no_stack_is_refused(frames: list[object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        StackLedger().define(1, frames)


def test_reasons_of_truncated_stacks_are_known_ones() -> None:
    """Each is counted from 0 on; a child that gives another one cannot add a series."""
    ledger = StackLedger()
    ledger.define(1, [MALLOC])
    ledger.unwound(message(0, 1, truncated="depth"))
    for reason in ("made up", 7, ["depth"]):
        with pytest.raises((ValueError, TypeError)):
            ledger.unwound(message(0, 1, truncated=reason))
    assert {"stack": 0, "frame_information": 0, "depth": 1, "python": 0} == ledger.truncated
    [(_, _, _, launches)] = ledger.launches()
    assert 10 == launches


def test_programs_that_ended_long_ago_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """By stack; rows do not grow with the number of processes."""
    monkeypatch.setattr(module, "MOST_ENDED", 4)
    ledger = StackLedger()
    ledger.define(1, [MALLOC])
    for pid in range(1, 24):
        ledger.unwound(message(pid, 1, pid))
        ledger.unwound(message(0, 1, pid))
        ledger.allocated(pid, 0, 3, 100, pid)
        ledger.ended([pid])
    assert totals(ledger) == {("cuMemAlloc_v2",): (2300, 23)}
    assert len(ledger.allocations()) < 10
    assert sum(count for _, _, _, count in ledger.launches()) == 230
    assert len(ledger.launches()) < 10


def test_a_full_table_makes_room_of_programs_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of theirs stay, without stacks; indices of others stay; the child numbers its stacks again."""
    monkeypatch.setattr(table, "MOST_STACKS", 4)
    ledger = StackLedger()
    for number in range(1, 5):
        ledger.define(number, [[f"f{number}", *MALLOC[1:]]])
        ledger.unwound(message(number, number, pid=number))
        ledger.allocated(number, 0, 0, 100, number)
    assert not ledger.needs_room and not ledger.make_room({1, 4}, ledger.settled), "all of them run"
    assert ledger.refused == 1
    kept = ledger.stack_of(1)
    ledger.ended([2, 3])
    monkeypatch.setattr(module, "IN_FLIGHT", 1)
    assert ledger.needs_room and ledger.make_room({1}, ledger.settled)
    assert not ledger.needs_room and not ledger.make_room({1}, ledger.settled)
    assert totals(ledger) == {("f1",): (100, 1), (): (300, 3)}
    assert ledger.stack_of(1) == kept and ledger.stack(kept)[0].function == "f1"
    ledger.define(9, [["f9", *MALLOC[1:]]])
    ledger.unwound(message(9, 9))
    assert ledger.stack(ledger.stack_of(9))[0].function == "f9"


def test_stacks_of_long_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their characters and by their frames, of all together."""
    monkeypatch.setattr(table, "MOST_TEXT", 10_000)
    ledger = StackLedger()
    for number in range(1, 101):
        ledger.define(number, [[f"{number}" + "x" * 1000, *MALLOC[1:]]])
        ledger.unwound(message(number, number))
    assert 85 < ledger.refused < 95
    monkeypatch.setattr(table, "MOST_PLACES", 50)
    ledger = StackLedger()
    for number in range(1, 101):
        ledger.define(number, [[f"f{number}", *MALLOC[1:]]] * 10)
        ledger.unwound(message(number, number))
    assert ledger.refused == 95
