"""Profiles opened by speedscope itself, the release of npm, in headless Chromium."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.views.stack_profiles.formats import written
from tests import made_up_profiles as made_up
from tests import profile_readers as readers
from tests.e2e.browser import PROGRAM, Browser
from tests.support import until

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium; Debian's package chromium is enough"),
    pytest.mark.evidence(feature="profiles of stacks", on="real software"),
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """The address of speedscope's own files, with profiles beside them."""
    release = readers.npm("speedscope") / "dist/release"
    for file in release.iterdir():
        (tmp_path / file.name).symlink_to(file)
    for form in ("speedscope", "collapsed", "pprof"):
        body, _, name = written(made_up.inuse(), "gpu_inuse", form)
        (tmp_path / name).write_bytes(body)
    (tmp_path / "broken.json").write_text("{}")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def opened(site: str, file: str) -> tuple[str, str]:
    """The title of speedscope's page, which has the name of a file once it is read, and the alert if there is one."""
    with Browser() as browser:
        browser.send(
            "Page.addScriptToEvaluateOnNewDocument", source="window.alert = text => { window.alerted = text; }"
        )
        browser.open(f"{site}/index.html#profileURL={site}/{file}")

        def read() -> tuple[str, str]:
            expression = "[document.title, window.alerted || '']"
            answer = browser.send("Runtime.evaluate", expression=expression, returnByValue=True)
            return answer["result"]["value"][0], answer["result"]["value"][1]

        until(lambda: read() != ("speedscope", ""), "speedscope has read the file")
        return read()


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("gpu_inuse.speedscope.json", "gpu_inuse of "),
        ("gpu_inuse.collapsed.txt", "gpu_inuse.collapsed.txt"),
        ("gpu_inuse.pb.gz", "gpu_inuse.pb.gz"),
    ],
)
def test_speedscope_opens_it(site: str, file: str, name: str) -> None:
    """Each of three formats is a profile to it."""
    title, alert = opened(site, file)

    assert (True, "") == (name in title, alert), title


def test_speedscope_refuses_others(site: str) -> None:
    """A file that is none is refused, so that the test above can fail."""
    assert opened(site, "broken.json")[1]
