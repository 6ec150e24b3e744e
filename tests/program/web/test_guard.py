"""Users, rate limits and headers of the web configuration, at the server."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import bcrypt
import pytest

from exporter.model import Kind, Metric, Sample
from exporter.web import guard, logins
from exporter.web.config import RateLimit, WebConfigError
from exporter.web.guard import Limiter
from tests.standins.served import Fake, Served

VALUE = Metric("test.value", "A value.", Kind.GAUGE)


def collect() -> Iterable[Sample]:
    return [VALUE.sample(1)]


def hashed(password: str, cost: int = 4) -> str:
    return bcrypt.hashpw(password.encode()[:72], bcrypt.gensalt(cost)).decode()


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture
def web_config(tmp_path: Path) -> Path:
    path = tmp_path / "web.yml"
    path.write_text(f"basic_auth_users:\n  alice: {hashed('wonder:land')}\n  bob: {hashed('b' * 80)}\n")
    return path


def test_users_are_required(web_config: Path) -> None:
    """Only the right user and password see metrics and page; the challenge is in the refusal."""
    with Served([Fake("a", collect)], config_file=str(web_config)) as served:
        refused = served.get()
        assert (401, "Basic") == (refused.status, refused.headers["www-authenticate"])
        assert 200 == served.get(Authorization=basic("alice", "wonder:land")).status
        assert 200 == served.get("/", Authorization=basic("bob", "b" * 80)).status
        for wrong in (
            basic("alice", "wonder"),
            basic("mallory", "wonder:land"),
            basic("", ""),
            "Basic !!!",
            "Basic " + base64.b64encode(b"alice").decode(),
            "Basic " + base64.b64encode(b"alice:\xff\x00").decode(),
            "Bearer x",
            "Basic",
        ):
            assert 401 == served.get(Authorization=wrong).status, wrong


def test_health_needs_no_user(web_config: Path) -> None:
    """Health and readiness are answered to kubelets, which have no password; reloading is not."""
    with Served([Fake("a", collect)], config_file=str(web_config), reload=lambda: None) as served:
        assert [200] * 3 == [served.get(path).status for path in ("/-/healthy", "/-/ready", "/healthz")]
        assert 401 == served.get("/-/reload", "POST").status


def test_users_change_without_restart(web_config: Path) -> None:
    """A user removed from the file is refused at the next request, also when the answer was cached."""
    with Served([Fake("a", collect)], config_file=str(web_config)) as served:
        assert 200 == served.get(Authorization=basic("alice", "wonder:land")).status
        web_config.write_text(f"basic_auth_users:\n  carol: {hashed('c')}\n")
        assert 401 == served.get(Authorization=basic("alice", "wonder:land")).status
        assert 200 == served.get(Authorization=basic("carol", "c")).status


def test_broken_file_serves_nobody_until_it_is_right(web_config: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that became wrong is 500 for every path, logged once, and over when it is right again."""
    right = web_config.read_text()
    with Served([Fake("a", collect)], config_file=str(web_config)) as served:
        web_config.write_text("basic_auth_users: [")
        assert {500} == {served.get(Authorization=basic("alice", "wonder:land")).status for _ in range(3)}
        web_config.write_text(right)
        assert 200 == served.get(Authorization=basic("alice", "wonder:land")).status

    assert 1 == sum("until the file is corrected" in line for line in caplog.messages)


def test_wrong_file_keeps_the_server_from_starting(tmp_path: Path) -> None:
    """A web configuration that is wrong or missing at the start is an error, not an open door."""
    with pytest.raises(WebConfigError, match="cannot be read"), Served([], config_file=str(tmp_path / "none.yml")):
        pass


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The cost of each comparison with a hash, as they come: time that is measured depends on what else runs."""
    seen: list[int] = []
    compare = bcrypt.checkpw

    def counting(password: bytes, hashed: bytes) -> bool:
        seen.append(int(hashed.split(b"$")[2]))
        return compare(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", counting)
    return seen


def test_password_is_hashed_once(web_config: Path, costs: list[int]) -> None:
    """Of 50 requests with one password only the first pays for bcrypt."""
    web_config.write_text(f"basic_auth_users:\n  alice: {hashed('x', 10)}\n")
    with Served([Fake("a", collect)], config_file=str(web_config)) as served:
        for _ in range(50):
            assert 200 == served.get(Authorization=basic("alice", "x")).status

    assert [10] == costs


def test_unknown_user_costs_as_much_as_a_known_one(web_config: Path, costs: list[int]) -> None:
    """The time of a refusal does not depend on whether the name exists: each is one comparison of the same cost."""
    web_config.write_text(f"basic_auth_users:\n  alice: {hashed('x', 9)}\n")
    with Served([Fake("a", collect)], config_file=str(web_config)) as served:
        for number in range(3):
            for user in ("alice", "nobody"):
                assert 401 == served.get(Authorization=basic(user, f"no-{number}")).status

    assert [9] * 6 == costs


def test_wrong_passwords_do_not_stop_the_others(web_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While many guess passwords, health and a cached user are answered, and the guessers are held off."""
    gate, compare = threading.Event(), bcrypt.checkpw

    def slow(password: bytes, hashed: bytes) -> bool:
        assert gate.wait(60)
        return compare(password, hashed)

    with Served([Fake("a", collect)], config_file=str(web_config)) as served:
        assert 200 == served.get(Authorization=basic("alice", "wonder:land")).status
        monkeypatch.setattr(bcrypt, "checkpw", slow)
        answers: list[int] = []

        def guess(number: int) -> None:
            answers.append(served.get(Authorization=basic("alice", str(number)), timeout=60).status)

        guessers = [threading.Thread(target=guess, args=(n,)) for n in range(logins.MOST_WAITING + 10)]
        for thread in guessers:
            thread.start()
        while len(answers) < len(guessers) - logins.MOST_OF_PEER:
            time.sleep(0.01)
        assert 200 == served.get("/-/healthy").status
        assert 200 == served.get(Authorization=basic("alice", "wonder:land")).status
        assert {429} == set(answers)
        gate.set()
        for thread in guessers:
            thread.join()

    assert {401, 429} == set(answers)


def test_rate_limit_answers_429(tmp_path: Path) -> None:
    """Beyond the burst requests get 429 until the interval has passed; health is exempt."""
    path = tmp_path / "web.yml"
    path.write_text("rate_limit:\n  interval: 1h\n  burst: 3\n")
    with Served([Fake("a", collect)], config_file=str(path)) as served:
        assert [200, 200, 200, 429, 429] == [served.get().status for _ in range(5)]
        assert 200 == served.get("/-/healthy").status


def test_limiter_refills(monkeypatch: pytest.MonkeyPatch) -> None:
    """One token comes back each interval, never more than the burst."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    limiter = Limiter(RateLimit("100ms", 2))
    assert [True, True, False] == [limiter.allows() for _ in range(3)]
    clock[0] = 0.11
    assert [True, False] == [limiter.allows() for _ in range(2)]
    clock[0] = 100
    assert [True, True, False] == [limiter.allows() for _ in range(3)]


def test_configured_headers_are_sent(tmp_path: Path) -> None:
    """Headers of the file are on every answer and win over ours."""
    path = tmp_path / "web.yml"
    path.write_text("http_server_config:\n  headers:\n    X-Frame-Options: sameorigin\n    X-XSS-Protection: '1'\n")
    with Served([Fake("a", collect)], config_file=str(path)) as served:
        for where in ("/metrics", "/nowhere"):
            headers = served.get(where).headers
            assert ("sameorigin", "1") == (headers["x-frame-options"], headers["x-xss-protection"])


@contextmanager
def guessing(served: Served, source: str, seen: list[int]) -> Iterator[None]:
    """24 connections that try one wrong password after the other, from when the first was answered."""
    over, begun = threading.Event(), threading.Event()

    def guess(number: int) -> None:
        for turn in count():
            if over.is_set():
                return
            with suppress(OSError):
                authorization = basic("alice", f"{number}.{turn}")
                seen.append(served.get(source=source, timeout=30, Authorization=authorization).status)
            begun.set()

    guessers = [threading.Thread(target=guess, args=(number,)) for number in range(24)]
    for thread in guessers:
        thread.start()
    begun.wait()
    try:
        yield
    finally:
        over.set()
        for thread in guessers:
            thread.join()


@pytest.mark.usefixtures("peers_by_address")
def test_flood_of_wrong_passwords(web_config: Path) -> None:
    """The right password is answered while 24 connections guess: known before at once, else after a place of its own.

    Between two scrapes there are more wrong passwords than are remembered.
    """
    web_config.write_text(f"basic_auth_users:\n  alice: {hashed('x', 4)}\n  bob: {hashed('y', 4)}\n")
    seen: list[int] = []
    with Served([Fake("a", collect)], config_file=str(web_config)) as served:
        assert 200 == served.get(source="127.0.0.2", Authorization=basic("alice", "x")).status
        with guessing(served, "127.0.0.2", seen):
            assert 200 == served.get(Authorization=basic("bob", "y")).status
            for _ in range(3):
                refused = seen.count(401)
                while seen.count(401) < refused + guard.MOST_REFUSED + 20:
                    time.sleep(0.05)
                for source in ("127.0.0.1", "127.0.0.2"):
                    assert 200 == served.get(source=source, Authorization=basic("alice", "x")).status

    assert {401, 429} == set(seen)
