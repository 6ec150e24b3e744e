"""The SMART log of NVMe drives: the command, the values of a page, drives that refuse or never answer."""

from __future__ import annotations

import ctypes
import errno
import struct
from pathlib import Path

import pytest

from exporter.faults import metrics, smart
from exporter.faults.smart import Smart
from exporter.model import Sample

PAGE = bytes([0b100, 0x3B, 1, 97, 10, 112]).ljust(160, b"\0") + (2**70 + 3).to_bytes(16, "little") + bytes(336)


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    """/sys and /dev of a machine with two drives; a device of another kind is none."""
    for name in ("nvme0", "nvme1", "nvme-fabrics"):
        (tmp_path / "sys/class/nvme" / name).mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    for name in ("nvme0", "nvme1"):
        (tmp_path / "dev" / name).touch()
    return tmp_path / "sys", tmp_path / "dev"


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Drives that answer with PAGE, and the commands they got."""
    commands: list[tuple[int, ...]] = []

    def answer(descriptor: int, request: int, command: bytearray) -> int:
        assert 0xC0000000 | 72 << 16 | ord("N") << 8 | 0x41 == request
        commands.append(struct.unpack("=BBHIIIQQ10I", command))
        ctypes.memmove(commands[-1][7], PAGE, len(PAGE))
        return 0

    monkeypatch.setattr("fcntl.ioctl", answer)
    return commands


def values(samples: list[Sample], device: str) -> dict[object, object]:
    return {it.metric: it.value for it in samples if it.labels["device"] == device}


def test_values_of_a_page(roots: tuple[Path, Path], commands: list[tuple[int, ...]]) -> None:
    """Both drives get a command for 512 bytes of log page 2 of the whole drive, and the page is shown."""
    drives = Smart(*roots)
    drives.poll()

    assert 2 == len(commands)
    opcode, namespace, length, which = commands[0][0], commands[0][3], commands[0][9], commands[0][10]
    assert (0x02, 0xFFFFFFFF, 512, 127 << 16 | 0x02) == (opcode, namespace, length, which)
    expected = {
        metrics.NVME_WARNING: 4,
        metrics.NVME_SPARE: 0.97,
        metrics.NVME_USED: 1.12,
        metrics.NVME_MEDIA: 2**70 + 3,
    }
    assert expected == values(drives.newest(), "nvme0") == values(drives.newest(), "nvme1")


def test_refused(roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Drives that may not be read have their error shown, and no values."""

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("fcntl.ioctl", refuse)
    drives = Smart(*roots)
    drives.poll()

    with pytest.raises(PermissionError, match="nvme1"):
        drives.newest()


def test_a_status_is_no_page(roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A drive that answers with an error status has no values."""
    monkeypatch.setattr("fcntl.ioctl", lambda *_: 0x2002)
    with pytest.raises(OSError, match="status 0x2002"):
        smart.read_log_page(roots[1] / "nvme0")


def test_no_drives(tmp_path: Path) -> None:
    """A machine without drives, or with drives that were not read yet, has an error that names the reason."""
    drives = Smart(tmp_path, tmp_path)
    with pytest.raises(OSError, match="not queried yet"):
        drives.newest()
    drives.poll()
    with pytest.raises(FileNotFoundError, match="no drive"):
        drives.newest()


def test_what_is_no_drive() -> None:
    """A file that is no drive refuses the command: here the kernel itself."""
    with pytest.raises(OSError, match="Inappropriate ioctl"):
        smart.read_log_page(Path("/dev/null"))


def test_a_drive_that_never_answers(
    roots: tuple[Path, Path], commands: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After five minutes without an answer the values are gone."""
    drives = Smart(*roots)
    drives.poll()
    assert drives.newest()
    monkeypatch.setattr("time.monotonic", lambda: (drives.last.at or 0.0) + smart.MOST_AGE + 1)
    with pytest.raises(TimeoutError, match="does not answer"):
        drives.newest()
