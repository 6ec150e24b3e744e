"""Holds the tests of this folder to what it is: no threads, sockets, children or downloads."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

from tests import wheels


def _refuse(what: str) -> Callable[..., NoReturn]:
    def refused(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError(f"a test of tests/unit {what}: its place is tests/program")

    return refused


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """While tests run, no thread is started, no socket bound or connected, no child made and no wheel fetched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refuse("starts a thread"))
        patch.setattr(subprocess.Popen, "__init__", _refuse("starts a child"))
        patch.setattr(subprocess.Popen, "__del__", lambda _: None)
        patch.setattr(os, "fork", _refuse("forks"))
        patch.setattr(wheels, "fetch", _refuse("downloads a wheel"))  # also where an earlier run left it
        for name in ("bind", "connect"):
            patch.setattr(socket.socket, name, _refuse("uses a socket"))
        yield
