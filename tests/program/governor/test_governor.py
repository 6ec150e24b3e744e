"""A job of many small messages under the governor, with a clock of its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from math import inf

import pytest

from exporter.governor.governor import Governed, Governor
from tests.support import until
from tests.unit.governor.jobs import TRAP, Clock, File, Job, Subject

BOUND = 0.01


class Node:
    """A subject that is watched, and the time."""

    def __init__(self, *jobs: dict[int, Job], threads: Collection[Job] = (), unit_bound: float = inf) -> None:
        self.clock = Clock()
        self.files = [File(self.clock, it, name=f"/{number}.so") for number, it in enumerate(jobs)]
        self.subject = Subject(*self.files, threads=threads, unit_bound=unit_bound)
        self.watch = Governed(self.subject, BOUND, self.clock, random.Random(7).random)

    def run(self, seconds: float, each: Callable[[], object] = lambda: None) -> None:
        end = self.clock.now + seconds
        while self.clock.now < end:
            due = min(self.watch.step(), self.clock.now + 1, end)
            passed = max(0.0, due - self.clock.now)
            for job in self.subject.threads:
                job.run(passed, False)
            for file in self.files[1:]:
                for job in file.jobs.values():
                    job.run(passed, file.on)
            self.files[0].pass_until(due)
            each()

    def counted(self, pid: int, job: Job) -> int:
        missed = self.watch.missed(pid)
        assert missed is not None
        return int(job.seen) + missed.get("calls", 0)

    def value(self, name: str, **labels: str) -> Iterator[float]:
        for it in self.watch.collect():
            if it.metric.name == name and labels.items() <= it.labels.items():
                assert isinstance(it.value, int | float)
                yield it.value


def relative(job: Job, before: tuple[float, float]) -> float:
    return (job.seen * TRAP - before[0]) / (job.cpu - before[1])


@pytest.mark.parametrize(
    "job",
    [
        Job(own=5e-6),
        Job(own=1e-3),
        Job(own=1e-3, idle=5e-3),
        Job(own=20e-6, messages=1, grouped=False),
        Job(own=20e-6, messages=1, grouped=False, idle=20e-6),
    ],
    ids=["tight", "working", "waiting", "without groups", "without groups, waiting"],
)
def test_cost_and_counts(job: Job) -> None:
    """Settled, the probes take what is allowed, and the counts are those of the job, though windows slow it down."""
    node = Node({1: job})
    node.run(30)
    assert list(node.value("accel_exporter.probe.throttle.level")) == [1]
    before, counted, sent = (job.seen * TRAP, job.cpu), node.counted(1, job), job.sent
    node.run(300)
    assert 0.7 * BOUND < relative(job, before) <= BOUND
    assert (node.counted(1, job) - counted) / (job.sent - sent) == pytest.approx(1, rel=0.04)
    [share] = node.value("accel_exporter.probe.sampled.ratio", symbol="ncclSend", library="/0.so")
    assert 0 < share < 0.6
    [used] = node.value("accel_exporter.overhead.budget.used.ratio")
    assert 0.7 < used < 1.1
    problem = f"ncclSend in /0.so: probed for {share:.1%} of the time, to keep --overhead.max-ratio"
    assert [problem] == [*node.watch.problems()]


@pytest.mark.parametrize("messages", [128, 32])
def test_groups_of_a_process_that_uses_many_cores(messages: int) -> None:
    """A thread that sends loses no more of each group than allowed, though its process could bear it; small groups, and
    large ones that are seldom, are counted whole."""
    job, busy = Job(own=1e-3, messages=messages), [Job(own=1.0) for _ in range(16)]
    node = Node({1: job}, threads=busy, unit_bound=30e-6)
    node.run(60)
    large = messages * TRAP > 30e-6
    assert [large] == list(node.value("accel_exporter.probe.throttle.level"))
    assert large or job.seen == job.sent
    before, groups, counted, sent = job.seen * TRAP, job.groups, node.counted(1, job), job.sent
    node.run(600)
    assert 0.7 * large < (job.seen * TRAP - before) / (job.groups - groups) / 30e-6 < 1
    assert (node.counted(1, job) - counted) / (job.sent - sent) == pytest.approx(1, rel=0.04)
    assert (" or --units" in "".join(node.watch.problems())) == large
    job.idle = 0.03
    node.run(120)
    assert [0] == list(node.value("accel_exporter.probe.throttle.level"))


def test_messages_without_groups_have_no_bound_of_a_group() -> None:
    job = Job(own=1e-3, messages=128, grouped=False)
    node = Node({1: job}, threads=[Job(own=1.0) for _ in range(16)], unit_bound=30e-6)
    node.run(60)
    assert job.seen == job.sent


def test_exact_when_it_calms_down() -> None:
    """Within a minute every call is counted; what was estimated stays, and nothing is added to it."""
    job = Job(own=5e-6)
    node = Node({1: job})
    node.run(60)
    job.idle = 0.5
    node.run(60)
    job.messages = 2
    assert [0] == list(node.value("accel_exporter.probe.throttle.level"))
    assert node.files[0].on
    counted, sent = node.counted(1, job), job.sent
    node.run(100)
    assert node.counted(1, job) - counted == pytest.approx(job.sent - sent, abs=1)
    assert [1.0] == list(node.value("accel_exporter.probe.sampled.ratio"))
    assert [1] == list(node.value("accel_exporter.probe.throttles"))
    assert [] == [*node.watch.problems()]
    missed = node.watch.estimates.missed(1)
    assert missed == node.watch.estimates.finish(1, lambda before: job.tally)


def test_the_end_of_a_process_before_the_first_window() -> None:
    """The time before the first gap, with all calls counted, is the first window."""
    job = Job(own=5e-6)
    node = Node({1: job})
    while node.files[0].on:
        node.run(0.1)
    node.run(0.01)
    assert 1 == len(node.files[0].turns) and job.seen < job.sent
    missed = node.watch.estimates.finish(1, lambda before: job.tally)
    assert job.seen + missed["calls"] == pytest.approx(job.sent, rel=0.01)


def test_counts_never_fall() -> None:
    job, seen = Job(own=1e-3), [0]
    node = Node({1: job})

    def check() -> None:
        seen.append(node.counted(1, job))
        if len(seen) % 20 == 0:
            job.messages, job.idle = (2, 0.01) if job.messages > 2 else (128, 0.0)

    node.run(300, check)
    assert seen == sorted(seen)


@pytest.mark.parametrize("own", [20e-6, 500e-6], ids=["short windows", "long windows"])
def test_short_jobs_beside_one_in_windows(own: float) -> None:
    """Steady ones that come and go: their counts are right to 5 % when they are shown, else they are not known, or
    marked as those of a part."""
    known = 0
    for seed in range(40):
        node = Node({1: Job(own=own, messages=50)})
        node.run(30 + random.Random(seed).random() * 5)
        job = node.files[0].jobs[2] = Job(own=50e-6, messages=23, idle=1.5e-3)
        assert node.watch.missed(2) is None
        node.run((1, 4, 8, 20)[seed % 4])
        job.idle = 1e9
        node.run(12)
        missed = node.watch.missed(2)
        if node.watch.whole(2) and job.seen:
            assert missed is not None
            assert job.seen + missed.get("calls", 0) == pytest.approx(job.sent, rel=0.05)
            known += 1
        last = node.watch.finish(2, lambda before: before)
        assert (None if last is None else last.get("calls", 0)) == (None if missed is None else missed.get("calls", 0))
        del node.files[0].jobs[2]
        assert node.watch.finish(2, lambda before: before) is None
    assert known


def settled(**hasty: float) -> Node:
    """A node with a file in windows, of which processes can be probed one by one."""
    node = Node({1: Job(**{"own": 5e-6} | hasty)})
    node.files[0].alone = True
    node.run(30)
    assert [1] == list(node.value("accel_exporter.probe.throttle.level"))
    return node


@pytest.mark.parametrize("grouped", [True, False], ids=["groups", "no groups"])
def test_a_job_that_starts_beside_one_in_windows(grouped: bool) -> None:
    """Each of its calls counts from the start, whether anything else goes with them or not."""
    node, job = settled(), Job(own=1e-4, messages=4, idle=0.1, grouped=grouped)
    node.files[0].jobs[2] = job
    assert node.watch.missed(2) is None
    for _ in range(60):
        node.run(1)
        assert node.counted(2, job) == int(job.sent)
    assert node.watch.whole(2)
    assert job.seen == job.sent


def test_a_job_that_is_met_late() -> None:
    """Each call from then on counts, and it is marked that those before do not, also after windows have ended."""
    node, job = settled(), Job(own=1e-4, messages=4, idle=0.1, grouped=False)
    job.run(3, probed=False)
    before = job.sent
    node.files[0].jobs[2] = job
    assert [1] == list(node.value("accel_exporter.probe.uncounted.processes"))
    node.run(60)
    assert [0] == list(node.value("accel_exporter.probe.uncounted.processes"))
    assert job.seen == pytest.approx(job.sent - before)
    assert node.counted(2, job) == int(job.seen) and not node.watch.whole(2)
    node.files[0].jobs[1].idle = 0.5
    node.run(120)
    assert [0] == list(node.value("accel_exporter.probe.throttle.level"))
    assert node.counted(2, job) == pytest.approx(job.sent - before, abs=1) and not node.watch.whole(2)


def test_a_hasty_job_that_starts_beside_one_in_windows() -> None:
    """A job goes to windows after two looks, with estimates from its start: probes take much just in between."""
    node, job = settled(), Job(own=2e-5, messages=8)
    node.files[0].jobs[2] = job
    node.run(3)
    assert 2 not in node.files[0].kept
    assert job.seen * TRAP < 2 * 2.0
    before = job.seen * TRAP, job.cpu
    node.run(200)
    assert relative(job, before) < 1.1 * BOUND
    assert node.counted(2, job) == pytest.approx(job.sent, rel=0.05)
    assert node.watch.whole(2)


def test_a_job_that_starts_hasty_and_calms_down() -> None:
    """A look over the bound, as at the start of a job, is no reason to leave calls out."""
    node, job = settled(), Job(own=2e-5, messages=8)
    node.files[0].jobs[2] = job
    node.run(0.9)
    job.messages, job.idle = 1, 0.1
    node.run(60)
    assert job.seen == job.sent and node.watch.whole(2)


def test_jobs_that_start_just_before_windows_begin() -> None:
    """Jobs that start after the last look before are counted whole, too: together and one by one."""
    for alone in (False, True):
        node = Node({1: Job(own=5e-6)})
        node.files[0].alone = alone
        job = Job(own=1e-3, messages=8, idle=0.01)
        node.run(2.5)
        assert not node.watch.throttled
        node.files[0].jobs[2] = job
        node.run(2.5)
        assert node.watch.throttled
        node.run(100)
        assert node.watch.whole(2)
        assert node.counted(2, job) == pytest.approx(job.sent, abs=1, rel=0 if alone else 0.15)


def test_a_job_that_replaces_its_program_beside_one_in_windows() -> None:
    """The new program is met like another process, and its calls count from then on."""
    node, job = settled(), Job(own=1e-4, messages=4, idle=0.1)
    node.files[0].jobs[2] = job
    node.run(20)
    node.files[0].kept = []
    assert {} == node.watch.finish(2, lambda before: job.tally)
    assert node.watch.missed(2) is None
    later = node.files[0].jobs[2] = Job(own=1e-4, messages=4, idle=0.1)
    node.run(20)
    assert later.seen == later.sent and node.watch.whole(2)


def test_many_short_jobs_beside_one_in_windows() -> None:
    """A tenth of the time goes to their links, besides two seconds for those that come at once: others wait."""
    node = settled()
    file = node.files[0]
    keep, links = file.keep, 0

    def slow(pids: Collection[int]) -> Collection[int]:
        nonlocal links
        links += len(new := set(pids) - set(file.kept))
        node.clock.now += 0.05 * len(new)
        return keep(pids)

    file.keep = slow  # type: ignore[method-assign]
    begun = node.clock.now
    for pid in range(1000, 1400):
        file.jobs[pid] = Job(own=1e-4, messages=4, idle=0.1)
        node.run(0.1)
        del file.jobs[pid]
        node.watch.finish(pid, lambda before: before)
    assert 0.05 * links == pytest.approx(2 + 0.1 * (node.clock.now - begun), rel=0.1)


def test_a_polite_job_of_another_file_is_counted_whole() -> None:
    hasty, polite = Job(own=5e-6), Job(own=1e-3, messages=8, idle=0.1)
    node = Node({1: hasty}, {2: polite})
    node.run(120)
    assert {("/0.so", 1), ("/1.so", 0)} == {
        (it.labels["library"], it.value) for it in node.watch.collect() if "level" in it.metric.name
    }
    assert polite.seen == polite.sent
    assert not any(node.watch.estimates.missed(2).values())


def test_processes_of_one_file_go_by_the_worst() -> None:
    hasty, polite = Job(own=5e-6), Job(own=1e-3, messages=8, idle=0.01)
    node = Node({1: hasty, 2: polite})
    node.run(200)
    assert polite.seen < polite.sent
    assert node.counted(2, polite) == pytest.approx(polite.sent, rel=0.15)


def test_polite_processes_of_the_file_stay_exact() -> None:
    """Polite processes stay exact if the kernel can probe one process, new ones too. One that is no longer polite goes
    into windows, and leaves them when calm.
    """
    hasty, polite, late = Job(own=5e-6), Job(own=1e-3, messages=8, idle=0.01), Job(own=1e-3, messages=8, idle=0.01)
    node = Node({1: hasty, 2: polite})
    node.files[0].alone = True
    node.run(30)
    node.files[0].jobs[3] = late
    node.run(200)
    assert hasty.seen < 0.1 * hasty.sent
    assert polite.seen == polite.sent
    assert not any(node.watch.estimates.missed(2).values())
    assert late.seen == late.sent
    assert {2, 3} == set(node.files[0].kept)
    polite.messages, polite.idle = 128, 0.0
    node.run(100)
    assert {3} == set(node.files[0].kept)
    assert node.counted(2, polite) == pytest.approx(polite.sent, rel=0.05)
    hasty.idle, polite.idle, polite.messages = 0.5, 0.5, 2
    node.run(120)
    assert [0] == list(node.value("accel_exporter.probe.throttle.level"))
    assert not node.files[0].kept


def test_windows_begin_at_random_times() -> None:
    """A job with a step as long as a cycle is not seen at the same part of each step."""
    node = Node({1: Job(own=5e-6)})
    node.run(300)
    begins = [time for time, on in node.files[0].turns if on]
    phases = {int((time - begins[0]) % 5) for time in begins}
    assert {0, 1, 2, 3, 4} == phases


def test_a_small_cost_is_not_looked_at() -> None:
    """Less than a thousandth of a core: neither are processes read, nor is anything left out."""
    job = Job(own=1e-7, messages=1, idle=1e-2)
    node = Node({1: job})
    node.run(60)
    assert job.seen == job.sent and job.seen * TRAP / job.cpu > BOUND
    assert 0 == node.subject.reads


def test_nothing_is_left_out_while_prices_are_not_known() -> None:
    job = Job(own=5e-6)
    node = Node({1: job})
    node.subject.known = False
    node.run(30)
    assert job.seen == job.sent
    assert [] == list(node.value("accel_exporter.overhead.budget.used.ratio"))


def test_other_functions_take_all_of_the_bound() -> None:
    """Windows stay, for a tenth of it; and the metric shows that the bound is not kept."""
    job = Job(own=5e-6, other=2e-6)
    node = Node({1: job})
    node.run(60)
    before, counted, sent = (job.seen * TRAP, job.cpu), node.counted(1, job), job.sent
    node.run(300)
    assert relative(job, before) < 0.3 * BOUND
    assert (node.counted(1, job) - counted) / (job.sent - sent) == pytest.approx(1, rel=0.04)
    [used] = node.value("accel_exporter.overhead.budget.used.ratio")
    assert used > 10


def test_a_file_that_is_not_mapped_any_more() -> None:
    """Estimates of a file that is no longer mapped stay; they continue by the windows of the process's next file."""
    job = Job(own=5e-6)
    node = Node({1: job})
    node.run(30)
    missed = node.watch.estimates.missed(1)
    node.subject.files.clear()
    node.run(30)
    assert all(count <= node.watch.estimates.missed(1)[key] for key, count in missed.items())
    assert {"accel_exporter.probe.throttles", "accel_exporter.probe.uncounted.processes"} == {
        it.metric.name for it in node.watch.collect()
    }
    node.files[0] = node.subject.files[9] = File(node.clock, {1: job})
    node.run(30)
    counted, sent = node.counted(1, job), job.sent
    node.run(100)
    assert (node.counted(1, job) - counted) / (job.sent - sent) == pytest.approx(1, rel=0.1)


def test_no_bound_watches_nothing() -> None:
    assert Governor(0).watch(Subject()) is None


def test_a_failure_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """Other collectors are not disturbed; the thread ends when nothing is watched, and starts again."""
    failing, working = Subject(), Subject(File(Clock(), {}))
    failing.sampled_files = lambda: 1 // 0  # type: ignore[assignment, return-value]
    governor = Governor(BOUND)
    watches = [it for it in (governor.watch(failing), governor.watch(working)) if it]
    until(lambda: "cannot be bounded" in caplog.text, "logged")
    until(lambda: [*watches[1].collect()][1:], "looked at")
    for it in watches:
        governor.leave([it])
    until(lambda: governor.thread is None, "ended")
    [again] = [it for it in (governor.watch(working),) if it]
    until(lambda: [*again.collect()][1:], "looked at")
    governor.leave([again])
    until(lambda: governor.thread is None, "ended")


def test_probes_of_two_collectors_share_a_process() -> None:
    """Two threads of a process, which launch and send: launches go first, and both together keep to one bound."""
    clock = Clock()
    launches, messages = Job(own=20e-6, messages=4), Job(own=1e-3, messages=8)
    files = File(clock, {1: launches}, name="/libcuda.so.1"), File(clock, {1: messages}, name="/libnccl.so.2")
    subjects = Subject(files[0], rank=0, threads=[messages]), Subject(files[1], rank=1, threads=[launches])
    governor = Governor(BOUND, clock, random.Random(7).random)
    governor.watched = [Governed(it, BOUND, clock, random.Random(7).random, governor.rest) for it in subjects]

    def run(seconds: float) -> None:
        end = clock.now + seconds
        while clock.now < end:
            due = min(*(it.step() for it in governor.watched), clock.now + 1, end)
            for file in files:
                for job in file.jobs.values():
                    job.run(max(0.0, due - clock.now), file.on)
            clock.now = max(due, clock.now)

    def cost() -> float:
        return (launches.seen + messages.seen) * TRAP

    run(60)
    levels = [it.value for watch in governor.watched for it in watch.collect() if "level" in it.metric.name]
    assert [1, 0] == levels
    assert messages.seen == messages.sent
    before, cpu = cost(), launches.cpu + messages.cpu
    run(300)
    assert 0.7 * BOUND < (cost() - before) / (launches.cpu + messages.cpu - cpu) < 1.1 * BOUND
    assert messages.seen == messages.sent
