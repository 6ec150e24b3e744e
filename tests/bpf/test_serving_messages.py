"""Requests of LLM servers that move several messages in a call: sendmmsg and recvmmsg."""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
import termios
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from exporter.serving.answer import Answer
from tests.bpf.fixtures import once
from tests.bpf.serving_node import Observed
from tests.bpf.test_serving_bytes import CHUNKED, JSON, POST, answers, chunk
from tests.bpf.test_serving_unusual import TOKEN, Sides, connected, following, number, post, sides
from tests.support import until

__all__ = ["answers", "sides"]
pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="LLM requests", on="stand-in")]

observed = once(following)


class _Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_char_p), ("size", ctypes.c_size_t)]


class _Message(ctypes.Structure):
    """struct mmsghdr."""

    _fields_ = [
        *(("name", ctypes.c_void_p), ("name_size", ctypes.c_uint), ("pieces", ctypes.POINTER(_Piece))),
        *(("count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("control_size", ctypes.c_size_t)),
        *(("flags", ctypes.c_int), ("unused", ctypes.c_int), ("size", ctypes.c_uint)),
    ]


def _messages(*texts: bytes) -> ctypes.Array[_Message]:
    return (_Message * len(texts))(
        *(_Message(pieces=ctypes.pointer(_Piece(text, len(text))), count=1) for text in texts)
    )


def test_calls_of_messages(observed: Observed, answers: Callable[[int], list[Answer]], sides: Sides) -> None:
    """Bytes of recvmmsg and sendmmsg are read, of each message: of calls that move all of them, some, and none."""
    client, server = sides
    libc = ctypes.CDLL(None)
    before = number(observed, "llm.serving.socket.calls.unread")
    server.setblocking(False)
    read = _messages(*(bytes(len(POST)) for _ in range(5)))
    for count in (1, 2, 5, 3, 3):
        assert -1 == libc.recvmmsg(server.fileno(), read, 5, 0, None)
        client.sendall(POST * count)
        until(lambda count=count: count * len(POST) == _waiting(server), "requests")  # type: ignore[misc]
        assert count == libc.recvmmsg(server.fileno(), read, 5, 0, None)
        assert count == libc.sendmmsg(server.fileno(), _messages(*[JSON] * count), count, 0)
        client.recv(65_536)
    assert [("200", "tiny")] * 14 == [(it.status, it.model) for it in answers(14)]

    client.sendall(POST)
    until(lambda: len(POST) == _waiting(server), "a request")
    server.recv(65_536)
    for texts in ((CHUNKED, chunk(TOKEN)), *[(chunk(TOKEN)[:7], chunk(TOKEN)[7:])] * 3, (chunk(TOKEN), b"0\r\n\r\n")):
        assert 2 == libc.sendmmsg(server.fileno(), _messages(*texts), 2, 0)
        time.sleep(0.01)
    [seen] = answers(15)[14:]

    assert "" == seen.aborted and 4 == sum(seen.gaps) and seen.duration
    assert seen.response_bytes == len(CHUNKED) + 5 * len(chunk(TOKEN)) + 5
    assert before == number(observed, "llm.serving.socket.calls.unread")


def _waiting(server: socket.socket) -> int:
    """The bytes that a socket has received and that were not read."""
    [size] = struct.unpack("i", fcntl.ioctl(server, termios.FIONREAD, bytes(4)))
    return int(size)


def test_a_message_sent_in_part(observed: Observed, answers: Callable[[int], list[Answer]], sides: Sides) -> None:
    """A call ends with a message that is sent in part; the next call of the same messages begins with its first one."""
    client, server = sides
    libc = ctypes.CDLL(None)
    post(sides, POST, CHUNKED + chunk(TOKEN))
    server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    comment = chunk(b": " + b"x" * 8_000_000 + b"\n\n")
    messages = _messages(comment, chunk(TOKEN))
    server.setblocking(False)
    assert 1 == libc.sendmmsg(server.fileno(), messages, 2, 0)
    sent = messages[0].size
    assert 0 < sent < len(comment)
    server.setblocking(True)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_read_to, client, b"0\r\n\r\n")
        server.sendall(comment[sent:])
        time.sleep(0.01)
        for message, text in zip(messages, (chunk(TOKEN), b"0\r\n\r\n"), strict=True):
            message.pieces[0] = _Piece(text, len(text))
        assert 2 == libc.sendmmsg(server.fileno(), messages, 2, 0)
    [seen] = answers(1)

    assert ("200", "", 1) == (seen.status, seen.aborted, sum(seen.gaps)) and seen.duration


def _read_to(client: socket.socket, end: bytes) -> None:
    read = b""
    while not read.endswith(end):
        read = client.recv(65_536)


def test_messages_with_a_timeout(observed: Observed, answers: Callable[[int], list[Answer]], sides: Sides) -> None:
    """Nothing counts of a connection on which a call of messages had a timeout: any may be the last. The loss does."""
    client, server = sides
    names = ("llm.serving.socket.calls.unread", "llm.serving.connections.unreadable")
    libc = ctypes.CDLL(None)
    before = [number(observed, it) for it in names]
    timeout = struct.pack("qq", 0, 1)
    server.setblocking(True)
    client.sendall(POST)
    assert 1 == libc.recvmmsg(server.fileno(), _messages(*[bytes(len(POST))] * 2), 2, 0x10000, timeout)
    post(sides, POST, JSON * 2)
    with connected() as others:
        others[1].setblocking(True)
        post(others, POST)
        others[0].sendall(POST)
        assert 1 == libc.recvmmsg(others[1].fileno(), _messages(*[bytes(len(POST))] * 2), 2, 0x10000, timeout)
        post(others, POST, JSON * 2)
    assert [("200", "tiny")] == [(it.status, it.model) for it in answers(1)]

    assert [it + 2 for it in before] == [number(observed, it) for it in names]
