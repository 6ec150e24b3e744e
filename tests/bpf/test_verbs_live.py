"""Functions that only a running process shows are probed if they are certain, and refused otherwise."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from exporter.verbs.attaching import _ATTEMPTS
from tests.bpf.fixtures import once
from tests.bpf.observed import Observed
from tests.bpf.verbs_node import BUILD, Job, observe
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="functions of RDMA providers", on="stand-in")]

BYTES = "rdma_send_bytes_total"
PROVIDER = "libstandin-rdmav34.so"


observed = once(observe)


def problems(observed: Observed, path: Path) -> list[str]:
    return [line for line in observed.collector.problems() if line.startswith(f"{path}:")]


def attached(observed: Observed, path: Path) -> bool:
    found = observed.values("accel_exporter_probe_attached", symbol="post_send", library=str(path))
    return bool(found) and all(found.values())


def known(observed: Observed, job: Job) -> None:
    """Waits until libibverbs, or what contains it, is probed, the process known and its provider searched."""

    def searched() -> bool:
        providers = [it for it in [*observed.collector.attaching.providers.values()] if job.pid in it.users]
        return bool(providers) and all(it.searched or it.found is not None for it in providers)

    until(lambda: job.pid in observed.collector.ledger and searched(), "the process known")


def searched_for_the_last_time(observed: Observed, job: Job) -> None:
    """Wait until the job's provider is not searched again: after a search, pointers are examined again.

    Another process that begins to use the provider causes one.
    """
    attaching = observed.collector.attaching

    def over() -> bool:
        attaching.retry()
        providers = [it for it in [*attaching.providers.values()] if job.pid in it.users]
        user = attaching.shares.user(job.pid)
        return all(it.attempts[user] == _ATTEMPTS for it in providers) and not attaching.analysis.running

    until(over, "the provider searched for the last time")


def reports(observed: Observed, job: Job) -> int:
    """Return how often the BPF program sent the process's pointers."""
    counts = observed.collector.object.maps["live_sent"].items()
    return sum(count for key, count in counts if key.tgid == job.pid)


@pytest.mark.parametrize("program", ["verbs_job", "live/verbs_job", "live/verbs_job_fixed"])
def test_what_the_file_does_not_show_is_learnt(observed: Observed, program: str) -> None:
    """A provider that chooses its table when it runs, and programs that contain rdma-core, count from the first call
    of libibverbs on: not before, and then exactly."""
    own = program != "verbs_job"
    path = BUILD / program if own else BUILD / "live" / PROVIDER
    with Job(BUILD / program, None if own else path) as job:
        known(observed, job)
        until(lambda: own or 1 == len(problems(observed, path)), "what is not found reported")
        assert not attached(observed, path)
        assert 0 == job.step("modify", 0)
        until(lambda: attached(observed, path) and not problems(observed, path), "attached, and no problem any more")
        job.post(0, 23, segments=3, size=1001)
        assert 23 * 3 * 1001 == observed.value(BYTES, job.pid, qp="100")
        job.step("complete", 23, 0)
        assert 23 == job.step("poll", 64)
        assert 23 == observed.value("rdma_completions_total", job.pid, status="SUCCESS")


def test_a_second_process_is_counted_at_once(observed: Observed) -> None:
    """Functions shown by one process hold for all processes that use the file, and are attached to once."""
    path = BUILD / "live" / PROVIDER
    with Job(BUILD / "verbs_job", path) as first, Job(BUILD / "verbs_job", path) as second:
        known(observed, first)
        first.step("modify", 0)
        until(lambda: attached(observed, path), "attached")
        known(observed, second)
        for _ in range(3):
            second.step("modify", 0)
        second.post(0, 5, size=10)
        assert 50 == observed.value(BYTES, second.pid, qp="100")
        assert 1 == observed.value("rdma_post_send_calls_total", second.pid, qp="100")


def test_what_is_in_no_table_is_refused(observed: Observed) -> None:
    """A table that a provider makes when it runs proves nothing: not attached to, and the reason is reported."""
    path = BUILD / "made" / PROVIDER
    with Job(BUILD / "verbs_job", path) as job:
        known(observed, job)
        job.step("modify", 0)
        until(lambda: any("next to each other" in line for line in problems(observed, path)), "refused")
        assert not attached(observed, path)
        job.post(0, 5)
        assert {} == observed.values(BYTES, job.pid)


def test_pointers_that_a_process_forges(observed: Observed, tmp_path: Path) -> None:
    """A process that puts other functions into its context has none of them probed, and does not spoil it for
    others; after a number of them it is not looked at any more."""
    path = Path(shutil.copy(BUILD / "live" / PROVIDER, tmp_path))
    with Job(BUILD / "verbs_job", path) as forger, Job(BUILD / "verbs_job", path) as honest:
        known(observed, forger)
        searched_for_the_last_time(observed, forger)
        for kind in range(40):
            forger.step("forge", kind)
            forger.step("modify", 0)
        assert 40 == reports(observed, forger)
        forger.step("forge", -1)
        until(lambda: len(observed.collector.attaching.learning.examined.get(forger.pid, ())) == 16, "looked at")
        forger.step("modify", 0)
        assert not attached(observed, path)
        assert 1 == len(problems(observed, path))
        known(observed, honest)
        honest.step("modify", 0)
        until(lambda: attached(observed, path), "attached")
        honest.post(0, 5, size=10)
        assert 50 == observed.value(BYTES, honest.pid, qp="100")


@pytest.fixture
def containers(tmp_path: Path) -> Iterator[list[Path]]:
    """The provider through two overlay mounts of one lower folder, as two containers of one image see it."""
    with ExitStack() as stack:
        (tmp_path / "lower").mkdir()
        shutil.copy(BUILD / "live" / PROVIDER, tmp_path / "lower")
        paths = []
        for name in ("a", "b"):
            for part in ("upper", "work", "merged"):
                (tmp_path / f"{part}-{name}").mkdir()
            layers = ",".join(f"{part}dir={tmp_path}/{part}-{name}" for part in ("upper", "work"))
            merged, options = tmp_path / f"merged-{name}", f"lowerdir={tmp_path}/lower,{layers}"
            made = subprocess.run(["mount", "-t", "overlay", "none", "-o", options, merged], check=False)
            if made.returncode:
                pytest.skip("overlays cannot be mounted here")
            stack.callback(subprocess.run, ["umount", "-l", merged], check=True)
            paths.append(merged / PROVIDER)
        yield paths


def test_containers_of_one_image(observed: Observed, containers: list[Path]) -> None:
    """Functions shown by a process of one container hold for others with the same file below their overlays, even where
    the file was first seen through another container.
    """
    with Job(BUILD / "verbs_job", containers[0]) as first, Job(BUILD / "verbs_job", containers[1]) as second:
        known(observed, first)
        known(observed, second)
        second.step("modify", 0)
        until(lambda: any(attached(observed, path) for path in containers), "attached")
        for job in (first, second):
            job.post(0, 5, size=10)
            assert 50 == observed.value(BYTES, job.pid, qp="100")
            assert 1 == observed.value("rdma_post_send_calls_total", job.pid, qp="100")
