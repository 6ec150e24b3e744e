"""Statistics of a network interface, as `ethtool -S` shows them: the SIOCETHTOOL ioctl (linux/ethtool.h).

Interfaces are those of the exporter's own network namespace. Reading needs no privilege, and may query the device.
"""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from array import array

MOST_STATISTICS = 1 << 16
_SIOCETHTOOL = 0x8946
_GET_DRIVER, _GET_STRINGS, _GET_STATISTICS = 0x03, 0x1B, 0x1D
_STRINGS_OF_STATISTICS = 1
_STRING_LENGTH = 32
_REQUEST = struct.Struct("=16sQ16x")  # struct ifreq with a pointer as its data
_WORDS = struct.Struct("=III")
_DRIVER_LENGTH, _BUS_AT, _COUNT_AT = 196, 4 + 3 * 32, 180
"""Length of struct ethtool_drvinfo, and the offsets of bus_info and n_stats in it."""
_ROOM = 4096
"""Room for statistics beyond the announced number: the kernel writes all that exist at the time of the call."""


class Ethtool:
    """A socket for the ioctl. Raises OSError when the socket cannot be made."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    def close(self) -> None:
        self._socket.close()

    def statistics(self, interface: str, bus_id: str) -> dict[str, int]:
        """Return all statistics of an interface by the driver's own names.

        Raises OSError: ENODEV when the interface belongs to another PCI function than that of `bus_id`, as one of the
        same name in this namespace may.
        """
        about = array("B", bytes(_DRIVER_LENGTH))
        self._call(interface, _GET_DRIVER, about)
        bus = about[_BUS_AT : _BUS_AT + 32].tobytes().partition(b"\0")[0].decode("ascii", "replace")
        if bus != bus_id:
            raise OSError(errno.ENODEV, f"the interface of that name here is of {bus or 'no PCI function'}")
        (count,) = struct.unpack_from("=I", about, _COUNT_AT)
        if not 0 < count <= MOST_STATISTICS:
            return {}
        room = count + _ROOM
        names = array("B", bytes(_WORDS.size + room * _STRING_LENGTH))
        _WORDS.pack_into(names, 0, 0, _STRINGS_OF_STATISTICS, count)
        self._call(interface, _GET_STRINGS, names)
        values = array("B", bytes(8 + room * 8))
        struct.pack_into("=II", values, 0, 0, count)
        self._call(interface, _GET_STATISTICS, values)
        named = _WORDS.unpack_from(names)[2]
        (valued,) = struct.unpack_from("=I", values, 4)
        if named != valued or named > room:
            raise OSError(errno.EAGAIN, "the statistics changed while they were read")
        numbers = array("Q", values[8 : 8 + valued * 8].tobytes())
        return dict(zip(map(_text, _strings(names, named)), numbers, strict=True))

    def _call(self, interface: str, command: int, buffer: array[int]) -> None:
        struct.pack_into("=I", buffer, 0, command)
        address, _ = buffer.buffer_info()
        fcntl.ioctl(self._socket, _SIOCETHTOOL, _REQUEST.pack(interface.encode()[:15], address))


def _strings(names: array[int], count: int) -> list[bytes]:
    content = names.tobytes()[_WORDS.size :]
    return [content[at : at + _STRING_LENGTH] for at in range(0, count * _STRING_LENGTH, _STRING_LENGTH)]


def _text(name: bytes) -> str:
    return name.partition(b"\0")[0].decode("ascii", "replace").strip()
