"""Places of files of debug information, and requests of a process that is not trusted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exporter.stacks import debug_files
from exporter.stacks.debug_files import Request, WantedFile

BUILD_ID = "0123456789abcdef"
PID = 4242


def places(wanted: WantedFile) -> list[str]:
    return ["/".join(it) for it in debug_files.places(Request(PID, 7, wanted))]


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file with the variables of the process PID."""

    class Proc(type(Path())):  # type: ignore[misc]
        def open(self, mode: str) -> object:
            assert str(self) == f"/proc/{PID}/environ"
            return (tmp_path / "environ").open(mode)

    monkeypatch.setattr(debug_files, "Path", Proc)
    return tmp_path / "environ"


def test_a_debug_file(variables: Path) -> None:
    """By build id where packages install it, then in the caches of the user, whichever variable names them."""
    installed = "usr/lib/debug/.build-id/01/23456789abcdef.debug"
    assert [installed] == places(WantedFile(BUILD_ID))
    variables.write_bytes(b"A=1\0HOME=/home/user\0XDG_CACHE_HOME=relative\0DEBUGINFOD_CACHE_PATH=/var//cache/./d/\0")
    cached = ["var/cache/d", "home/user/.cache/debuginfod_client"]
    assert [installed, *(f"{it}/{BUILD_ID}/debuginfo" for it in cached)] == places(WantedFile(BUILD_ID))
    variables.write_bytes(b"HOME=/\xff\0" + os.urandom(10))
    assert [installed, f"\udcff/.cache/debuginfod_client/{BUILD_ID}/debuginfo"] == places(WantedFile(BUILD_ID))


@pytest.mark.parametrize("home", ["/a/../b", "/" + "a/" * 40, "", "home", "b\0HOME=/b/.."])
def test_a_cache_that_is_nowhere(variables: Path, home: str) -> None:
    variables.write_bytes(b"XDG_CACHE_HOME=" + home.encode())
    assert [f"usr/lib/debug/.build-id/{BUILD_ID[:2]}/{BUILD_ID[2:]}.debug"] == places(WantedFile(BUILD_ID))


@pytest.mark.parametrize(
    ("path", "below"),
    [
        ("/usr/lib/debug/.dwz/x86_64-linux-gnu/libc6.debug", "x86_64-linux-gnu/libc6.debug"),
        ("../../../../.dwz/glibc-2.39-6.el10.x86_64", "glibc-2.39-6.el10.x86_64"),
        ("common.debug", ""),
    ],
)
def test_a_supplementary_file(variables: Path, path: str, below: str) -> None:
    """In the folder of dwz, then by its build id."""
    wanted = WantedFile(BUILD_ID, debug_files.below_dwz(path))
    assert below == wanted.dwz
    assert debug_files.request(debug_files.message(Request(PID, 7, wanted))) == Request(PID, 7, wanted)
    found = places(wanted)
    assert f"usr/lib/debug/.build-id/{BUILD_ID[:2]}/{BUILD_ID[2:]}.debug" == found[-1]
    assert found[:-1] == ([f"usr/lib/debug/.dwz/{below}"] if below else [])


def test_a_supplementary_file_elsewhere(variables: Path) -> None:
    """A path that leads out of the folder is not taken, one with strange characters not even passed on."""
    wanted = WantedFile(BUILD_ID, debug_files.below_dwz("/x/.dwz/../../etc/shadow"))
    assert "../../etc/shadow" == wanted.dwz
    assert places(wanted) == places(WantedFile(BUILD_ID))
    strange = Request(PID, 7, WantedFile(BUILD_ID, "a\nb"))
    assert debug_files.request(debug_files.message(strange)) == Request(PID, 7, WantedFile(BUILD_ID))


@pytest.mark.parametrize(
    "data", [b"", b"1 2", b"1 2 0123456", b"-1 2 " + b"0" * 8, b"1 2 " + b"0" * 65, b"1 2 ../../.."]
)
def test_nonsense(data: bytes) -> None:
    assert debug_files.request(data) is None
