"""A dcgm-exporter on the node: read in the background, bounded, and passed on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from exporter.compat.dcgm import endpoint
from exporter.compat.dcgm.endpoint import PageReader, Passthrough, ScrapedPage
from exporter.compat.dcgm.exposition import read
from exporter.compat.dcgm.series import Entity
from exporter.model import Kind, Labels
from tests.support import PATIENCE, until
from tests.unit.dcgm.gpus import gpu, mig, snapshot

pytestmark = pytest.mark.evidence(feature="DCGM's own readings", on="stand-in")

PAGE = """\
# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-0",Hostname="h"} 41
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-1",Hostname="h",pod="theirs",GPU_I_ID="2"} 42
# HELP DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES Bytes.
# TYPE DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES counter
DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES{nvlink="3",gpu="0",gpu_uuid="GPU-0"} 7
# TYPE DCGM_FI_DEV_CPU_UTIL_TOTAL gauge
DCGM_FI_DEV_CPU_UTIL_TOTAL{cpu="0"} 0.5
DCGM_UNTYPED 1
"""
Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def served(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def give(body: bytes, status: int = 200, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


@contextmanager
def reading(url: str, interval: float = 0.1) -> Iterator[PageReader]:
    subject = PageReader(url, interval)
    subject.start()
    try:
        yield subject
    finally:
        subject.close()


def test_read() -> None:
    """The page is read at once and then each interval; its age is the time since the last read."""
    with served(give(PAGE.encode())) as url, reading(url, 2.0) as subject:
        until(subject.page)
        first, at = subject.page(), subject.last.at
        assert ("", True) == (subject.failure, 0 < (subject.age() or 0) < PATIENCE)
        until(lambda: subject.last.at != at)

        assert first is not None
        assert (4, 1) == (len(first.series), first.refused)


def test_before_the_first_page() -> None:
    """Before the first read there is no page and no age."""
    subject = PageReader("http://localhost:1/", 1)

    assert (None, None, "it has not been read yet") == (subject.page(), subject.age(), subject.failure)


def test_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last page of an exporter that has ended is valid for three intervals."""
    with served(give(PAGE.encode())) as url:
        subject = PageReader(url, 10.0)
        subject.poll()
    subject.poll()
    assert "refused" in subject.failure
    at = subject.last.at or 0.0
    monkeypatch.setattr("time.monotonic", lambda: at + 30)
    assert subject.page() is not None
    monkeypatch.setattr("time.monotonic", lambda: at + 30.1)
    assert subject.page() is None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (give(b"no", 503), "503"),
        (give(b"", 302, Location="http://127.0.0.1:1/"), "302"),
        (give(b"\xff"), "utf-8"),
        (give(b"#" * 2000), "more than 1000 bytes"),
    ],
)
def test_no_page(answer: Answer, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors, redirects, and pages that are no text or too long are refused, with the reason."""
    monkeypatch.setattr(endpoint, "MOST_BYTES", 1000)
    with served(answer) as url, reading(url) as subject:
        until(lambda: expected in subject.failure)  # on a busy machine some reads end with a time-out

        assert None is subject.page()


def test_trickle() -> None:
    """A page that comes byte by byte is refused after the time limit."""
    stop = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not stop.wait(0.02):
            handler.wfile.write(b"#")

    with served(answer) as url, reading(url, 0.3) as subject:
        until(lambda: "incomplete" in subject.failure)
        stop.set()


def test_hangs() -> None:
    """An exporter that accepts and never answers is a failure."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        subject = PageReader(f"http://127.0.0.1:{listener.getsockname()[1]}/", 0.3)
        subject.start()
        until(lambda: "timed out" in subject.failure)
        subject.close()


def owner(entity: Entity) -> Labels:
    return {"pod": f"pod-{entity.gpu.index}{entity.instance}"}


def test_label_names_of_a_series() -> None:
    """Labels of the pod are omitted beyond 20 label names, and lines that already have more labels are rejected."""
    own = ",".join(f'l{number}="x"' for number in range(15))
    page = (
        PAGE
        + f'DCGM_FI_DEV_GPU_TEMP{{UUID="GPU-0",{own}}} 1\n'
        + f'DCGM_FI_DEV_GPU_TEMP{{{own},UUID="",a="",b="",c="",d=""}} 2\n'
    )
    read, refused = _read(page)
    labels = {f"label_{number}": "y" for number in range(8)} | {"pod": "a", "namespace": "n"}

    found = list(Passthrough().samples(ScrapedPage(read, refused), snapshot(gpu(0)), lambda _: labels))

    assert refused == _read(PAGE)[1] + 1
    [widest] = [it.labels for it in found if "l14" in it.labels]
    assert 20 == len(widest)
    assert {"gpu_uuid", "pod", "namespace", "label_0"} < widest.keys()


def test_passed_on() -> None:
    """Each series keeps name, type, help and labels, and gets gpu_uuid and an owner unless the page has one."""
    page = ScrapedPage(*_read(PAGE))

    found = list(Passthrough().samples(page, snapshot(gpu(0), gpu(1, migs=(mig(2),))), owner))

    assert [
        (
            "DCGM_FI_DEV_GPU_TEMP",
            {"gpu": "0", "UUID": "GPU-0", "Hostname": "h", "gpu_uuid": "GPU-0", "pod": "pod-0"},
            41,
        ),
        (
            "DCGM_FI_DEV_GPU_TEMP",
            {"gpu": "1", "UUID": "GPU-1", "Hostname": "h", "gpu_uuid": "GPU-1", "pod": "theirs", "GPU_I_ID": "2"},
            42,
        ),
        (
            "DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES",
            {"nvlink": "3", "gpu": "0", "gpu_uuid": "GPU-0", "pod": "pod-0"},
            7,
        ),
        ("DCGM_FI_DEV_CPU_UTIL_TOTAL", {"cpu": "0", "gpu_uuid": ""}, 0.5),
    ] == [(it.metric.name, it.labels, it.value) for it in found]
    assert (Kind.GAUGE, "GPU temperature (in C).", True) == (
        found[0].metric.kind,
        found[0].metric.help,
        found[0].metric.literal,
    )
    assert found[0].metric is found[1].metric


def test_metrics_are_kept() -> None:
    """A metric is one object for all pages, and a metric missing on a page is forgotten."""
    passed, gpus = Passthrough(), snapshot(gpu(0))
    first = list(passed.samples(ScrapedPage(*_read(PAGE)), gpus, owner))
    second = list(passed.samples(ScrapedPage(*_read(PAGE)), gpus, owner))
    list(passed.samples(ScrapedPage((), 0), gpus, owner))
    third = list(passed.samples(ScrapedPage(*_read(PAGE)), gpus, owner))

    assert first[0].metric is second[0].metric
    assert second[0].metric is not third[0].metric


def test_given() -> None:
    """Fields of the page are identified by old name, GPU and instance."""
    renamed = PAGE.replace("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS")

    assert {
        ("DCGM_FI_DEV_GPU_TEMP", "GPU-0", ""),
        ("DCGM_FI_DEV_GPU_TEMP", "GPU-1", "2"),
        ("DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES", "GPU-0", ""),
    } == Passthrough().shown(ScrapedPage(*_read(renamed)))


def _read(text: str) -> tuple[tuple[endpoint.ParsedSeries, ...], int]:
    series, refused = read(text)
    return tuple(series), refused
