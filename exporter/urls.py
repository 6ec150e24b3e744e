"""Checks of URLs and of HTTP headers in settings, before something is requested with them."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

from exporter.options import SettingsError

_VISIBLE = re.compile(r"[!-~]+")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t -~\x80-\xff]*")


def checked(option: str, given: str, example: str) -> str:
    """Return a URL of http or https without a password. Raises SettingsError with the name of the option."""
    parts = split(option, given, example)
    if parts.username is not None or parts.password is not None:
        raise SettingsError(f"{option}: a URL with a password would stand in the list of processes; leave it out")
    return given


def split(option: str, given: str, example: str) -> SplitResult:
    """Return the parts of a URL of http or https, with a host and a valid port if any (RFC 3986, ASCII only).

    Raises SettingsError with the name of the option, and without user and password.
    """
    try:
        parts = urlsplit(given)
        valid = _VISIBLE.fullmatch(given) and parts.scheme in ("http", "https") and _is_host(parts.hostname or "")
        valid = valid and parts.port != 0
    except ValueError:  # a port that is no number, or brackets without an address of IPv6
        valid = False
    if not valid:
        raise SettingsError(f"{option}: {_shown(given)} is not a URL such as {example}")
    return parts


def check_visible(option: str, given: str, example: str) -> None:
    """Raise SettingsError for an address with blanks, control characters or others beyond ASCII."""
    if not _VISIBLE.fullmatch(given):
        raise SettingsError(f"{option}: {_shown(given)} is not an address such as {example}")


def header(option: str, name: str, value: str) -> tuple[str, str]:
    """Return a header, its name in lower case (RFC 9110, 5.1 and 5.5).

    Raises SettingsError, without the value: that may be secret.
    """
    name, value = name.strip(" \t").lower(), value.strip(" \t")
    if not _NAME.fullmatch(name):
        raise SettingsError(f"{option}: each header has to be written as name=value, the name in letters, digits and -")
    if not _VALUE.fullmatch(value):
        raise SettingsError(
            f"{option}: the value of {name[:80]} has a control character or one beyond Latin-1; remove it"
        )
    return name, value


def _is_host(host: str) -> bool:
    if ":" not in host:
        return bool(_HOST.fullmatch(host))
    ipaddress.IPv6Address(host)  # ValueError
    return True


def _shown(url: str) -> str:
    scheme, slashes, rest = url.rpartition("://")
    shown = f"{scheme}{slashes}{rest.rpartition('@')[2]}"
    return repr(shown if len(shown) <= 80 else f"{shown[:77]}...")
