"""The web configuration file in the format of Prometheus' exporter-toolkit (docs/web-configuration.md there).

`promtool check web-config` reads the same files; a key that this exporter does not support is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from exporter import regular_file

_SIZE_LIMIT = 1 << 20
_BCRYPT = re.compile(r"\$2[aby]\$(0[4-9]|1[0-5])\$[./A-Za-z0-9]{53}")
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h))+")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_HEADERS: Mapping[str, tuple[str, ...]] = {
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
    "Content-Security-Policy": (),
}
_VERIFYING = ("VerifyClientCertIfGiven", "RequireAndVerifyClientCert")
_CLIENT_AUTH = ("NoClientCert", "RequestClientCert", *_VERIFYING)

Section = TypeVar("Section")


class WebConfigError(ValueError):
    """An error in the web configuration; the message has the file, the key and the reason."""


@dataclass(frozen=True)
class TlsConfig:
    """The section tls_server_config, by the names of its keys. The type of a default is the type of the key."""

    cert: str = ""
    key: str = ""
    client_ca: str = ""
    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    client_auth_type: str = ""
    client_allowed_sans: tuple[str, ...] = ()
    min_version: str = "TLS12"
    max_version: str = "TLS13"
    cipher_suites: tuple[str, ...] = ()
    prefer_server_cipher_suites: bool = True
    curve_preferences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Http:
    """The section http_server_config. The server has no HTTP/2; the key is accepted, because it only permits HTTP/2."""

    http2: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RateLimit:
    """The section rate_limit: one request an interval, `burst` at once. An interval of 0 is no limit."""

    interval: str = "0s"
    burst: int = 0

    @property
    def seconds(self) -> float:
        parts = re.findall(r"([\d.]+)([a-zµ]+)", self.interval)
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)


@dataclass(frozen=True)
class WebConfig:
    """A web configuration file. `tls` is None without a TLS section; `users` maps names to bcrypt hashes."""

    tls: TlsConfig | None = None
    http: Http = field(default_factory=Http)
    rate_limit: RateLimit = field(default_factory=RateLimit)
    users: Mapping[str, str] = field(default_factory=dict)


class WebConfigFile:
    """The file, read at every use and parsed again when its content has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._content: bytes | None = None
        self._config = WebConfig()

    def read(self) -> WebConfig:
        """Return the current configuration in the file. Raises WebConfigError.

        A file that has become empty is an error too: it may be in the middle of a rewrite, and until its end there
        would be no TLS and no users.
        """
        content = read(self.path)
        if (self._content or b"").strip() and not content.strip():
            raise WebConfigError(f"{self.path} has become empty; write {{}} for a configuration without TLS and users")
        if content != self._content:
            self._config, self._content = parse(content, self.path), content
        return self._config


def read(path: Path) -> bytes:
    """Return a file's content. Raises WebConfigError when the file cannot be read or is larger than 1 MiB."""
    try:
        with regular_file.opened(path) as file:
            content = file.read(_SIZE_LIMIT + 1)
    except OSError as error:
        raise WebConfigError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > _SIZE_LIMIT:
        raise WebConfigError(f"{path} is larger than {_SIZE_LIMIT} bytes")
    return content


def parse(content: bytes, path: Path) -> WebConfig:
    """Return the configuration in a file's content, with paths relative to the file's folder. Raises WebConfigError."""
    import yaml

    from exporter.web.strict_yaml import StrictLoader

    try:
        data = yaml.load(content, StrictLoader) or {}
    except (yaml.YAMLError, RecursionError, UnicodeError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise WebConfigError(f"{path}{line}: {getattr(error, 'problem', None) or error}") from error
    try:
        sections = _mapping(data, "the file")
        known = ("tls_server_config", "http_server_config", "rate_limit", "basic_auth_users")
        _known(sections, known, "the file")
        tls = _section(TlsConfig, sections.get("tls_server_config"), "tls_server_config")
        return WebConfig(
            tls=_checked_tls(tls, path.parent),
            http=_checked_http(_section(Http, sections.get("http_server_config"), "http_server_config")),
            rate_limit=_checked_rate(_section(RateLimit, sections.get("rate_limit"), "rate_limit")),
            users=_checked_users(_texts(sections.get("basic_auth_users") or {}, "basic_auth_users")),
        )
    except WebConfigError as error:
        raise WebConfigError(f"{path}: {error}") from None


def _mapping(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise WebConfigError(f"{where} has to be a mapping")
    return value


def _texts(value: object, where: str) -> Mapping[str, str]:
    texts: dict[str, str] = {}
    for key, text in _mapping(value, where).items():
        if not isinstance(text, str):
            raise WebConfigError(f"{where}: {key} has to be text (in quotes)")
        texts[key] = text
    return texts


def _known(given: Mapping[str, object], known: tuple[str, ...], where: str) -> None:
    for key in given:
        if key not in known:
            raise WebConfigError(f"{where}: there is no key {key!r}; there are {', '.join(known)}")


def _section(kind: type[Section], value: object, where: str) -> Section:
    given = _mapping(value if value is not None else {}, where)
    defaults = kind()
    _known(given, tuple(item.name for item in fields(kind)), where)  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, content in given.items():
        default = getattr(defaults, key)
        if isinstance(default, tuple) and isinstance(content, list) and all(isinstance(item, str) for item in content):
            values[key] = tuple(content)
        elif isinstance(default, Mapping):
            values[key] = _texts(content, f"{where}: {key}")
        elif type(content) is type(default):
            values[key] = content
        else:
            wanted = {str: "text", bool: "true or false", int: "a whole number"}.get(type(default), "a list of texts")
            raise WebConfigError(f"{where}: {key} has to be {wanted}")
    return kind(**values)


def _checked_tls(tls: TlsConfig, folder: Path) -> TlsConfig | None:
    where = "tls_server_config"
    if tls == TlsConfig():
        return None
    for inline in ("cert", "key", "client_ca"):
        if getattr(tls, inline) and getattr(tls, inline + "_file"):
            raise WebConfigError(f"{where}: {inline} and {inline}_file are both given; keep one")
        if inline != "client_ca" and not getattr(tls, inline) and not getattr(tls, inline + "_file"):
            raise WebConfigError(f"{where}: one of {inline} and {inline}_file is needed")
    if tls.client_auth_type in ("RequireAnyClientCert", "RequireClientCert"):
        raise WebConfigError(
            f"{where}: client_auth_type {tls.client_auth_type} accepts certificates nobody verified, "
            "which this exporter does not do; use RequireAndVerifyClientCert"
        )
    if tls.client_auth_type not in ("", *_CLIENT_AUTH):
        raise WebConfigError(f"{where}: client_auth_type has to be one of {', '.join(_CLIENT_AUTH)}")
    has_ca = bool(tls.client_ca or tls.client_ca_file)
    if has_ca and tls.client_auth_type in ("", "NoClientCert"):
        raise WebConfigError(f"{where}: a client CA is given, but no client_auth_type that uses it")
    if not has_ca and tls.client_auth_type in _VERIFYING:
        raise WebConfigError(f"{where}: client_auth_type {tls.client_auth_type} needs client_ca or client_ca_file")
    if tls.client_allowed_sans and tls.client_auth_type != "RequireAndVerifyClientCert":
        raise WebConfigError(f"{where}: client_allowed_sans needs client_auth_type RequireAndVerifyClientCert")
    paths = {
        name: str(folder / getattr(tls, name))
        for name in ("cert_file", "key_file", "client_ca_file")
        if getattr(tls, name)
    }
    return TlsConfig(**{item.name: paths.get(item.name, getattr(tls, item.name)) for item in fields(tls)})


def _checked_http(http: Http) -> Http:
    for name, value in http.headers.items():
        if name not in _HEADERS:
            raise WebConfigError(f"http_server_config: header {name!r} cannot be set; those are {', '.join(_HEADERS)}")
        if _HEADERS[name] and value not in _HEADERS[name]:
            raise WebConfigError(f"http_server_config: {name} has to be one of {', '.join(_HEADERS[name])}")
        if not value.isprintable():
            raise WebConfigError(f"http_server_config: {name} has characters that a header cannot carry")
    return http


def _checked_rate(limit: RateLimit) -> RateLimit:
    if limit.interval != "0" and not _DURATION.fullmatch(limit.interval):
        raise WebConfigError("rate_limit: interval has to be a duration such as 1s or 500ms")
    if limit.burst < 0 or (limit.seconds and not limit.burst):
        raise WebConfigError("rate_limit: burst has to be 1 or more: with less, no request is ever served")
    return limit


def _checked_users(users: Mapping[str, str]) -> Mapping[str, str]:
    for user, hashed in users.items():
        if not _BCRYPT.fullmatch(hashed):
            raise WebConfigError(
                f"basic_auth_users: the value of {user!r} is no bcrypt hash of cost 4 to 15; make one with htpasswd -nB"
            )
    return users
