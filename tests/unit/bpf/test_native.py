"""Texts of BPF errors; nothing here needs the right to use BPF."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from exporter.bpf import native, object_path
from exporter.bpf.native import BpfError
from exporter.model import Unavailable


def status(tmp_path: Path, capabilities: int) -> Path:
    (tmp_path / "status").write_text(f"Name:\tx\nCapEff:\t{capabilities:016x}\n")
    return tmp_path / "status"


@pytest.mark.parametrize(
    ("held", "missing"),
    [
        (0, ["CAP_BPF", "CAP_PERFMON"]),
        (1 << 39, ["CAP_PERFMON"]),
        (1 << 39 | 1 << 38, []),
        (1 << 21, []),
    ],
)
def test_missing_capabilities_have_names(tmp_path, held, missing):
    """CAP_SYS_ADMIN stands for both."""
    assert missing == native.missing_capabilities(status(tmp_path, held))


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.EMFILE, "raise the limit of open files"),
        (524, "not supported by this kernel"),
        (errno.ENOENT, "No such file or directory"),
    ],
)
def test_an_error_has_what_to_do(code, advice):
    """Attempt, reason and remedy are one sentence, and the number is kept."""
    error = native.failure(code, "do something")

    assert str(error).startswith("do something: ")
    assert advice in str(error)
    assert code == error.errno


@pytest.mark.parametrize(
    "code", [errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, 524, errno.ENOENT, errno.ESRCH]
)
def test_what_the_node_lacks(code):
    """Permissions, features of the kernel and files that are not there make a collector unavailable."""
    error = native.not_started("the X probes cannot be loaded", native.failure(code, "load x"))

    assert isinstance(error, Unavailable)
    assert error.reason.startswith("the X probes cannot be loaded: load x: ")
    assert "doctor" in error.remedy


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EIO])
def test_a_shortage_is_a_failure(code):
    """A node that is short of memory or descriptors lacks nothing: the collector has failed."""
    error = native.not_started("the X probes cannot be loaded", native.failure(code, "load x"))

    assert isinstance(error, BpfError)
    assert code == error.errno
    assert str(error).startswith(f"the X probes cannot be loaded: load x: {os.strerror(code)}")


def test_permission_errors_name_the_capabilities(monkeypatch):
    """EPERM has one of two causes: capabilities that are missing, or something above them."""
    monkeypatch.setattr(native, "missing_capabilities", lambda: ["CAP_BPF"])

    assert "load x: Operation not permitted: run as root or grant CAP_BPF" == str(native.failure(1, "load x"))

    monkeypatch.setattr(native, "missing_capabilities", list)

    assert "seccomp profile and kernel lockdown" in str(native.failure(1, "load x"))


def test_objects_lie_in_the_package_by_machine(monkeypatch):
    """Each machine has its own objects."""
    monkeypatch.setattr("platform.machine", lambda: "aarch64")

    assert ("objects", "aarch64", "cuda.bpf.o") == object_path("cuda").parts[-3:]


def test_without_libbpf_the_package_is_named(monkeypatch):
    """A node without the library reads what to install."""

    def absent(*_, **__):
        raise OSError("libbpf.so.1: cannot open shared object file")

    monkeypatch.setattr(native.ctypes, "CDLL", absent)
    with pytest.raises(native.BpfError, match="cannot open shared object file.*install libbpf 1.1 or newer"):
        native.NativeLibrary()
