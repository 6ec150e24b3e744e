"""The web configuration file, against promtool's own reading of it where promtool is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.web.config import TlsConfig, WebConfig, WebConfigError, WebConfigFile, parse

HASH = bcrypt.hashpw(b"secret", b"$2b$04$abcdefghijklmnopqrstuu").decode()  # always the same: it is in names of tests
CERTIFICATES = "cert_file: server.crt\n  key_file: server.key"


def accepted(text: str) -> WebConfig:
    return parse(text.encode(), Path("/etc/web.yml"))


def test_every_key_is_read() -> None:
    """Each key of the format is taken over; paths start at the file's folder."""
    config = accepted(
        f"""
        tls_server_config:
          cert_file: server.crt
          key_file: /keys/server.key
          client_ca_file: ca.crt
          client_auth_type: RequireAndVerifyClientCert
          client_allowed_sans: [prometheus.example.org]
          min_version: TLS13
          max_version: TLS13
          cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]
          prefer_server_cipher_suites: false
          curve_preferences: [CurveP256]
        http_server_config:
          http2: false
          headers:
            X-Frame-Options: deny
            Strict-Transport-Security: max-age=31536000
        basic_auth_users:
          alice: {HASH}
        rate_limit:
          interval: 1m30s
          burst: 20
        """
    )

    assert (
        TlsConfig(
            cert_file="/etc/server.crt",
            key_file="/keys/server.key",
            client_ca_file="/etc/ca.crt",
            client_auth_type="RequireAndVerifyClientCert",
            client_allowed_sans=("prometheus.example.org",),
            min_version="TLS13",
            max_version="TLS13",
            cipher_suites=("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",),
            prefer_server_cipher_suites=False,
            curve_preferences=("CurveP256",),
        )
        == config.tls
    )
    assert {"X-Frame-Options": "deny", "Strict-Transport-Security": "max-age=31536000"} == config.http.headers
    assert {"alice": HASH} == config.users
    assert (90.0, 20) == (config.rate_limit.seconds, config.rate_limit.burst)


@pytest.mark.parametrize("text", ["", "{}", "# nothing\n", "tls_server_config: {}\n", "basic_auth_users:\n"])
def test_nothing_configured_is_plain_http(text: str) -> None:
    """An empty file, or empty sections, configure nothing."""
    config = accepted(text)

    assert (None, {}, 0.0) == (config.tls, config.users, config.rate_limit.seconds)


WRONG = [
    ("web: {}", "there is no key 'web'"),
    ("tls_server_config:\n  certfile: x", "there is no key 'certfile'"),
    ("http_server_config:\n  headers:\n    X-Powered-By: me", "header 'X-Powered-By' cannot be set"),
    (
        "http_server_config:\n  headers:\n    X-Frame-Options: allow",
        "X-Frame-Options has to be one of deny, sameorigin",
    ),
    ("http_server_config:\n  http2: maybe", "http2 has to be true or false"),
    ("basic_auth_users:\n  alice: secret", "'alice' is no bcrypt hash"),
    ("basic_auth_users: [alice]", "basic_auth_users has to be a mapping"),
    ("- a\n- b", "the file has to be a mapping"),
    ("a: [", "while parsing|expected"),
    (f"basic_auth_users:\n  a: {HASH}\n  a: {HASH}", "a key is given twice"),
    ("tls_server_config:\n  cert_file: a", "one of key and key_file is needed"),
    ("tls_server_config:\n  key_file: a", "one of cert and cert_file is needed"),
    (f"tls_server_config:\n  {CERTIFICATES}\n  client_auth_type: Always", "client_auth_type has to be one of"),
    (f"tls_server_config:\n  {CERTIFICATES}\n  client_ca_file: ca", "a client CA is given, but no client_auth_type"),
    (f"tls_server_config:\n  {CERTIFICATES}\n  cipher_suites: fast", "cipher_suites has to be a list of texts"),
    (f"tls_server_config:\n  {CERTIFICATES}\n  client_allowed_sans: [a]", "client_allowed_sans needs"),
]
STRICTER = [
    (f"tls_server_config:\n  {CERTIFICATES}\n  cert: PEM", "cert and cert_file are both given"),
    (f"tls_server_config:\n  {CERTIFICATES}\n  client_auth_type: RequireAnyClientCert", "use RequireAndVerify"),
    (f"tls_server_config:\n  {CERTIFICATES}\n  client_auth_type: VerifyClientCertIfGiven", "needs client_ca"),
    ("rate_limit:\n  interval: 1s", "burst has to be 1 or more"),
    ("rate_limit:\n  interval: soon\n  burst: 1", "interval has to be a duration"),
    ('http_server_config:\n  headers:\n    X-XSS-Protection: "1\\r\\nSet-Cookie: a"', "cannot carry"),
    (f"basic_auth_users:\n  alice: {HASH.replace('$04$', '$31$')}", "cost 4 to 15"),
]


@pytest.mark.parametrize(("text", "message"), WRONG + STRICTER)
def test_wrong_file_is_one_clear_error(text: str, message: str) -> None:
    """Each mistake is an error that names the file and the reason."""
    with pytest.raises(WebConfigError, match=message) as caught:
        accepted(text)

    assert str(caught.value).startswith("/etc/web.yml")
    assert "\n" not in str(caught.value).partition(": ")[0]


RIGHT = [
    "",
    f"basic_auth_users:\n  alice: {HASH}\n  bob: {HASH.replace('$2b$', '$2y$')}",
    "http_server_config:\n  http2: true\n  headers:\n    Content-Security-Policy: default-src 'self'",
]


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
@pytest.mark.parametrize(
    ("text", "right"),
    [(text, True) for text in RIGHT] + [(text, False) for text, _ in WRONG if "allowed_sans" not in text],
)
def test_promtool_agrees(text: str, right: bool, tmp_path: Path) -> None:
    """promtool check web-config accepts and refuses what we do."""
    path = tmp_path / "web.yml"
    path.write_text(text)

    done = subprocess.run(["promtool", "check", "web-config", str(path)], capture_output=True, timeout=30)

    assert right == (done.returncode == 0), done
    if right:
        parse(path.read_bytes(), path)


def test_a_file_that_becomes_empty_is_an_error(tmp_path: Path) -> None:
    """Users are still required while the file is rewritten; a file that was empty from the start requires none."""
    path = tmp_path / "web.yml"
    path.write_text("\n")
    file = WebConfigFile(path)
    assert {} == file.read().users
    path.write_text("")
    assert {} == file.read().users
    path.write_text(f"basic_auth_users:\n  a: {HASH}")
    assert {"a": HASH} == file.read().users
    path.write_text("\n")
    with pytest.raises(WebConfigError, match="has become empty; write {}"):
        file.read()
    path.write_text("{}")
    assert {} == file.read().users


def test_file_is_followed_and_its_loss_is_an_error(tmp_path: Path) -> None:
    """A change of the file counts at the next reading; a missing or too large file is an error."""
    path = tmp_path / "web.yml"
    path.write_text("")
    file = WebConfigFile(path)
    assert {} == file.read().users
    path.write_text(f"basic_auth_users:\n  a: {HASH}")
    assert {"a": HASH} == file.read().users
    path.write_bytes(b" " * (2 << 20))
    with pytest.raises(WebConfigError, match="larger than"):
        file.read()
    path.unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WebConfigError, match="cannot be read: it is not a regular file"):
        WebConfigFile(tmp_path / "pipe").read()
    with pytest.raises(WebConfigError, match="cannot be read: No such file"):
        file.read()


@given(st.binary(max_size=200))
def test_any_content_is_a_configuration_or_an_error(content: bytes) -> None:
    """No content raises anything but WebConfigError."""
    try:
        parse(content, Path("web.yml"))
    except WebConfigError as error:
        assert str(error)
