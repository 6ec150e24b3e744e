"""QEMU's command line for a virtual machine with Debian's kernel, and the initial file system it starts from.

The machine has the root file system of the one it runs on, copy on write, so that the checkout and its virtual
environment are there; or, with processors of another architecture, a root of its own with the checkout at the same
path. Emulated processors are slow: the kernel is given unpacked, without mitigations.
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
_REPOSITORY = _HERE.parents[1]
_HOST = Path("/")
_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
_EXECUTABLE, _FILE, _FOLDER = 0o100755, 0o100644, 0o040755
_XZ = b"\xfd7zXZ\0"
_ARM64_IMAGE, _ARM64_IMAGE_AT = b"ARM\x64", 56


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
            if at < 0 or data.startswith(_ARM64_IMAGE, _ARM64_IMAGE_AT):
                return packed
            part = unpacked.with_suffix(".part")
            part.write_bytes(lzma.LZMADecompressor().decompress(data[at:]))
            part.rename(unpacked)
        return unpacked


@dataclass(frozen=True)
class Platform:
    """The machine that QEMU emulates."""

    emulator: str
    options: tuple[str, ...]
    console: str
    parameters: str = ""
    """Of the kernel, besides those of every machine."""


# All processors have the clock of this machine. On a busy one the kernel would take it for unstable, and change its own
# code for that while other processors run it, which crashed one of 16 in QEMU 7.2.
X86_64 = Platform("qemu-system-x86_64", ("-machine", "q35", "-cpu", "max"), "ttyS0", "tsc=reliable")
# Pointers are authenticated by QEMU's own function: emulating that of Arm's manual takes most of the time.
ARM64 = Platform("qemu-system-aarch64", ("-machine", "virt", "-cpu", "max,pauth-impdef=on"), "ttyAMA0")


@dataclass(frozen=True)
class System:
    """Software of a machine: a kernel, and a root file system for the same processors."""

    kernel: Kernel
    root: Path = _HOST
    platform: Platform = X86_64

    @property
    def busybox(self) -> Path:
        """One that is linked statically. Raises FileNotFoundError."""
        found = shutil.which("busybox") if self.root == _HOST else self.root / "bin/busybox"
        if not found:
            raise FileNotFoundError("there is no busybox")
        return Path(found)


def command(
    system: System, folder: Path, name: str, address: str, devices: list[str], processors: int = 1
) -> list[str | Path]:
    """Starts the machine. `folder` is for commands and their results; the initial file system is written there too."""
    kernel, platform = system.kernel, system.platform
    foreign = system.root != _HOST
    settings = {
        "name": name,
        "address": address,
        "folder_of_commands": str(folder),
        "modules": str(kernel.modules),
        "guest": str(_HERE / "guest.sh"),
        "repository": str(_REPOSITORY) if foreign else "",
    }
    initial = folder / "initramfs"
    initial.write_bytes(b"".join(_initial(system, settings)))
    return [
        *(platform.emulator, *platform.options, "-name", name, "-nodefaults", "-display", "none", "-no-reboot"),
        *("-accel", "tcg", "-smp", str(processors), "-m", "2500M"),
        *("-kernel", kernel.image, "-initrd", initial, "-serial", f"file:{folder}/console"),
        *("-append", f"console={platform.console} panic=-1 quiet loglevel=4 mitigations=off {platform.parameters}"),
        *_shared("root", system.root, ",readonly=on"),
        *(_shared("repository", _REPOSITORY, ",readonly=on") if foreign else ()),
        *_shared("commands", folder),
        *devices,
    ]


def _shared(tag: str, folder: Path, more: str = "") -> tuple[str, ...]:
    source = f"local,id={tag},path={folder},security_model=none,multidevs=remap{more}"
    return "-fsdev", source, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"


def _initial(system: System, settings: Mapping[str, str]) -> Iterator[bytes]:
    """An archive in cpio's format newc: busybox, the modules that mounting the root takes, init.sh and its settings."""
    for name in ("bin", "dev", "modules"):
        yield _entry(name, _FOLDER)
    yield _entry("bin/busybox", _EXECUTABLE, system.busybox.read_bytes())
    yield _entry("init", _EXECUTABLE, (_HERE / "init.sh").read_bytes())
    yield _entry("settings", _FILE, "".join(f"{it}={shlex.quote(to)}\n" for it, to in settings.items()).encode())
    modules = _modules(system.kernel)
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
