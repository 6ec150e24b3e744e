"""Attaching to RDMA providers, without any."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.bpf.elf import Function
from exporter.bpf.library import Library
from exporter.bpf.shares import User
from exporter.verbs.attaching import Attaching
from exporter.verbs.code.providers import ProviderFunctions
from exporter.verbs.code.tables import SET_OPS
from exporter.verbs.functions import names
from exporter.verbs.probed import Provider
from tests.support import PATIENCE

PID = 4711


@pytest.fixture
def library() -> Library:
    return Library((0, 0), "libmlx5.so", "libmlx5.so", 62, "", {}, frozenset({SET_OPS}))


@pytest.fixture
def attaching(library: Library) -> Attaching:
    there: Any = SimpleNamespace(processes_ended=lambda pids: None)
    made = Attaching(there, there, lambda _: None, Path("/nonexistent"), Path("/nonexistent"), there)
    made.attach(library)
    made.providers[id(library)].users[PID] = None
    return made


@pytest.mark.parametrize("part", ["live", "extended"])
def test_a_slow_search_delays_no_other_process(
    attaching: Attaching, library: Library, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """While a file is searched for what one process calls, others end; of a file that is released nothing is taken."""
    begun, go_on = threading.Event(), threading.Event()

    def search(*_: object) -> ProviderFunctions:
        begun.set()
        assert go_on.wait(2 * PATIENCE)
        return ProviderFunctions({}, {"post_send": "It is not certain."})

    monkeypatch.setattr(f"exporter.verbs.code.{part}.offsets_in", lambda *_: {"post_send": 1})
    monkeypatch.setattr(f"exporter.verbs.code.{part}.learn", search)
    provider = attaching.providers[id(library)]
    learn = attaching.learn if part == "live" else attaching.learn_extended
    learning = threading.Thread(target=learn, args=(PID, {"post_send": 1}))
    learning.start()
    assert begun.wait(PATIENCE)
    other = threading.Thread(target=attaching.processes_ended, args=([PID],), daemon=True)
    other.start()
    other.join(PATIENCE)  # before the search ends
    ended = not other.is_alive()
    if ended:
        attaching.release(library)
    go_on.set()
    learning.join()

    assert ended
    assert ("", {}) == (provider.problem, provider.refused)


def test_learning_waits_for_the_share_of_the_user(
    attaching: Attaching, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without time left nothing is read for a process; what the kernel has seen of it is learnt once there is time."""
    searched = []

    def search(*_: object) -> ProviderFunctions:
        searched.append(PID)
        return ProviderFunctions({}, {"post_send": "It is not certain."})

    contexts: Any = SimpleNamespace(contexts=lambda pid: [{"post_send": 1}], objects=lambda pid: [])
    monkeypatch.setattr(attaching, "pointers", contexts)
    monkeypatch.setattr(attaching, "search", lambda *_: False)
    monkeypatch.setattr("exporter.verbs.code.live.offsets_in", lambda *_: {"post_send": 1})
    monkeypatch.setattr("exporter.verbs.code.live.learn", search)
    user = attaching.shares.user(PID)
    attaching.shares.spend(user, 1000)
    attaching.learn(PID, {"post_send": 1})
    attaching.retry()
    assert [] == searched
    attaching.shares.spend(user, -1000)
    attaching.retry()
    assert [PID] == searched


def test_a_slow_search_delays_no_scrape(attaching: Attaching, library: Library) -> None:
    """Functions not found so far are reported while a file is searched, with the lock held."""
    attaching.providers[id(library)].problem = "it is not known"
    problems: list[str] = []
    with attaching._lock:
        thread = threading.Thread(target=lambda: problems.extend(attaching.problems()), daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert ["it is not known"] == problems


def test_false_pointers_of_a_user_leave_versions_for_others(library: Library) -> None:
    """A process may show any function as a call: half of a call's versions are probed for it, others get theirs."""
    provider, free = Provider(library), len(names("wr_start"))

    def show(user: User | None, *offsets: int) -> list[int]:
        """The offsets that are probed because of it."""
        shown = ProviderFunctions({"wr_start": tuple(Function("wr_start", at, 8, at, 0) for at in offsets)}, {})
        part, left = provider.part(shown, user)
        if part:
            provider.parts.append(part)
        probed = [it.offset for it in part.functions.values()] if part else []
        assert bool(left) == (len(probed) < len(offsets))
        return probed

    for at in range(64, 64 + 20):
        show(66, at)
    assert free // 2 == len(provider.known)
    assert [1000, 1001] == show(7, 1000, 1001)
    assert [2000] == show(b"root's container", 2000)
    assert [] == show(66, 3000)
    assert [4000] == show(None, 4000, 4001)
    assert free == len(provider.known)
