"""TLS and client certificates with real handshakes; certificates made by openssl."""

from __future__ import annotations

import base64
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import bcrypt
import pytest

from exporter.model import Kind, Metric, Sample
from exporter.web.config import WebConfigError
from tests.standins.served import Fake, Served
from tests.support import until

pytestmark = [
    pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed"),
    pytest.mark.evidence(feature="TLS and users", on="real software"),
]

VALUE = Metric("test.value", "A value.", Kind.GAUGE)
Make = Callable[..., None]


def collect() -> Iterable[Sample]:
    return [VALUE.sample(1)]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes NAME.crt and NAME.key, signed by the key pair `by` or by itself, with subject alternative names."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=tmp_path, timeout=60)

    def certificate(name: str, by: str = "", names: str = "IP:127.0.0.1,DNS:localhost", ca: bool = False) -> None:
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key")
        subject = ("-subj", f"/CN={name}", "-addext", f"subjectAltName={names}")
        signer = ("-CA", f"{by}.crt", "-CAkey", f"{by}.key") if by else ()
        constraint = ("-addext", f"basicConstraints=critical,CA:{'TRUE' if ca else 'FALSE'}")
        openssl("req", "-x509", "-days", "2", *key, *subject, *constraint, *signer, "-out", f"{name}.crt")

    return certificate


def web_config(folder: Path, tls: str = "", rest: str = "") -> str:
    path = folder / "web.yml"
    path.write_text(f"tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n{tls}{rest}")
    return str(path)


def client(ca: Path, certificate: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(ca))
    if certificate:
        context.load_cert_chain(certificate.with_suffix(".crt"), certificate.with_suffix(".key"))
    return context


def test_metrics_over_tls_with_user(tmp_path: Path, make: Make) -> None:
    """TLS and basic authentication together: the right user over a verified connection is served, plain HTTP is not."""
    make("server")
    users = f"basic_auth_users:\n  alice: {bcrypt.hashpw(b'x', bcrypt.gensalt(4)).decode()}\n"
    with Served([Fake("a", collect)], config_file=web_config(tmp_path, rest=users)) as served:
        served.context = client(tmp_path / "server.crt")
        assert served.server.urls[0].startswith("https://")
        assert 401 == served.get().status
        answer = served.get(Authorization="Basic " + base64.b64encode(b"alice:x").decode())
        assert (200, True) == (answer.status, b"test_value 1\n" in answer.body)
        with socket.create_connection(("127.0.0.1", served.port), 5) as plain:
            plain.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert not plain.recv(100).startswith(b"HTTP/1.1 200")


def test_certificate_is_followed_without_restart(tmp_path: Path, make: Make) -> None:
    """A renewed certificate is shown to the next connection; a broken one leaves the last good one in place."""
    make("server")
    with Served([Fake("a", collect)], config_file=web_config(tmp_path)) as served:
        old = client(tmp_path / "server.crt")
        served.context = old
        assert 200 == served.get().status
        make("server")
        with pytest.raises(ssl.SSLCertVerificationError):
            served.get()
        served.context = client(tmp_path / "server.crt")
        assert 200 == served.get().status
        (tmp_path / "server.key").write_text("no key")
        assert 200 == served.get().status


def test_client_certificate_is_required_and_its_name_checked(
    tmp_path: Path, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a certificate of the CA there is no connection, and the log has the reason; with one of another name
    there is a 403.
    """
    make("server")
    make("ca", ca=True)
    make("good", by="ca", names="DNS:prometheus.example.org")
    make("other", by="ca", names="DNS:other.example.org")
    make("stranger", names="DNS:prometheus.example.org")
    tls = (
        "  client_ca_file: ca.crt\n  client_auth_type: RequireAndVerifyClientCert\n"
        "  client_allowed_sans: [prometheus.example.org]\n"
    )
    with Served([Fake("a", collect)], config_file=web_config(tmp_path, tls)) as served:
        for name, expected in (("good", 200), ("other", 403)):
            served.context = client(tmp_path / "server.crt", tmp_path / name)
            assert expected == served.get().status, name
        for context in (
            client(tmp_path / "server.crt"),
            client(tmp_path / "server.crt", tmp_path / "stranger"),
        ):
            served.context = context
            with pytest.raises((ssl.SSLError, ConnectionError)):
                served.get()
        reasons = ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "CERTIFICATE_VERIFY_FAILED")
        until(lambda: all(f"TLS handshake with 127.0.0.1 failed: {it}" in caplog.messages for it in reasons))


def test_client_certificate_if_given(tmp_path: Path, make: Make) -> None:
    """VerifyClientCertIfGiven serves those without a certificate and refuses a false one."""
    make("server")
    make("ca", ca=True)
    make("stranger")
    tls = "  client_ca_file: ca.crt\n  client_auth_type: VerifyClientCertIfGiven\n"
    with Served([Fake("a", collect)], config_file=web_config(tmp_path, tls)) as served:
        served.context = client(tmp_path / "server.crt")
        assert 200 == served.get().status
        served.context = client(tmp_path / "server.crt", tmp_path / "stranger")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            served.get()


def test_versions_and_suites_are_kept(tmp_path: Path, make: Make) -> None:
    """A client of TLS 1.2 is refused where 1.3 is the least; at 1.2 the configured suite is used."""
    make("server")
    old = client(tmp_path / "server.crt")
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with Served([Fake("a", collect)], config_file=web_config(tmp_path, "  min_version: TLS13\n")) as served:
        served.context = old
        with pytest.raises(ssl.SSLError):
            served.get()
    suite = "  cipher_suites: [TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256]\n  curve_preferences: [CurveP384]\n"
    with (
        Served([Fake("a", collect)], config_file=web_config(tmp_path, suite)) as served,
        socket.create_connection(("127.0.0.1", served.port), 5) as connection,
        old.wrap_socket(connection, server_hostname="127.0.0.1") as secure,
    ):
        assert "ECDHE-ECDSA-CHACHA20-POLY1305" == (secure.cipher() or ("",))[0]


def test_inline_certificates(tmp_path: Path, make: Make) -> None:
    """Certificate and key may stand in the file itself."""
    make("server")
    indent = {name: (tmp_path / f"server.{name}").read_text().replace("\n", "\n    ") for name in ("crt", "key")}
    path = tmp_path / "web.yml"
    path.write_text(f"tls_server_config:\n  cert: |\n    {indent['crt']}\n  key: |\n    {indent['key']}\n")
    with Served([Fake("a", collect)], config_file=str(path)) as served:
        served.context = client(tmp_path / "server.crt")
        assert 200 == served.get().status


@pytest.mark.parametrize(
    ("tls", "message"),
    [
        ("  min_version: TLS10\n", "min_version has to be TLS12 or TLS13"),
        ("  min_version: TLS13\n  max_version: TLS12\n", "min_version is above max_version"),
        ("  cipher_suites: [TLS_FAST]\n", "unknown cipher suite 'TLS_FAST'"),
        ("  curve_preferences: [X25519]\n", "curve_preferences can be one of"),
        ("  client_ca_file: none.crt\n  client_auth_type: VerifyClientCertIfGiven\n", "none.crt cannot be read"),
        ("  client_ca_file: web.yml\n  client_auth_type: VerifyClientCertIfGiven\n", "cannot be used"),
    ],
)
def test_what_cannot_be_done_keeps_the_server_from_starting(tmp_path: Path, make: Make, tls: str, message: str) -> None:
    """TLS settings that cannot be followed are an error at the start."""
    make("server")
    with pytest.raises(WebConfigError, match=message), Served([], config_file=web_config(tmp_path, tls)):
        pass


def test_encrypted_key_is_an_error_not_a_question(tmp_path: Path, make: Make) -> None:
    """A key with a password is refused; there is no prompt on the terminal."""
    make("server")
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", "server.key", "-out", "locked.key", "-passout", "pass:x"],
        check=True,
        cwd=tmp_path,
        capture_output=True,
    )
    (tmp_path / "locked.key").rename(tmp_path / "server.key")

    with pytest.raises(WebConfigError, match="the key without password"), Served([], config_file=web_config(tmp_path)):
        pass


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_promtool_accepts_the_same_file(tmp_path: Path, make: Make) -> None:
    """promtool check web-config accepts the TLS file that we serve with."""
    make("server")
    path = web_config(tmp_path, "  min_version: TLS12\n  client_auth_type: NoClientCert\n")

    subprocess.run(["promtool", "check", "web-config", path], check=True, capture_output=True, timeout=30)
