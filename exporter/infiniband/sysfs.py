"""One reading of an RDMA device in sysfs: all its counters, its links and its properties.

Files: Documentation/ABI/stable/sysfs-class-infiniband of the kernel. A read may query the device and block.
"""

from __future__ import annotations

import errno
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from exporter.infiniband.drivers import HW_GROUP, PORT_GROUP, CounterName
from exporter.small_files import content, entries

GROUPS = (PORT_GROUP, HW_GROUP, "counters_ext")
"""counters_ext: 64-bit twins of counters/, before Linux 4.5 and in vendors' kernels."""
MOST_DEVICES, MOST_PORTS, MOST_FILES = 256, 256, 512
_MOST_TEXT = 128
_MOST_GIDS = 16
"""Entries of a port's GID table that are searched for a network interface; an interface has the first entries."""
_NUMBER = re.compile(r"(0x[0-9a-f]{1,16}|[0-9]{1,20})", re.ASCII)
_STATE = re.compile(r"([0-9]{1,2}): ", re.ASCII)
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec(?: \(([0-9]{1,2})X)?", re.ASCII)
_PORT = re.compile(r"[0-9]{1,3}", re.ASCII)
_DEVICE = re.compile(r"[!-~]{1,63}", re.ASCII)
_INTERFACE = re.compile(r"[^\s/:]{1,15}")
_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


@dataclass(frozen=True)
class Group:
    """A folder of counters. `identity` changes when the device was registered again and counts from 0."""

    counters: dict[str, int]
    identity: int


@dataclass(frozen=True)
class PortLink:
    """The link of a port. A driver may log a line for each reading of a link, so links are not read every time."""

    layer: str = ""
    state: int | None = None
    physical_state: int | None = None
    rate: str = ""

    @property
    def speed(self) -> int | None:
        """Bytes per second."""
        found = _RATE.match(self.rate)
        return round(float(found[1]) * 125_000_000) if found else None

    @property
    def width(self) -> int | None:
        found = _RATE.match(self.rate)
        return int(found[2]) if found and found[2] else None

    @property
    def active(self) -> bool:
        return self.state is not None and self.state > 1


@dataclass(frozen=True)
class SysfsPort:
    number: int
    groups: dict[str, Group]
    link: PortLink = PortLink()
    netdev: str = ""
    """The port's network interface, of the same PCI function and in the namespace that sysfs shows; may be empty."""
    carrier_losses: int | None = None


@dataclass(frozen=True)
class DeviceReading:
    """One reading of a device. `ports` are in order; counters of the device itself are port 0."""

    device: str
    driver: str = ""
    bus_id: str = ""
    firmware: str = ""
    board_id: str = ""
    hca_type: str = ""
    ports: tuple[SysfsPort, ...] = ()
    unreadable: Counter[str] = field(default_factory=Counter)
    """Number of counters that could not be read, by the name of the error."""


def devices(sys: Path) -> dict[str, Path]:
    """Return the RDMA devices by name. Raises OSError where the kernel has no RDMA."""
    entries = sorted((sys / "class/infiniband").iterdir())
    return {entry.name: entry for entry in entries if _DEVICE.fullmatch(entry.name)}


def read(path: Path, links: Mapping[int, PortLink] | None = None) -> DeviceReading:
    """Read a device; files that cannot be read are counted and left out. Links of ports in `links` are not read again.

    Raises OSError when the device does not exist any more.
    """
    unreadable: Counter[str] = Counter()
    numbers = ports(path)
    found = [SysfsPort(0, _groups(path, unreadable))]
    found += [_port(path, number, len(numbers) == 1, links or {}, unreadable) for number in numbers]
    if not path.exists():
        raise FileNotFoundError(errno.ENODEV, "the device was removed", str(path))
    bus_id = (path / "device").resolve().name
    return DeviceReading(
        path.name,
        driver=_driver(path),
        bus_id=bus_id if _BUS_ID.fullmatch(bus_id) else "",
        firmware=text(path / "fw_ver"),
        board_id=text(path / "board_id"),
        hca_type=text(path / "hca_type"),
        ports=tuple(found),
        unreadable=unreadable,
    )


def ports(path: Path) -> list[int]:
    """Return the numbers of a device's ports."""
    return sorted(int(entry.name) for entry in entries(path / "ports")[:MOST_PORTS] if _PORT.fullmatch(entry.name))


def text(path: Path) -> str:
    """Return the text of a short file of sysfs, printable, or an empty string when the file cannot be read."""
    try:
        return _printable(content(path))
    except OSError:
        return ""


def _driver(path: Path) -> str:
    """Return the kernel's driver. Software devices have none: rxe is recognized by its file `parent`."""
    link = path / "device/driver"
    if link.exists():
        return link.resolve().name[:_MOST_TEXT]
    return "rxe" if (path / "parent").exists() else ""


def _port(device: Path, number: int, only: bool, links: Mapping[int, PortLink], unreadable: Counter[str]) -> SysfsPort:
    path = device / "ports" / str(number)
    netdev = _netdev(device, path, number, only)
    losses = _NUMBER.fullmatch(text(device / "device/net" / netdev / "carrier_down_count")) if netdev else None
    return SysfsPort(
        number,
        _groups(path, unreadable),
        links.get(number) or _link(path),
        netdev=netdev,
        carrier_losses=int(losses[1]) if losses else None,
    )


def _link(path: Path) -> PortLink:
    return PortLink(text(path / "link_layer"), _state(path / "state"), _state(path / "phys_state"), text(path / "rate"))


def _netdev(device: Path, port: Path, number: int, only: bool) -> str:
    """Return the interface of a port's GIDs, or else the interface of the PCI function that has the port's number.

    Only interfaces of the same PCI function count: one stacked on them (a bond, a VLAN) does not count pauses.
    """
    own = {entry.name for entry in entries(device / "device/net") if _INTERFACE.fullmatch(entry.name)}
    for index in range(_MOST_GIDS if own else 0):
        name = text(port / "gid_attrs/ndevs" / str(index))
        if name in own:
            return name
    if only and len(own) == 1:
        return own.pop()
    numbered = [name for name in sorted(own) if text(device / "device/net" / name / "dev_port") == str(number - 1)]
    return numbered[0] if len(numbered) == 1 else ""


def _groups(path: Path, unreadable: Counter[str]) -> dict[str, Group]:
    found: dict[str, Group] = {}
    for group in GROUPS:
        folder = path / group
        files = entries(folder)
        if files:
            counters = dict(_counters(files[:MOST_FILES], unreadable))
            found[group] = Group(counters, _identity(folder))
            if len(files) > MOST_FILES:
                unreadable["TOO_MANY"] += len(files) - MOST_FILES
    return found


def _counters(files: list[Path], unreadable: Counter[str]) -> Iterator[tuple[str, int]]:
    """Yield the counters that can be read. A file that holds N/A is no counter."""
    for path in files:
        try:
            held = content(path)
        except OSError as error:
            unreadable[errno.errorcode.get(error.errno or 0, "OTHER")] += 1
            continue
        number = _NUMBER.fullmatch(held.strip())
        if number and (value := int(number[1], 0 if number[1].startswith("0x") else 10)) < 1 << 64:
            yield _printable(path.name), value
        elif "N/A" not in held:
            unreadable["NOT_A_NUMBER"] += 1


def _identity(folder: Path) -> int:
    try:
        return folder.stat().st_ino
    except OSError:
        return 0


def _state(path: Path) -> int | None:
    found = _STATE.match(text(path))
    return int(found[1]) if found else None


def _printable(content: str) -> str:
    return "".join(character for character in content.strip()[:_MOST_TEXT] if character.isprintable())


def names(groups: dict[str, Group]) -> Iterator[tuple[CounterName, int, int]]:
    """Yield all counters of a port: name, value as read, and the identity of the counter's folder."""
    for group, found in groups.items():
        for file, value in found.counters.items():
            yield (group, file), value, found.identity
