"""Sentences on a provider's functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.bpf.elf import Function
from exporter.verbs.code.providers import ProviderFunctions
from exporter.verbs.doctor import describe, installed

ONE = (Function("f", 1, 1, 1, 0),)


def test_a_provider_that_is_found_whole() -> None:
    """The provider's functions are listed, how many versions there are, and nothing is to be done."""
    found = ProviderFunctions({"post_send": ONE, "post_recv": ONE, "poll_cq": ONE * 2}, {})
    assert (True, "libx.so: found post_send, post_recv, poll_cq (2 versions)", "") == describe("libx.so", found)


def test_a_control_function_elsewhere_leaves_it_whole() -> None:
    """A function that is another library's is reported, but the data path is there."""
    found = ProviderFunctions(
        {"post_send": ONE, "post_recv": ONE, "poll_cq": ONE}, {"req_notify_cq": "It is y of another library."}
    )
    whole, text, advice = describe("libx.so", found)
    assert (True, "") == (whole, advice)
    assert text.endswith("; not req_notify_cq: it is y of another library")


def test_a_provider_that_is_refused() -> None:
    """Each reason is there once with the functions it concerns, and what helps."""
    found = ProviderFunctions({}, {"post_send": "It is unclear.", "poll_cq": "It is unclear."})
    whole, text, advice = describe("libx.so", found)
    assert not whole
    assert "libx.so: no function is certain; not post_send, poll_cq: it is unclear" == text
    assert "learnt" in advice


def test_installed(tmp_path: Path) -> None:
    """Each provider of a file system is looked into once, whatever links lead to it; a broken file is reported."""
    folder = tmp_path / "usr/lib/x86_64-linux-gnu"
    (folder / "libibverbs").mkdir(parents=True)
    (folder / "libmlx5.so.1.24.44.0").write_bytes(b"\x7fELF")
    (folder / "libibverbs/libmlx5-rdmav34.so").symlink_to("../libmlx5.so.1.24.44.0")
    (folder / "libibverbs/libmlx5-rdmav57.so").symlink_to("../libmlx5.so.1.24.44.0")

    [(name, why)] = installed(tmp_path)

    assert "libmlx5.so.1.24.44.0" == name
    assert isinstance(why, str) and why


@pytest.mark.skipif(not list(Path("/usr/lib").glob("*-linux-gnu/libibverbs/lib*.so")), reason="no rdma-core here")
def test_installed_here() -> None:
    """The providers of this machine's own rdma-core are found in, but for those that choose a table when they run."""
    found = dict(installed(Path("/")))

    assert any("mlx5" in name for name in found)
    assert [] == [
        name for name, it in found.items() if isinstance(it, str) or not (describe(name, it)[0] or "hns" in name)
    ]
