"""QEMU's command line for a virtual machine with Debian's kernel, and the initial file system it starts from.

The machine has the root file system of the one it runs on, copy on write, so that the checkout and its virtual
environment are there. Emulated processors are slow: the kernel is given unpacked, without mitigations.
"""

from __future__ import annotations

import lzma
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
_EXECUTABLE, _FILE, _FOLDER = 0o100755, 0o100644, 0o040755
_XZ = b"\xfd7zXZ\0"


@dataclass(frozen=True)
class Kernel:
    """A package of Debian's kernel, unpacked by kernel.sh."""

    folder: Path

    @property
    def modules(self) -> Path:
        [found] = [it for top in ("lib", "usr/lib") for it in (self.folder / top / "modules").glob("*")]
        return found

    @property
    def image(self) -> Path:
        """The kernel as QEMU starts it: unpacking itself would take an emulated processor seconds."""
        unpacked = self.folder / "vmlinux"
        if not unpacked.exists():
            [packed] = [*(self.folder / "boot").glob("vmlinuz-*"), *self.modules.glob("vmlinuz")]
            data = packed.read_bytes()
            at = data.find(_XZ)
            if at < 0:
                return packed
            part = unpacked.with_suffix(".part")
            part.write_bytes(lzma.LZMADecompressor().decompress(data[at:]))
            part.rename(unpacked)
        return unpacked


def command(
    kernel: Kernel, folder: Path, name: str, address: str, devices: list[str], processors: int = 1
) -> list[str | Path]:
    """Starts the machine. `folder` is for commands and their results; the initial file system is written there too."""
    settings = {
        "name": name,
        "address": address,
        "folder_of_commands": str(folder),
        "modules": str(kernel.modules),
        "guest": str(_HERE / "guest.sh"),
    }
    initial = folder / "initramfs"
    initial.write_bytes(b"".join(_initial(kernel, settings)))
    return [
        *("qemu-system-x86_64", "-name", name, "-nodefaults", "-display", "none", "-no-reboot"),
        *("-machine", "q35", "-accel", "tcg", "-cpu", "max", "-smp", str(processors), "-m", "2500M"),
        *("-kernel", kernel.image, "-initrd", initial, "-serial", f"file:{folder}/console"),
        *("-append", "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off"),
        *_shared("root", Path("/"), ",readonly=on"),
        *_shared("commands", folder),
        *devices,
    ]


def _shared(tag: str, folder: Path, more: str = "") -> tuple[str, ...]:
    source = f"local,id={tag},path={folder},security_model=none,multidevs=remap{more}"
    return "-fsdev", source, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"


def _initial(kernel: Kernel, settings: Mapping[str, str]) -> Iterator[bytes]:
    """An archive in cpio's format newc: busybox, the modules that mounting the root takes, init.sh and its settings."""
    busybox = shutil.which("busybox")
    assert busybox
    for name in ("bin", "dev", "modules"):
        yield _entry(name, _FOLDER)
    yield _entry("bin/busybox", _EXECUTABLE, Path(busybox).read_bytes())
    yield _entry("init", _EXECUTABLE, (_HERE / "init.sh").read_bytes())
    yield _entry("settings", _FILE, "".join(f"{it}={shlex.quote(to)}\n" for it, to in settings.items()).encode())
    modules = [*_modules(kernel)]
    yield _entry("modules/order", _FILE, "".join(f"{path.name}\n" for path in modules).encode())
    for path in modules:
        data = path.read_bytes()
        yield _entry(f"modules/{path.name}", _FILE, lzma.decompress(data) if path.suffix == ".xz" else data)
    yield _entry("TRAILER!!!", 0)


def _modules(kernel: Kernel) -> list[Path]:
    """Files, each after those it needs; what is built in is in none."""
    needed: dict[str, list[str]] = {}
    for line in (kernel.modules / "modules.dep").read_text().splitlines():
        path, _, before = line.partition(":")
        needed[re.sub(r"\.ko.*", "", Path(path).name).replace("-", "_")] = [*reversed(before.split()), path]
    paths = [path for name in _MODULES for path in needed.get(name, ())]
    return [kernel.modules / path for path in dict.fromkeys(paths)]


def _entry(name: str, mode: int, data: bytes = b"") -> bytes:
    path = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
    head = b"070701" + b"".join(b"%08X" % it for it in fields) + path
    return _padded(head) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
