"""Labels of pods, from an HTTPS server in the API server's and the kubelet's place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from exporter.kubernetes import api as kubernetes
from exporter.kubernetes import pods
from exporter.kubernetes.pods import Pod, label_names, parse, url_of
from exporter.options import SettingsError
from tests.standins.pods import TOKEN, Api, api, listing, pod
from tests.support import PATIENCE

pytestmark = pytest.mark.evidence(feature="labels of pods", on="stand-in")

NAMES = label_names(("app", "example.com/team"))
needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")


def fetch(running: Api, seconds: float = PATIENCE) -> list[Pod]:
    return pods.pods(kubernetes.Api(running.url, running.token_file, running.ca, seconds), NAMES)


@needs_openssl
def test_wanted_labels(tmp_path: Path) -> None:
    """Of each pod the configured labels are returned, under a metric's names, and no others."""
    listed = [pod("a", app="llm", other="x", **{"example.com/team": "vision"}), pod("b", "prod", app=""), pod("c")]
    with api(tmp_path, *listed, pod("d", "prod", app="web")) as running:
        found = fetch(running)
        [(path, headers)] = running.requests
    assert [
        Pod("ml", "a", {"label_app": "llm", "label_example_com_team": "vision"}),
        Pod("prod", "d", {"label_app": "web"}),
    ] == found
    assert ("/pods", f"Bearer {TOKEN}") == (path, headers["Authorization"])
    assert headers["Accept"].startswith("application/json;as=PartialObjectMetadataList")


@needs_openssl
def test_a_token_that_is_replaced(tmp_path: Path) -> None:
    """Kubernetes replaces tokens: the file is read for each request. A wrong token is an error of its own."""
    with api(tmp_path) as running:
        running.token = "second"
        with pytest.raises(OSError, match="HTTP status 401: the token in --kubernetes.token-file does not allow"):
            fetch(running)
        running.token_file.write_text("second")
        assert [] == fetch(running)


@needs_openssl
@pytest.mark.parametrize("content", ["", "a b", "a\nb", "\0"])
def test_no_token(tmp_path: Path, content: str) -> None:
    """A file without a token is not sent, and its content is not shown."""
    with api(tmp_path) as running:
        running.token_file.write_text(content)
        with pytest.raises(ValueError, match=r"/token holds no token$"):
            fetch(running)
        running.token_file.unlink()
        with pytest.raises(OSError, match="there is no .*/token; give --kubernetes.token-file"):
            fetch(running)
        assert [] == running.requests


@needs_openssl
def test_nobody_vouches_for_it(tmp_path: Path) -> None:
    """A server that the authorities do not know gets no request, hence no token."""
    with api(tmp_path, pod("a", app="llm")) as running:
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            pods.pods(kubernetes.Api(running.url, running.token_file, None, PATIENCE), NAMES)
        running.ca.unlink()
        with pytest.raises(OSError, match="there is no .*/ca.crt; give --kubernetes.ca-file"):
            fetch(running)
        assert [] == running.requests


@needs_openssl
def test_led_astray(tmp_path: Path) -> None:
    """A redirect is not followed: the token would go to another server."""
    with api(tmp_path) as running:
        running.status, running.location = 302, running.url + "/other"
        with pytest.raises(OSError, match="HTTP status 302"):
            fetch(running)
        assert ["/pods"] == [path for path, _ in running.requests]


def test_over_http(tmp_path: Path) -> None:
    """The kubelet's read-only port is read without a token."""
    with api(tmp_path, pod("a", app="llm"), tls=False) as running:
        running.token = ""
        assert [Pod("ml", "a", {"label_app": "llm"})] == fetch(running)
        assert "Authorization" not in running.requests[0][1]


def test_a_server_that_hangs(tmp_path: Path) -> None:
    """A request without an answer ends after the time allowed."""
    with api(tmp_path, tls=False) as running:
        running.answer = None
        with pytest.raises(TimeoutError):
            fetch(running, 0.3)


def test_an_answer_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading stops when the limit is passed."""
    monkeypatch.setattr(kubernetes, "MOST_BYTES", 10_000)
    with api(tmp_path, *(pod(f"a{n}", app="x" * 60) for n in range(200)), tls=False) as running:
        running.token = ""
        with pytest.raises(ValueError, match="larger than 10000 bytes"):
            fetch(running)


def item(**metadata: object) -> bytes:
    return json.dumps({"items": [{"metadata": {"name": "a", "namespace": "ml", **metadata}}]}).encode()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html>",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"items": 5}',
        b'{"items": {"a": 5}}',
        b"[" * 100_000,
    ],
)
def test_no_list_of_pods(answer: bytes) -> None:
    """Whatever else comes is refused whole."""
    with pytest.raises(ValueError):
        list(parse(answer, NAMES))


@pytest.mark.parametrize(
    ("invalid", "reason"),
    [
        (b"5", "pod 'None': it is not a pod"),
        (b"{}", "pod 'None': it is not a pod"),
        (item(labels=5), "pod 'a': it is not a pod"),
        (item(labels={"app": 5}), "pod 'a': '5' is no name or label of a pod"),
        (item(labels={"app": "x" * 64}), "pod 'a': 'xxx"),
        (item(labels={"app": "a\nb"}), r"pod 'a': 'a\nb' is no name or label of a pod"),
        (item(labels={"app": "a"}, name=5), "pod '5': '5' is no name or label of a pod"),
        (item(labels={"app": "a"}, namespace="x" * 254), "pod 'a': 'xxx"),
    ],
)
def test_an_invalid_pod(invalid: bytes, reason: str) -> None:
    """Only the invalid pod is omitted, and counted with the reason; the other pods have their labels."""
    bad = json.loads(invalid)
    bad = bad["items"][0] if isinstance(bad, dict) and bad else bad
    found = parse(json.dumps({"items": [pod("b", app="llm"), bad, pod("c", app="web")]}).encode(), NAMES)
    assert ["b", "c"] == [it.name for it in found]
    assert 1 == found.invalid
    assert found.reasons[0].startswith(reason)


def test_an_empty_list() -> None:
    """A node without pods, or a list that is null, is no error; nor is a pod without labels."""
    assert [] == list(parse(listing(), NAMES)) == list(parse(b'{"items": null}', NAMES))
    assert [] == list(parse(item(), NAMES)) == list(parse(item(labels=None), NAMES))


def test_a_whole_cluster() -> None:
    """More pods than a node can have are refused: the URL lists others' too."""
    with pytest.raises(ValueError, match="the list is of more than one node"):
        list(parse(listing(*(pod(f"a{n}") for n in range(pods.MOST_PODS + 1))), NAMES))


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (("",), "no name of a label"),
        (("a b",), "no name of a label"),
        (("/a",), "no name of a label"),
        (("a" * 64,), "no name of a label"),
        (("app.x", "app-x"), "would both be called label_app_x"),
        (tuple(f"l{n}" for n in range(9)), "8 labels at most"),
    ],
)
def test_names_that_cannot_be(wanted: tuple[str, ...], reason: str) -> None:
    """Names that Kubernetes does not have, too many, or two that would be one are refused at the start."""
    with pytest.raises(SettingsError, match=reason):
        label_names(wanted)


def test_url() -> None:
    """In a pod it is the API server, for the pods of this node from its memory; elsewhere it has to be given."""
    variables = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "NODE_NAME": "node-1"}
    query = "fieldSelector=spec.nodeName%3Dnode-1&resourceVersion=0"
    assert f"https://10.0.0.1:443/api/v1/pods?{query}" == url_of("", variables)
    assert url_of("", variables | {"KUBERNETES_SERVICE_HOST": "fd00::1"}).startswith("https://[fd00::1]:443/")
    assert "https://localhost:10250/pods" == url_of("https://localhost:10250/pods", variables)


@pytest.mark.parametrize("given", ["", "localhost:10250", "ftp://a/pods", "https://", "https://u:p@localhost/pods"])
def test_no_url(given: str) -> None:
    """A URL that is none, has a password in it, or is missing is one clear error."""
    with pytest.raises(SettingsError, match="kubernetes.pods-url"):
        url_of(given, {})
