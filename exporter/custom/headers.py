"""The running kernel's headers, which bcc compiles against."""

from __future__ import annotations

import platform
from pathlib import Path

from exporter.model import Unavailable


def find(given: str, modules: Path = Path("/lib/modules")) -> str:
    """Return the headers' folder for bcc's setting; empty where bcc finds the headers without it.

    Raises Unavailable where there are none. bcc would then unpack an archive under a fixed name in /tmp, where any
    user could have put another folder before (fixed in bcc 0.30, which Debian 12 does not have).
    """
    release = platform.release()
    if given:
        if not (Path(given) / "include/linux").is_dir():
            raise Unavailable(
                f"--custom.kernel-headers: {given} holds no kernel headers (include/linux)",
                "name the folder that /lib/modules/RELEASE/build is a link to",
            )
        return given
    if (modules / release / "build").is_dir():
        return ""
    archive = Path("/sys/kernel/kheaders.tar.xz")
    unpack = f"; or unpack {archive} into a folder of root's and name that" if archive.exists() else ""
    raise Unavailable(
        f"there are no headers of Linux {release} to compile custom probes with ({modules / release / 'build'})",
        f"install linux-headers-{release} (Debian, Ubuntu) or kernel-devel-{release} (Fedora, RHEL), or name their "
        f"folder with --custom.kernel-headers{unpack}",
    )
