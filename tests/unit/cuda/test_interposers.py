"""Libraries that only pass calls on to the driver."""

from __future__ import annotations

import pytest

from exporter.bpf.elf import Function
from exporter.bpf.library import Library
from exporter.bpf.passing import MOST, Passing
from exporter.cuda.interposers import passes_on

CALLS = ("cuLaunchKernel", "cuMemAlloc_v2")


def library(path: str, *names: str, owner: int = 0, number: int = 1, soname: str = "") -> Library:
    functions = {name: Function(name, 64, 8, 64, 1) for name in names}
    return Library((1, number), path, path, 62, "", functions, owner=owner, soname=soname)


DRIVER = library("/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.10", *CALLS)


@pytest.mark.parametrize("path", ["/usr/local/vgpu/libvgpu.so", "/a/libcuda-control.so", "/bin/job", "/a/libcuda.so.x"])
def test_a_library_beside_the_driver(path: str) -> None:
    """Of a library with another name than the driver's its driver functions pass on, no others."""
    assert set(CALLS) == passes_on(library(path, *CALLS, "cudaMalloc", "ncclSend"), DRIVER)


@pytest.mark.parametrize("path", ["/a/libcuda.so", "/a/libcuda.so.1", "/a/libcuda.so.1.1", DRIVER.path])
def test_the_driver_passes_nothing_on(path: str) -> None:
    """A library that is named after the driver is one, whatever else is mapped."""
    assert not passes_on(library(path, *CALLS), DRIVER)
    assert not passes_on(library(path, *CALLS), library("/usr/local/vgpu/libvgpu.so", *CALLS))


def test_the_name_in_the_file_decides() -> None:
    """A user who maps the driver at another path does not make it an interposer, nor an interposer a driver."""
    moved = library("/tmp/libvgpu.so", *CALLS, soname="libcuda.so.1")
    vgpu = library("/tmp/libcuda.so.1", *CALLS, soname="libvgpu.so")
    assert not passes_on(moved, library("/stubs/libcuda.so", *CALLS, soname="libcuda.so.1"))
    assert not passes_on(moved, vgpu)
    assert set(CALLS) == passes_on(vgpu, moved)


def test_without_the_driver() -> None:
    """Nothing passes on to a library that has none of the driver's functions, or another name."""
    assert not passes_on(library("/a/libvgpu.so", *CALLS), library("/a/libcuda.so.1", "cudaMalloc"))
    assert not passes_on(library("/a/libvgpu.so", *CALLS), library("/a/libtracer.so", *CALLS))
    assert not passes_on(library("/a/libcudart.so.12", "cudaMalloc"), DRIVER)


@pytest.mark.parametrize(("owner", "found"), [(0, True), (1000, True), (1001, False), (-1, False)])
def test_a_file_of_another_user(owner: int, found: bool) -> None:
    """No user ends the probes of another's library with a file that is called libcuda.so.1."""
    theirs = library("/a/libvgpu.so", *CALLS, owner=1000)
    assert found == bool(passes_on(theirs, library("/a/libcuda.so.1", *CALLS, owner=owner)))


def test_what_is_remembered() -> None:
    """A file that passes on does so in all processes; a file with other functions is another; there is a limit."""
    passing = Passing(passes_on)
    vgpu = library("/a/libvgpu.so", *CALLS)
    assert passing.compare(vgpu, DRIVER)
    assert not passing.compare(vgpu, DRIVER)
    assert not passing.compare(DRIVER, vgpu)
    again = library("/other/name.so", *CALLS)
    assert (set(CALLS), DRIVER.path) == (set(passing.of(again).symbols), passing.of(again).to)
    assert not passing.of(library("/a/libvgpu.so", *CALLS, "cuMemFree_v2")).symbols
    for number in range(2, MOST + 2):
        passing.compare(library("/a/libvgpu.so", *CALLS, number=number), DRIVER)
    assert len(passing.found) <= MOST
