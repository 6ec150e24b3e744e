"""The order in which passwords are compared, which takes bcrypt tens of milliseconds each."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count

from exporter.web.http import web

MOST_WAITING, MOST_OF_PEER = 32, 4
"""Comparisons that wait, and of one peer with the one that runs: at a bcrypt cost of 10 the last ends after about three
seconds.
"""
MOST_PEERS = 4096
"""Peers of which wrong passwords are counted: those with the newest ones."""


@dataclass(eq=False, slots=True)
class _Login:
    """A comparison that waits for its turn."""

    peer: str
    number: int
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Logins:
    """Compares one password at a time: the next one is of the peer that has sent fewest wrong ones.

    So a flood of wrong passwords, from however many peers, delays the right one of another peer by one each. Where too
    many wait, one of the peer with most wrong ones is refused.
    """

    def __init__(self) -> None:
        self._wrong: OrderedDict[str, int] = OrderedDict()
        self._waiting: list[_Login] = []
        self._numbers = count()
        self._comparing: str | None = None
        """The peer with the comparison that runs."""

    async def run(self, peer: str, compare: Callable[[], Awaitable[bool]]) -> bool:
        """Return what `compare` does, in this peer's turn. Raises HTTPTooManyRequests without one."""
        await self._turn(peer)
        try:
            right = await compare()
            self._note(peer, right)
            return right
        finally:
            self._next()

    def _note(self, peer: str, right: bool) -> None:
        """Count a wrong password of a peer; a right one makes up for all wrong ones."""
        wrong = self._wrong.pop(peer, 0)
        if right:
            return
        self._wrong[peer] = wrong + 1
        if len(self._wrong) > MOST_PEERS:
            self._wrong.popitem(last=False)

    async def _turn(self, peer: str) -> None:
        """Wait for the turn, which has to be ended with `_next`."""
        if self._comparing is None:
            self._comparing = peer
            return
        if [self._comparing, *(login.peer for login in self._waiting)].count(peer) >= MOST_OF_PEER:
            raise _refusal()
        login = _Login(peer, next(self._numbers))
        self._waiting.append(login)
        if len(self._waiting) > MOST_WAITING:
            last = max(self._waiting, key=self._rank)
            self._waiting.remove(last)
            if not last.turn.done():
                last.turn.set_exception(_refusal())
        try:
            await login.turn
        except asyncio.CancelledError:  # the client has gone
            if login in self._waiting:
                self._waiting.remove(login)
            elif not login.turn.cancelled() and login.turn.exception() is None:
                self._next()
            raise

    def _next(self) -> None:
        """End a turn, and give it to the first of those that wait."""
        while self._waiting:
            first = min(self._waiting, key=self._rank)
            self._waiting.remove(first)
            if not first.turn.done():
                self._comparing = first.peer
                first.turn.set_result(None)
                return
        self._comparing = None

    def _rank(self, login: _Login) -> tuple[int, int]:
        return self._wrong.get(login.peer, 0), login.number


def _refusal() -> web.HTTPTooManyRequests:
    return web.HTTPTooManyRequests(text="too many logins at once; try again later\n")
