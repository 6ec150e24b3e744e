"""The order of comparisons of passwords."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from aiohttp import web

from exporter.web import logins
from exporter.web.logins import MOST_OF_PEER, MOST_WAITING, Logins


class Comparing:
    """Comparisons that end one by one, at `end`."""

    def __init__(self) -> None:
        self.logins = Logins()
        self.begun: list[str] = []
        self.refused: list[str] = []
        self._running: asyncio.Future[bool] | None = None

    def _comparison(self, name: str) -> Callable[[], Awaitable[bool]]:
        async def compare() -> bool:
            self.begun.append(name)
            self._running = asyncio.get_running_loop().create_future()
            return await self._running

        return compare

    async def login(self, peer: str, name: str = "") -> asyncio.Task[None]:
        """Begin a login of a peer, and return it when it runs, waits or is refused."""

        async def attempt() -> None:
            try:
                await self.logins.run(peer, self._comparison(name or peer))
            except web.HTTPTooManyRequests:
                self.refused.append(name or peer)

        task = asyncio.ensure_future(attempt())
        await asyncio.sleep(0)
        return task

    async def end(self, right: bool = False) -> None:
        """End the comparison that runs."""
        assert self._running
        if not self._running.done():
            self._running.set_result(right)
        for _ in range(5):
            await asyncio.sleep(0)


def run(scene: Callable[[Comparing], Coroutine[Any, Any, None]]) -> Comparing:
    comparing = Comparing()

    async def play() -> None:
        await scene(comparing)

    asyncio.run(play())
    return comparing


def test_peers_without_wrong_passwords_are_first() -> None:
    """A hundred peers that guess delay the first login of another by the comparison that runs."""

    async def scene(comparing: Comparing) -> None:
        for number in range(100):
            await comparing.login(f"guesser {number}")
            await comparing.end()
        for number in range(100):
            await comparing.login(f"guesser {number}")
        await comparing.login("prometheus")
        await comparing.end()

    comparing = run(scene)
    assert "prometheus" == comparing.begun[101]
    assert [f"guesser {number}" for number in range(MOST_WAITING + 1, 100)] + [f"guesser {MOST_WAITING}"] == (
        comparing.refused
    )


def test_one_peer_waits_with_few() -> None:
    """Logins of one peer beyond its share are refused; others wait."""

    async def scene(comparing: Comparing) -> None:
        for number in range(10):
            await comparing.login("one", f"one {number}")
        await comparing.login("other")
        for _ in range(MOST_OF_PEER + 1):
            await comparing.end()

    comparing = run(scene)
    assert [f"one {number}" for number in range(MOST_OF_PEER, 10)] == comparing.refused
    assert ["one 0", "other", *(f"one {number}" for number in range(1, MOST_OF_PEER))] == comparing.begun


def test_a_right_password_forgives() -> None:
    """A peer that has logged in is as good as one that never failed."""

    async def scene(comparing: Comparing) -> None:
        for right in (False, True):
            await comparing.login("typist", "typing")
            await comparing.end(right)
        await comparing.login("any")
        await comparing.login("typist")
        await comparing.login("new")
        await comparing.end()

    assert ["typing", "typing", "any", "typist"] == run(scene).begun


@pytest.mark.parametrize("waiting", [True, False])
def test_clients_that_leave(waiting: bool) -> None:
    """A login that is cancelled, while it waits or in its turn, keeps nobody waiting."""

    async def scene(comparing: Comparing) -> None:
        first = await comparing.login("first")
        second = await comparing.login("second")
        await comparing.login("third")
        (second if waiting else first).cancel()
        await asyncio.sleep(0)
        await comparing.end()
        await comparing.end()
        await comparing.login("fourth")
        await comparing.end()

    begun = run(scene).begun
    assert (["first", "third", "fourth"] if waiting else ["first", "second", "third", "fourth"]) == begun


def test_wrong_passwords_of_many_peers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peers with the newest wrong passwords are remembered."""
    monkeypatch.setattr(logins, "MOST_PEERS", 3)

    async def scene(comparing: Comparing) -> None:
        for number in range(10):
            await comparing.login(str(number))
            await comparing.end()

    assert ["7", "8", "9"] == [*run(scene).logins._wrong]
