"""Places for libraries when all are taken: every user gets a fair share, and probes do not come and go."""

from __future__ import annotations

import os
import select
import shutil
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest

from exporter.bpf import attachments, hooks, shares
from exporter.bpf.attached import Attached
from exporter.bpf.attachments import Attachments
from exporter.bpf.library import KeepingInterest, Library
from exporter.bpf.mappings import Mapping
from exporter.bpf.probe import Probes
from exporter.bpf.safety import Protection
from exporter.bpf.users import LibraryUsers
from tests.unit.bpf.mapped import PID, Proc, Recorder

PLACES, EACH = 12, 4
USERS = range(1000, 1008)


class Keeper(Recorder):
    """An interest that keeps the libraries that were given up, with the number of those detached from before."""

    def __init__(self) -> None:
        super().__init__()
        self.given_up: list[tuple[str, int]] = []

    def library_given_up(self, library: Library) -> None:
        self.given_up.append((Path(library.path).name, self.closed))


class Node:
    """Users who map libraries, and what is attached to."""

    def __init__(self, folder: Path, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(attachments, "MAX_LIBRARIES", PLACES)
        monkeypatch.setattr(attachments, "FOR_ROOT", 0)
        monkeypatch.setattr(shares, "PLACES", EACH)
        self._folder, self._built = folder, built
        self._proc, self.interest = Proc(folder / "proc"), Keeper()
        self.kept = Attachments([self.interest], self._proc.root, grace=3600)
        self.owners: dict[int, int] = {}
        """The users of processes, by pid."""
        monkeypatch.setattr(self.kept.shares, "user", lambda pid: self.owners[pid])
        self._mappings: dict[str, Mapping] = {}

    def map(self, user: int, name: str, pid: int = 0, owner: int | None = None) -> Attached | None:
        """Return what is attached to a file that a process of a user has mapped."""
        pid = pid or user
        self.owners[pid] = user
        if name not in self._mappings:
            path = Path(shutil.copy(self._built, self._folder / name))
            if owner is not None:
                os.chown(path, owner, owner)
            self._mappings[name] = self._proc.map(path)
        found = self._mappings[name]
        self._proc.map(self._folder / name, found.start, found.end)
        with self.kept.on_account_of(pid):
            attached = self.kept.of(found)
        if attached:
            attached.users.add(pid)
        return attached

    def places(self) -> Counter[int | bytes]:
        """Return the number of places of each user."""
        return Counter(attached.user for attached in self.kept)

    def crowd(self) -> None:
        """Have eight users map as many libraries as each may."""
        for user in USERS:
            for number in range(EACH):
                self.map(user, f"{user}-{number}.so")


@pytest.fixture
def node(tmp_path: Path, built: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, built, monkeypatch)


def test_users_who_take_all_places_give_some_back(node: Node) -> None:
    """However many users came before, a later one gets as many places as there are for each."""
    node.crowd()
    assert all(node.map(5000, f"{number}.so") for number in range(PLACES // (len(USERS) + 1)))
    assert PLACES == len(node.kept)
    assert all(count >= PLACES // (len(USERS) + 1) for count in (node.places()[user] for user in [*USERS, 5000]))
    assert len(node.interest.attached) - node.interest.closed == PLACES


def test_what_was_given_back_is_counted_and_logged(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """A library that is no longer observed is one refused at the limit."""
    for user in USERS[:3]:
        assert all(node.map(user, f"{user}-{number}.so") for number in range(EACH))
    before = node.kept.refused["limit"]
    assert node.map(5000, "a.so")
    assert (before + 1, 1) == (node.kept.refused["limit"], caplog.text.count("library is no longer probed"))


def test_probes_do_not_come_and_go(node: Node) -> None:
    """Further looks at all processes, in any order, attach and detach nothing."""
    node.crowd()
    node.map(5000, "a.so")
    for turn in range(4):
        node.kept.verdicts.retry()
        attached = len(node.interest.attached), node.interest.closed
        for user in [*USERS, 5000] if turn % 2 else [5000, *reversed(USERS)]:
            for number in range(EACH):
                node.map(user, f"{user}-{number}.so" if user != 5000 else "a.so")
        if turn:
            assert attached == (len(node.interest.attached), node.interest.closed)


def test_which_library_is_given_back(node: Node) -> None:
    """The library of the fewest processes goes first; of several, the one attached to last."""
    for user in USERS[:3]:
        for number in range(EACH):
            node.map(user, f"{user}-{number}.so", pid=user * 10)
            if number < 2:
                node.map(user, f"{user}-{number}.so", pid=user * 10 + 1)
    node.map(5000, "a.so")
    closed = {f"{USERS[0]}-{number}.so" for number in range(EACH)} - {
        Path(attached.library.path).name for attached in node.kept
    }
    assert {f"{USERS[0]}-{EACH - 1}.so"} == closed
    assert [(f"{USERS[0]}-{EACH - 1}.so", 0)] == node.interest.given_up


def test_a_library_that_others_use_stays(node: Node) -> None:
    """A library counts to the one of its users who has the fewest places, not to the one who came first with it."""
    shared = node.map(USERS[0], "shared.so")
    for user in USERS[:3]:
        for number in range(EACH):
            for process in range(3):
                node.map(user, f"{user}-{number}.so", pid=user * 10 + process)
    assert node.map(5000, "shared.so") is shared
    assert node.map(5001, "a.so")
    assert shared in [*node.kept]
    assert 1 == node.places()[5000]


def test_users_who_share_all_their_libraries(node: Node) -> None:
    """Users who map the libraries of each other hold no more places than others."""
    node.crowd()
    for user in USERS:
        for other in USERS:
            for number in range(EACH):
                node.map(user, f"{other}-{number}.so")
    fair = PLACES // (len(USERS) + 1)
    assert all(node.map(5000, f"{number}.so") for number in range(fair))


def test_a_user_without_a_place_turns_nobody_else_away(node: Node) -> None:
    """A file that its first user has no place for is attached to for another user, in the same look."""
    for number in range(EACH):
        node.map(1000, f"{number}.so")
    assert node.map(1000, "common.so") is None
    examined = node.kept.verdicts.examined
    assert node.map(1000, "common.so", pid=PID) is None
    assert examined == node.kept.verdicts.examined
    assert node.map(5000, "common.so")
    assert {"share": 1} == node.kept.refused


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files to others takes root")
def test_files_of_root_keep_their_places(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a user takes the place of another such file, and none of those that are for root's."""
    monkeypatch.setattr(attachments, "FOR_ROOT", 4)
    for number in range(4):
        assert node.map(0, f"root-{number}.so", owner=0)
    for user in USERS[:2]:
        for number in range(EACH):
            assert node.map(user, f"{user}-{number}.so", owner=user)
    assert node.map(5000, "a.so", owner=5000)
    assert 4 == sum(attached.held.owner == 0 for attached in node.kept)
    assert PLACES == len(node.kept)


def test_processes_of_a_library_that_is_given_back() -> None:
    """Running processes of a withdrawn library are passed to the collector: their memory is no longer known."""
    withdrawn: list[int] = []
    programs = Mock(programs={})
    probes = Probes(
        "test",
        programs,
        {},
        hits=dict,
        protection=lambda pid: Protection(seccomp=False, shadow_stack=False),
        returns_allowed=lambda users: (True, ""),
        find=lambda library, names: hooks.Places({}, {}, {}),
        withdrawn=withdrawn.extend,
    )
    library = Library((0, 0), "/a.so", "", 62, "", {})
    probes.attach(library)
    for pid in (7, 8):
        probes.process_started(pid, library, from_first_call=True)
    probes.processes_ended([8])
    assert isinstance(probes, KeepingInterest)
    probes.library_given_up(library)
    assert [7] == withdrawn


def test_the_end_of_a_process_that_has_lost_its_library(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interest is given its end once, and no earlier, where the library was probed again meanwhile."""
    ended: list[int] = []
    monkeypatch.setattr(node.interest, "processes_ended", ended.extend)
    monkeypatch.setattr(LibraryUsers, "open_pidfd", lambda self, pid: -1)
    users = LibraryUsers(select.epoll())
    for user in USERS[:3]:
        for number in range(EACH):
            pid = user * 10 + number
            attached = node.map(user, f"{user}-{number}.so", pid)
            assert attached and users.use(pid, 1, attached, 0)
    assert node.map(5000, "a.so")
    lost, library = USERS[0] * 10 + EACH - 1, f"{USERS[0]}-{EACH - 1}.so"
    assert [(library, 0)] == node.interest.given_up
    node.kept.verdicts.retry()
    for user in USERS[1:3]:
        users.queue_ends([user * 10 + number for number in range(EACH)])
    users.deliver_ends(node.kept)
    monkeypatch.setattr(node.kept, "grace", 0)
    node.kept.release_idle()
    again = node.map(USERS[0], library, lost)
    assert again and users.use(lost, 1, again, 0)
    assert lost not in ended
    users.queue_ends([lost])
    users.deliver_ends(node.kept)
    assert 1 == ended.count(lost)
    users.close()
