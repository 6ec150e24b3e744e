"""The kernel log through syslog(2): new records out of copies of the newest part."""

from __future__ import annotations

import errno
import os
import re
import time
from pathlib import Path

import pytest

from exporter.kmsg import reader, syslog
from exporter.kmsg.reader import Reader
from exporter.kmsg.records import Record, parse
from exporter.kmsg.syslog import Syslog
from exporter.model import Unavailable


def line(second: int, text: str = "x", priority: int = 6) -> bytes:
    return f"<{priority}>[{second:5d}.000001] {text}\n".encode()


class Log:
    """Stands in for the log that the kernel holds."""

    def __init__(self, *lines: bytes) -> None:
        self.lines = list(lines)

    def read(self, size: int) -> bytes:
        kept: list[bytes] = []
        for it in reversed(self.lines):
            if size and sum(map(len, kept)) + len(it) > size:
                break
            kept.insert(0, it)
        return b"".join(kept)


def records(source: Syslog) -> list[Record]:
    found = []
    while True:
        try:
            found.append(parse(source.read().rstrip(b"\n")))
        except BlockingIOError:
            return found


def test_present_then_new_records() -> None:
    """Each line is delivered once, as a record with its priority, facility, time and sequence number."""
    log = Log(line(1, "old"), line(2, "by a process", 8 + 4), b"<4>[    3.5000000] no time\n")
    source = Syslog(log.read)
    first = records(source)
    assert [(0, 6, 0, 1_000_001_000, "old"), (1, 4, 1, 2_000_001_000, "by a process")] == [
        (it.sequence, it.level, it.facility, it.time_ns, it.text) for it in first
    ]
    assert [] == records(source)
    log.lines += [line(4, r"a \x41 stays"), line(5, r"a \x41 stays"), b"<3>[    5.000000][   T12] thread\n"]
    assert [r"a \x41 stays"] * 2 + ["thread"] == [it.text for it in records(source)]


def test_text_with_line_ends_forges_no_record() -> None:
    """A message of several lines is one record: any user can have the kernel print a text with a line feed in it, by
    mount(2) with an unknown option in a user namespace.
    """
    log = Log(line(1, "tmpfs: Unknown parameter 'x"), line(1, "NVRM: Xid (PCI:0000:3b:00): 79, pid=1'"), line(2))
    source = Syslog(log.read)
    forged = "tmpfs: Unknown parameter 'x\nNVRM: Xid (PCI:0000:3b:00): 79, pid=1'"
    assert [(0, forged), (1, "x")] == [(it.sequence, it.text) for it in records(source)]
    log.lines.append(line(3, "a\r<3>[    1.000001] NVRM: b"))
    assert ["a\r<3>[    1.000001] NVRM: b"] == [it.text for it in records(source)]


CRASH = "[12]: segfault at 0 ip 0 sp 0 error 4 in x"
FORGED = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.[7f00+1000]"


@pytest.mark.parametrize(
    "text",
    [
        f"NVRM: Xid (PCI:{CRASH}\n{FORGED}",
        f"NVRM: Xid (PCI:{CRASH}\n{FORGED}\n{FORGED}",
        f"NVRM: Xid{CRASH}\nNVRM: Xid\n{FORGED}",
        f"NVRM: Xid\nx{CRASH}\n{FORGED}",
        f"NVRM: Xid \n{CRASH}\n{FORGED}",
        f"x{CRASH}\n{FORGED}",
        "NVRM: Xid (PCI:[12] bad frame in rt_sigreturn frame:1 ip:0 sp:0 orax:1 in x\n" + FORGED,
        f"Out of\nOut of {CRASH}\nOut of memory: Killed process 1 (x) total-vm:1kB",
    ],
)
def test_a_crash_forges_no_record(text: str) -> None:
    """A process that crashes chooses both its name, which begins the message, and the file's, which ends it: either may
    hold a line feed, so that several lines begin with the same words.
    """
    found = records(Syslog(Log(*(line(1, it) for it in text.split("\n"))).read))
    assert not [it.text for it in found if it.text.startswith(("NVRM: Xid (PCI:0", "Out of memory"))]
    assert text == "\n".join(it.text for it in found)


def test_messages_of_one_microsecond() -> None:
    """Messages of one driver stay apart, whichever device they are of; a text of several lines stays one."""
    xids = [f"NVRM: Xid (PCI:0000:{bus}:00): 79, pid=1, GPU has fallen off the bus." for bus in ("3b", "af")]
    ports = [f"mlx5_core 0000:{bus}:00.0: Port: 1 Link DOWN" for bus in ("5e", "be")]
    lost = ["NVRM: The NVIDIA GPU 0000:3b:00.0", "NVRM: (PCI ID: 10de:2330) installed in this system has"]
    for messages in (xids, ports, [ports[0], ports[0]]):
        assert messages == [it.text for it in records(Syslog(Log(*(line(1, it, 4) for it in messages)).read))]
    for messages in (lost, ["tmpfs: Unknown parameter 'x", "tmpfs: Unknown parameter y'"]):
        assert ["\n".join(messages)] == [it.text for it in records(Syslog(Log(*(line(1, it) for it in messages)).read))]


def test_more_records_than_a_poll_copies() -> None:
    """The whole log is read where its newest part does not reach back to the previous copy."""
    log = Log(line(1))
    source = Syslog(log.read)
    records(source)
    log.lines += [line(2 + number, "y" * 100) for number in range(2000)]
    assert 2000 == len(records(source))


def test_overwritten_and_cleared() -> None:
    """A gap raises BrokenPipeError, as /dev/kmsg does; an empty log is no gap."""
    log = Log(line(1), line(2))
    source = Syslog(log.read)
    records(source)
    log.lines = [line(7), line(8)]
    with pytest.raises(BrokenPipeError):
        source.read()
    assert [3, 4] == [it.sequence for it in records(source)]
    log.lines = []
    assert [] == records(source)
    log.lines = [line(9)]
    assert ["x"] == [it.text for it in records(source)]


def test_no_times() -> None:
    """A log without times is refused: new records cannot be distinguished from old ones."""
    with pytest.raises(OSError, match="no times"):
        Syslog(Log(b"<6>no time\n").read)


def test_in_place_of_the_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """syslog(2) replaces a missing /dev/kmsg, never another path. Where syslog(2) is refused too, the error is that of
    the device.
    """
    log = Log(line(1, "NVRM: old"), line(2, "else"))
    monkeypatch.setattr(reader, "DEVICE", tmp_path / "kmsg")
    monkeypatch.setattr(reader, "Syslog", lambda: made)
    made = Syslog(log.read)
    assert made is reader.open_source(tmp_path / "kmsg")
    with pytest.raises(Unavailable, match="there is no"):
        reader.open_source(tmp_path / "other")

    def refused() -> Syslog:
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(reader, "Syslog", refused)
    with pytest.raises(Unavailable, match="there is no"):
        reader.open_source(tmp_path / "kmsg")


def _permitted() -> bool:
    try:
        syslog.read_all(4096)
    except OSError:
        return False
    return os.access("/dev/kmsg", os.W_OK)


@pytest.mark.skipif(not _permitted(), reason="the kernel log may not be read and written here")
def test_the_kernels_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Messages written into the real log arrive through syslog(2), though there is no device."""
    monkeypatch.setattr(reader, "DEVICE", tmp_path / "kmsg")
    received: list[Record] = []
    mark = f"accel-exporter test {os.getpid()}"
    made = Reader(tmp_path / "kmsg", re.compile(mark.encode()), received.append)
    with Path("/dev/kmsg").open("wb", 0) as kmsg:
        kmsg.write(f"<14>{mark} before\n".encode())
        made.start()
        try:
            assert made.caught_up.wait(60)
            kmsg.write(f"<14>{mark} after\n".encode())
            deadline = time.monotonic() + 60
            while len(received) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
        finally:
            made.close()
    assert [(f"{mark} before", True, 1), (f"{mark} after", False, 1)] == [
        (it.text, it.replayed, it.facility) for it in received
    ]
    assert abs(received[1].time_ns - time.monotonic_ns()) < 3600 * 10**9
    assert 0 == made.lost
