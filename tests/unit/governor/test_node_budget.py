"""The bound of the node: the processes that cost most are limited first, and only while all together cost too much."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import inf

import pytest

from exporter.governor.governor import Governed, Governor
from exporter.governor.node_budget import NodeBudget, water_level
from exporter.governor.payer import Payer
from tests.unit.governor.jobs import TRAP, Clock, File, Job, Subject

CORES = 0.02


@pytest.mark.parametrize(
    ("rates", "room", "level"),
    [
        ([], 1.0, inf),
        ([0.2, 0.3], 1.0, inf),
        ([0.5, 0.5], 0.5, 0.25),
        ([0.1, 5.0, 0.1], 1.0, 0.8),
        ([3.0, 1.0, 0.1, 2.0], 2.1, 2 / 3),
    ],
)
def test_the_level_to_which_rates_are_cut(rates: list[float], room: float, level: float) -> None:
    assert level == pytest.approx(water_level(rates, room))
    assert sum(min(it, level) for it in rates) <= room + 1e-9


@dataclass
class Node:
    """Processes of one file of which each may be probed on its own, under a bound of the node alone."""

    jobs: dict[int, Job]
    cores: float = CORES
    other: float = 0.0
    """Cores that probes take which are never left out."""
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.file = File(self.clock, self.jobs, alone=True)
        self.subject, self.begun = Subject(self.file), self.clock.now
        self.governor = Governor(1.0, self.clock, random.Random(7).random, self.cores)
        self.governor.watched = [
            Governed(
                self.subject,
                1.0,
                self.clock,
                random.Random(7).random,
                self.governor.rest,
                lambda: self.governor.node.cap,
            )
        ]
        self.governor.charge(Payer(self.spent, lambda pids: {}))

    def spent(self) -> float | None:
        other = self.other * (self.clock.now - self.begun)
        return sum(it.seen for it in self.jobs.values()) * TRAP + other if self.subject.known else None

    def run(self, seconds: float) -> float:
        """Return the cores that the probes of the file took."""
        end, before = self.clock.now + seconds, sum(it.seen for it in self.jobs.values())
        while self.clock.now < end:
            due = self.governor.step()
            assert due is not None
            self.file.pass_until(min(due, self.clock.now + 1, end))
        return (sum(it.seen for it in self.jobs.values()) - before) * TRAP / seconds

    @property
    def used(self) -> float | None:
        values = [it.value for it in self.governor.collect()]
        assert not values or isinstance(values[0], float)
        return values[0] if values else None  # type: ignore[return-value]


def job(cores: float) -> Job:
    """A process with probes that take so much of one core."""
    return Job(own=TRAP * (1 / cores - 1), messages=1)


def test_the_processes_that_cost_most_are_limited_and_others_counted_whole() -> None:
    node = Node({1: job(0.2), 2: job(0.1), 3: job(0.003), 4: job(0.002)})
    node.run(120)
    costs = {pid: it.seen for pid, it in node.jobs.items()}
    took = node.run(300)
    assert 0.7 * CORES < took < 1.15 * CORES
    assert node.used == pytest.approx(1, abs=0.5)
    for pid in (3, 4):
        assert node.jobs[pid].seen == node.jobs[pid].sent
    each = [(node.jobs[pid].seen - costs[pid]) * TRAP / 300 for pid in (1, 2)]
    assert all(it < 0.015 for it in each)
    [problem] = node.governor.watched[0].problems()
    assert problem.endswith("to keep --overhead.max-cores")
    for it in (1, 2):
        missed = node.governor.watched[0].missed(it)
        assert missed is not None
        assert (node.jobs[it].seen + missed["calls"]) / node.jobs[it].sent == pytest.approx(1, rel=0.1)


def test_all_calls_are_counted_again_within_a_minute() -> None:
    node = Node({1: job(0.2)})
    node.run(60)
    assert node.file.turns
    node.jobs[1].idle = 0.1
    node.run(60)
    assert node.file.on and node.governor.node.cap == inf
    seen, sent = node.jobs[1].seen, node.jobs[1].sent
    node.run(100)
    assert node.jobs[1].seen - seen == pytest.approx(node.jobs[1].sent - sent)


def test_below_the_bound_nothing_is_left_out() -> None:
    node = Node({1: job(0.009), 2: job(0.008)})
    node.run(120)
    assert not node.file.turns
    assert node.used == pytest.approx(0.85, rel=0.02)


def test_functions_that_are_never_left_out_take_of_the_bound() -> None:
    """Functions in windows keep a tenth of it, and the metric shows that the bound is not kept."""
    node = Node({1: job(0.02)}, other=0.03)
    node.run(120)
    assert node.run(300) < 0.3 * CORES
    assert node.used is not None and node.used > 1.4


def test_no_bound() -> None:
    node = Node({1: job(0.2)}, cores=0.0)
    node.run(60)
    assert not node.file.turns and node.used is None


def test_nothing_is_known_while_prices_are_not() -> None:
    node = Node({1: job(0.2)})
    node.subject.known = False
    node.run(60)
    assert not node.file.turns and node.used is None


def test_what_was_spent_before_belongs_to_no_time() -> None:
    clock = Clock()
    budget = NodeBudget(1.0, clock)
    budget.look(1000.0, 0.0, [])
    clock.now += 1
    budget.look(1000.5, 0.5, [0.5])
    assert budget.used == 0.5 and budget.cap == inf


def test_the_end_of_a_process_takes_nothing_from_the_others() -> None:
    clock = Clock()
    budget = NodeBudget(1.0, clock)
    budget.look(100.0, 100.0, [0.5, 0.3])
    for second in range(1, 20):
        clock.now += 1
        budget.look(100.0 + 0.8 * second, 20.0 + 0.8 * second, [0.5, 0.3])
        assert budget.cap == inf


def test_costs_of_others_count_in_the_bound_of_a_process() -> None:
    """A process with probes that are never left out has less left for those that may be."""
    clock, sends = Clock(), Job(own=1e-3, messages=8)
    file = File(clock, {1: sends})
    governor = Governor(0.01, clock, random.Random(7).random)
    governor.watched = [Governed(Subject(file), 0.01, clock, random.Random(7).random, governor.rest)]

    def run(seconds: float) -> None:
        end = clock.now + seconds
        while clock.now < end:
            due = governor.step()
            assert due is not None
            file.pass_until(min(due, clock.now + 1, end))

    run(30)
    assert file.on and not file.turns, "alone it is within its bound"
    payer = Payer(lambda: 0.0, lambda pids: {pid: 0.008 * sends.cpu for pid in pids})
    governor.charge(payer)
    run(30)
    assert file.turns
    governor.leave((), payer)
    run(120)
    assert file.on
