"""The HTTP surface over real sockets."""

from __future__ import annotations

import gzip
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress

import pytest

from exporter import server
from exporter.model import Kind, Metric, Sample
from exporter.options import SettingsError
from exporter.scrape import Run
from exporter.server import WebSettings
from exporter.web import connections, listen
from exporter.web.listen import ListenError
from tests import metric_family
from tests.standins.served import Fake, Served
from tests.support import PATIENCE, until

VALUE = Metric("test.value", "A value.", Kind.GAUGE, "By", labels=("of",))
CALLS = Metric("test.calls", "Calls.", Kind.COUNTER)


REQUEST = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def good() -> Iterable[Sample]:
    return [VALUE.sample(23, {"of": 'a"b\n'}), CALLS.sample(5)]


def bad() -> Iterable[Sample]:
    raise OSError("gone")


def test_text_is_served() -> None:
    """/metrics answers with text 0.0.4, its Content-Type, and the exporter's metrics on each collector."""
    with Served([Fake("good", good), Fake("bad", bad)]) as served:
        answer = served.get()

    assert (200, "text/plain; version=0.0.4; charset=utf-8") == (answer.status, answer.headers["content-type"])
    lines = answer.text.splitlines()
    assert 'test_value_bytes{of="a\\"b\\n"} 23' in lines
    assert 'accel_exporter_collector_success{collector="good"} 1' in lines
    assert 'accel_exporter_collector_success{collector="bad"} 0' in lines


def test_openmetrics_and_gzip_are_negotiated() -> None:
    """OpenMetrics goes to who prefers it, compressed to who takes gzip, and caches are instructed to keep both."""
    with Served([Fake("good", good)]) as served:
        answer = served.get(Accept="application/openmetrics-text;version=1.0.0", Accept_Encoding="gzip")

    assert "application/openmetrics-text; version=1.0.0; charset=utf-8" == answer.headers["content-type"]
    assert ("gzip", "Accept, Accept-Encoding") == (answer.headers["content-encoding"], answer.headers["vary"])
    text = gzip.decompress(answer.body).decode()
    assert "\ntest_calls_total 5\n" in text
    assert text.endswith("# EOF\n")


@pytest.mark.parametrize("query", ["", "?profile=fleet", "?collect[]=good"])
def test_protocol_buffers_are_negotiated(query: str) -> None:
    """Protocol Buffers go to who prefers them, with each parameter of the query, compressed; an error stays text."""
    with Served([Fake("good", good)]) as served:
        answer = served.get(f"/metrics{query}", Accept=metric_family.ACCEPT, Accept_Encoding="gzip")
        refused = served.get("/metrics?profile=none", Accept=metric_family.ACCEPT)

    assert "application/vnd.google.protobuf" == answer.headers["content-type"].partition(";")[0]
    assert ("gzip", "Accept, Accept-Encoding") == (answer.headers["content-encoding"], answer.headers["vary"])
    assert 5 == metric_family.series(gzip.decompress(answer.body))["test_calls_total", frozenset()]
    assert (400, "text/plain; charset=utf-8") == (refused.status, refused.headers["content-type"])


def test_protocol_buffers_cost_only_those_who_take_them() -> None:
    """Neither their writer nor a runtime is imported by the server, or by an answer in text."""
    program = (
        "import sys, exporter.__main__, exporter.app, exporter.server\n"
        "from exporter.views.prometheus import render\n"
        "render([])\n"
        "print([it for it in sys.modules if it.startswith('google') or it.endswith('metric_family')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert "[]\n" == done.stdout, done.stderr


def test_a_list_over_several_header_lines() -> None:
    """Header lines of one name are one list (RFC 9110 section 5.3), whichever of them has what counts."""
    lines = ["Accept: text/plain;q=0.5", "Accept: application/openmetrics-text", "Accept-Encoding: br"]
    lines += ["Accept-Encoding: gzip"]
    request = "\r\n".join(["GET /metrics HTTP/1.1", "Host: x", "Connection: close", *lines, "", ""])
    with (
        Served([Fake("good", good)]) as served,
        socket.create_connection(("127.0.0.1", served.port), PATIENCE) as client,
    ):
        client.sendall(request.encode())
        with client.makefile("rb") as stream:
            head = stream.read().partition(b"\r\n\r\n")[0].lower()

    assert b"content-type: application/openmetrics-text" in head
    assert b"content-encoding: gzip" in head


@pytest.mark.parametrize(
    ("query", "status", "has", "lacks"),
    [
        ("?collect[]=good", 200, "test_value", 'collector="bad"'),
        ("?exclude%5B%5D=good", 200, 'collector="bad"', "test_value"),
        ("?collect[]=good&exclude[]=bad", 400, "cannot be combined", "#"),
        ("?collect[]=ugly", 400, "there is no collector 'ugly'", "#"),
        ("?profile=fleet&collect[]=good", 200, "test_value", 'collector="bad"'),
        ("?profile=most", 400, "profile has to be one of fleet, node, debug", "#"),
    ],
)
def test_collectors_are_selected(query: str, status: int, has: str, lacks: str) -> None:
    """collect[], exclude[] and profile choose; nonsense is a 400 with the reason."""
    with Served([Fake("good", good), Fake("bad", bad)]) as served:
        answer = served.get("/metrics" + query)

    assert status == answer.status
    assert has in answer.text
    assert lacks not in answer.text


def test_scrape_timeout_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 30 s of the scraper's, less the offset, what is ready comes in time and the late collector is success 0."""
    gate, ended = threading.Event(), server._ended

    def late() -> Iterable[Sample]:
        gate.wait()
        return []

    async def after_the_good_one(runs: Sequence[Run], seconds: float) -> None:
        """Start the time of the scrape when the good collector is ready, which may be later on a busy machine."""
        await ended([run for run in runs if "good" == run.collector.name], PATIENCE)
        await ended(runs, seconds)

    monkeypatch.setattr(server, "_ended", after_the_good_one)
    with Served([Fake("late", late), Fake("good", good)], timeout_offset=29.6) as served:
        answer = served.get(X_Prometheus_Scrape_Timeout_Seconds="30")  # while the collector still waits
        gate.set()

    assert 'accel_exporter_collector_success{collector="late"} 0' in answer.text
    assert "test_value_bytes" in answer.text


@pytest.mark.parametrize("header", ["x", "-1", "0", "nan", ""])
def test_wrong_scrape_timeout_is_refused(header: str) -> None:
    """A scrape timeout that is no number above 0 is a 400."""
    with Served([Fake("good", good)]) as served:
        assert 400 == served.get(X_Prometheus_Scrape_Timeout_Seconds=header).status


def test_loop_answers_while_collectors_block() -> None:
    """Health is answered while a collector sits in a call that holds its thread."""
    gate, entered = threading.Event(), threading.Event()

    def stuck() -> Iterable[Sample]:
        entered.set()
        gate.wait()
        return []

    with Served([Fake("stuck", stuck)]) as served:
        scrape = threading.Thread(target=served.get)
        scrape.start()
        assert entered.wait(PATIENCE)
        assert 200 == served.get("/-/healthy").status
        gate.set()
        scrape.join()


@pytest.mark.usefixtures("peers_by_address")
def test_requests_beyond_the_limit_get_503() -> None:
    """With a limit of two, the third request at once is refused also to a third peer, and served after they ended."""
    gate = threading.Event()

    def slow() -> Iterable[Sample]:
        gate.wait()
        return []

    with Served([Fake("slow", slow)], max_requests=2) as served:
        peers = ("127.0.0.2", "127.0.0.3")
        threads = [threading.Thread(target=served.get, kwargs={"source": peer}) for peer in peers]
        for thread in threads:
            thread.start()
        until(lambda: len(served.server.slots) == 2)
        answer = served.get("/")
        gate.set()
        for thread in threads:
            thread.join()

        assert 503 == answer.status
        assert "--web.max-requests" in answer.text
        assert 200 == served.get().status


def test_paths_and_methods() -> None:
    """Health and readiness have their aliases; the page links to /metrics; the rest is 404 or 405."""
    with Served([Fake("good", good)], reload=lambda: None) as served:
        for path in ("/-/healthy", "/healthz", "/health", "/-/ready", "/readyz"):
            assert 200 == served.get(path).status, path
        page = served.get("/")
        assert (200, "text/html; charset=utf-8") == (page.status, page.headers["content-type"])
        assert 'href="/metrics"' in page.text
        assert (404, 405, 405) == (
            served.get("/nowhere").status,
            served.get(method="POST").status,
            served.get("/-/reload").status,
        )
        head = served.get(method="HEAD")
        assert (200, b"") == (head.status, head.body)


def test_security_headers() -> None:
    """Every answer forbids sniffing and framing and does not contain versions; the page forbids scripts."""
    with Served([Fake("good", good)]) as served:
        for path in ("/metrics", "/", "/nowhere"):
            headers = served.get(path).headers
            assert ("nosniff", "deny", "accel-exporter") == (
                headers["x-content-type-options"],
                headers["x-frame-options"],
                headers["server"],
            )
        assert "default-src 'none'" in served.get("/").headers["content-security-policy"]


def test_not_ready_before_the_collectors_started() -> None:
    """Readiness is 503 until the collectors have been started, health is not."""
    with Served([Fake("good", good)], start=False) as served:
        assert (503, 200) == (served.get("/-/ready").status, served.get("/-/healthy").status)
        served.scraper.start()
        assert 200 == served.get("/-/ready").status


def test_reload_answers_what_happened() -> None:
    """POST and PUT reload; a wrong configuration is a 500 with the reason, a second reload meanwhile a 409."""
    gate, entered = threading.Event(), threading.Event()
    problem: list[str] = []

    def reload() -> None:
        entered.set()
        gate.wait()
        if problem:
            raise SettingsError(problem[0])

    with Served([Fake("good", good)], reload=reload) as served:
        answers: list[int] = []
        first = threading.Thread(target=lambda: answers.append(served.get("/-/reload", "POST").status))
        first.start()
        entered.wait()
        assert 409 == served.get("/-/reload", "PUT").status
        gate.set()
        first.join()
        assert [200] == answers
        problem.append("unknown key 'x'")
        answer = served.get("/-/reload", "PUT")
        assert (500, "not reloaded: unknown key 'x'\n") == (answer.status, answer.text)


def test_failing_page_is_500_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A fault of ours is a 500 without details, and in the log."""

    def broken(*_: object) -> str:
        raise RuntimeError("secret detail")

    with Served([Fake("good", good)], landing=broken) as served:
        answer = served.get("/")

    assert (500, "internal error; see the log\n") == (answer.status, answer.text)
    assert "secret detail" in caplog.text


def raw(port: int, data: bytes, wait: float = 3.0, host: str = "127.0.0.1") -> bytes:
    """Return the server's answer to these bytes until it closes or is silent."""
    with socket.create_connection((host, port), wait) as connection:
        connection.sendall(data)
        answer = b""
        try:
            while part := connection.recv(65536):
                answer += part
        except TimeoutError:
            pass
        except ConnectionResetError:
            answer = answer or b"reset"
        return answer


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: 1\r\n" % n for n in range(1000)) + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0" * 100,
    ],
)
def test_malformed_requests_are_4xx_and_nothing_else(request_bytes: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Oversized or malformed requests are refused without a log line, and the server goes on."""
    with Served([Fake("good", good)]) as served:
        answer = raw(served.port, request_bytes)
        assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), answer[:80]
        assert b"Server: accel-exporter\r\n" in answer
        assert 200 == served.get().status
    assert [] == [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_slow_heads_and_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends half a head, or nothing, is cut off after the time for a head."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.5)
    with Served([Fake("good", good)]) as served:
        for sent in (b"GET / HTTP/1.1\r\nHo", b""):
            with socket.create_connection(("127.0.0.1", served.port), PATIENCE) as client:
                client.sendall(sent)
                with suppress(ConnectionResetError):
                    assert b"" == client.recv(65536)  # the end; silence is a time-out


def test_client_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that requests a large page and reads none of it holds a place for the sending time only."""
    monkeypatch.setattr(server, "SEND_TIMEOUT", PATIENCE)
    samples = [VALUE.sample(n, {"of": "x" * 200 + str(n)}) for n in range(50_000)]
    with Served([Fake("big", lambda: samples)], max_requests=1) as served, socket.socket() as greedy:
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        greedy.connect(("127.0.0.1", served.port))
        greedy.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: served.get("/").status == 503)
        until(lambda: not served.scraper._running, "it is collected")
        clock, passed = served._loop.time, 0.0
        monkeypatch.setattr(served._loop, "time", lambda: clock() + passed)

        def dropped() -> bool:
            nonlocal passed
            passed += PATIENCE
            return served.get("/").status != 503

        until(dropped)


def test_stop_is_prompt_while_a_scrape_hangs() -> None:
    """Stopping does not wait for a request that waits for a collector that never returns."""
    gate, entered = threading.Event(), threading.Event()

    def stuck() -> Iterable[Sample]:
        entered.set()
        gate.wait()
        return []

    served = Served([Fake("stuck", stuck)])
    served.__enter__()
    client = threading.Thread(target=lambda: raw(served.port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 10))
    client.start()
    assert entered.wait(PATIENCE)
    served._do(served.server.stop())
    gate.set()
    client.join(5)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0", ":0", "localhost:0"])
def test_addresses_to_listen_on(address: str) -> None:
    """IPv4, IPv6, a name and every address are bound, and the URL of the server can be connected to."""
    if "::" in address and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with Served([Fake("good", good)], listen_address=(address,)) as served:
        assert served.port > 0
        host = "::1" if "::1" in address else "127.0.0.1"
        assert raw(served.port, REQUEST, host=host).startswith(b"HTTP/1.1 200 OK")


def test_several_addresses_are_all_served() -> None:
    """A repeated --web.listen-address is a socket each."""
    with Served([Fake("good", good)], listen_address=("127.0.0.1:0", "127.0.0.2:0")) as served:
        assert 2 == len(served.server.urls)


def test_port_in_use_is_one_clear_error() -> None:
    """A taken port is an error with the port and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ListenError) as caught:
            listen.bind([address])

    expected = f"cannot listen on {address}: Address already in use; choose another with --web.listen-address"
    assert expected == str(caught.value)


@pytest.mark.parametrize("address", ["", "9100", "::1:9100", "localhost:http", ":99999", ":-1", "nowhere.invalid:1"])
def test_nonsense_addresses_are_refused(address: str) -> None:
    """Text that is no address is refused with the expected form, or with the resolver's reason."""
    with pytest.raises(ListenError, match="is no address to listen on|cannot listen on"):
        listen.bind([address])


def test_sockets_of_systemd_are_taken_over() -> None:
    """LISTEN_FDS hands over descriptors from 3 on; the variables are removed. Tried in a child that has fd 3."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = os.fork()
        if child == 0:
            os.dup2(listener.fileno(), 3)
            environ = {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "http"}
            [taken] = listen.inherited(environ)
            os._exit(0 if taken.getsockname() == listener.getsockname() and not environ else 1)
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM], ids=["datagrams", "not listening"])
def test_sockets_of_systemd_that_take_no_connections(kind: socket.SocketKind) -> None:
    """ListenDatagram= and Accept=yes are errors that name what the unit needs. Tried in a child that has fd 3."""
    with socket.socket(socket.AF_INET, kind) as passed:
        child = os.fork()
        if child == 0:
            os.dup2(passed.fileno(), 3)
            try:
                listen.inherited({"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())})
            except ListenError as error:
                os._exit(0 if "needs ListenStream= and Accept=no" in str(error) else 1)
            os._exit(1)
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(
    "environ", [{}, {"LISTEN_FDS": "1"}, {"LISTEN_FDS": "1", "LISTEN_PID": "1"}, {"LISTEN_FDS": "x"}]
)
def test_missing_sockets_of_systemd_are_an_error(environ: dict[str, str]) -> None:
    """--web.systemd-socket without a socket for this process is an error with the unit to start."""
    with pytest.raises(ListenError, match="start the .socket unit"):
        listen.inherited(environ)


@pytest.mark.parametrize("path", ["metrics", "", "/-/healthy", "/a b", "/{x}", "/-/reload"])
def test_wrong_telemetry_path_is_refused(path: str) -> None:
    """A telemetry path that is none, or one of ours, is a settings error."""
    with pytest.raises(SettingsError, match="web.telemetry-path"):
        WebSettings(telemetry_path=path)


def test_telemetry_path_at_the_root() -> None:
    """Metrics at / leave no room for the page."""
    with Served([Fake("good", good)], telemetry_path="/") as served:
        assert "test_value_bytes" in served.get("/").text
