"""TLS for the server, from the web configuration at the time of each connection."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from exporter.web.config import TlsConfig, WebConfigError, WebConfigFile, read

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
# Go's names of the TLS 1.2 suites it calls secure, by OpenSSL's. TLS 1.3 suites are not configurable, as in Go.
_CIPHERS = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_AES_128_GCM_SHA256": "",
    "TLS_AES_256_GCM_SHA384": "",
    "TLS_CHACHA20_POLY1305_SHA256": "",
}
_CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1"}
_VERIFY = {
    "": ssl.CERT_NONE,
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}

log = logging.getLogger(__name__)


class FollowingContext(ssl.SSLContext):
    """A server context that uses the certificates and settings in its file at the time of each connection.

    Unusable material (a key that does not match, a missing file) is logged once, and the last valid settings stay in
    use. Raises WebConfigError when the first settings are invalid.
    """

    _file: WebConfigFile
    _material: tuple[TlsConfig, tuple[bytes, ...]] | None
    _problem: str
    _current: ssl.SSLContext

    @classmethod
    def of(cls, file: WebConfigFile) -> FollowingContext:
        made = cls(ssl.PROTOCOL_TLS_SERVER)
        made._file, made._material, made._problem = file, None, ""
        made._refresh()
        return made

    def wrap_bio(self, *arguments: Any, **words: Any) -> ssl.SSLObject:
        """Return the TLS object of a connection; called by asyncio for each."""
        try:
            self._refresh()
            self._problem = ""
        except WebConfigError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.error("TLS continues with the current certificates: %s", error)
        return self._current.wrap_bio(*arguments, **words)

    def _refresh(self) -> None:
        tls = self._file.read().tls
        if tls is None:
            raise WebConfigError(
                f"{self._file.path}: tls_server_config was removed; restart the exporter to serve plain HTTP"
            )
        material = tls, tuple(_pem(tls, name) for name in ("cert", "key", "client_ca"))
        if material != self._material:
            self._current = context(tls, *material[1])
            self._material = material


def context(tls: TlsConfig, cert: bytes, key: bytes, client_ca: bytes) -> ssl.SSLContext:
    """Return a server context with these settings and PEM texts. Raises WebConfigError."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for limit in ("min_version", "max_version"):
        if getattr(tls, limit) not in _VERSIONS:
            raise WebConfigError(f"tls_server_config: {limit} has to be TLS12 or TLS13, which is all that is offered")
    made.minimum_version, made.maximum_version = _VERSIONS[tls.min_version], _VERSIONS[tls.max_version]
    if made.minimum_version > made.maximum_version:
        raise WebConfigError("tls_server_config: min_version is above max_version")
    if not tls.prefer_server_cipher_suites:
        made.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if unknown := [name for name in tls.cipher_suites if name not in _CIPHERS]:
        raise WebConfigError(f"tls_server_config: unknown cipher suite {unknown[0]!r}")
    if ciphers := ":".join(filter(None, (_CIPHERS[name] for name in tls.cipher_suites))):
        made.set_ciphers(ciphers)
    _set_curve(made, tls.curve_preferences)
    try:
        with _file(cert) as cert_path, _file(key) as key_path:
            # without the argument OpenSSL would prompt for a password on the terminal
            made.load_cert_chain(cert_path, key_path, password="")
        if client_ca:
            made.load_verify_locations(cadata=client_ca.decode("ascii", "replace"))
    except (OSError, ValueError) as error:
        raise WebConfigError(
            f"tls_server_config: certificate and key cannot be used ({error}): both in PEM, the key without password"
        ) from error
    made.verify_mode = _VERIFY[tls.client_auth_type]
    return made


def _set_curve(made: ssl.SSLContext, names: tuple[str, ...]) -> None:
    if not names:
        return
    if len(names) > 1 or names[0] not in _CURVES:
        raise WebConfigError(
            f"tls_server_config: curve_preferences can be one of {', '.join(_CURVES)} here; leave it out for the usual"
        )
    made.set_ecdh_curve(_CURVES[names[0]])


def allowed(certificate: Any, names: tuple[str, ...]) -> bool:
    """Return whether a subject alternative name of a client certificate (from `getpeercert`) is in `names`."""
    return any(value in names for _, value in (certificate or {}).get("subjectAltName", ()))


def _pem(tls: TlsConfig, name: str) -> bytes:
    path = getattr(tls, name + "_file")
    return read(Path(path)) if path else str(getattr(tls, name)).encode()


@contextmanager
def _file(content: bytes) -> Iterator[str]:
    """Yield the path of a file in memory: OpenSSL's Python interface reads certificates and keys from files only."""
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
