"""Libraries that only pass calls on to the driver."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from exporter.bpf.elf import Function
from exporter.bpf.library import Library
from exporter.bpf.native import BpfError
from exporter.bpf.passing import MOST, Passing, PassingProcesses
from exporter.bpf.probed_library import ProbedLibrary
from exporter.bpf.process_user import NOBODY
from exporter.bpf.safety import Protection
from exporter.cuda.interposers import passes_on

if TYPE_CHECKING:
    from exporter.bpf.hooks import Hooked

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


def beside(pid: int, library: Library, users: Iterable[int] = ()) -> ProbedLibrary:
    hooked = cast("Hooked", SimpleNamespace(library=library, numbers=[7]))
    return ProbedLibrary(hooked, (), users=dict.fromkeys([pid, *users], Protection(False, False)))


class Kernel(dict[int, int]):
    """A map of an object."""

    def set(self, key: int, value: int) -> None:
        self[key] = value

    def delete(self, key: int) -> bool:
        return self.pop(key, None) is not None


class Scene:
    """Knowledge of libraries that pass calls on; the user of a process is its pid without the last digit."""

    def __init__(self) -> None:
        self.passing, self.processes, self.lost = Kernel(), Kernel(), list[int]()
        kept = PassingProcesses(self.passing, self.processes)
        self.known = Passing(passes_on, lambda pid: pid // 10 if pid else NOBODY, kept, self.lost.extend)


VGPU = library("/a/libvgpu.so", *CALLS)


def test_what_is_remembered() -> None:
    """A file passes on in all processes of a user; one with other functions is another; there is a limit."""
    passing = Scene().known
    assert passing.compare(11, VGPU, DRIVER)
    assert not passing.compare(12, VGPU, DRIVER)
    assert not passing.compare(11, DRIVER, VGPU)
    again = library("/other/name.so", *CALLS)
    assert (set(CALLS), DRIVER.path) == (set(passing.of(again).symbols), passing.of(again).to)
    assert not passing.of(library("/a/libvgpu.so", *CALLS, "cuMemFree_v2")).symbols
    for number in range(2, MOST + 2):
        passing.compare(11, library("/a/libvgpu.so", *CALLS, number=number), DRIVER)
    assert len(passing.found) <= MOST
    for pid in range(10, 10 * MOST + 30, 10):
        passing.compare(pid, VGPU, DRIVER)
    assert len(passing.of(VGPU).users) <= MOST


def test_what_a_process_shows_holds_for_its_user() -> None:
    """Another user's process shows it for itself; one that has ended, and so has no known user, shows nothing."""
    passing = Scene().known
    assert not passing.compare(0, VGPU, DRIVER)
    assert passing.compare(11, VGPU, DRIVER)
    assert (True, False, False) == tuple(passing.holds(pid, VGPU) for pid in (12, 21, 0))
    assert passing.compare(21, VGPU, DRIVER)
    assert passing.holds(22, VGPU)


def test_what_is_left_out() -> None:
    """Probes go when new evidence covers all users, and are back for one that is alone; only its calls count then."""
    scene = Scene()
    vgpu, driver = beside(11, VGPU, [12]), beside(11, DRIVER)
    assert set(CALLS) == scene.known.left_out(vgpu, 11, [vgpu, driver])
    assert ({11, 12}, [12]) == (vgpu.passing, scene.lost)  # 12 has not mapped the driver
    vgpu.left_out = frozenset(CALLS)
    vgpu.users[21] = Protection(False, False)
    assert not scene.known.left_out(vgpu, 21, [vgpu, driver])
    vgpu.left_out = frozenset()
    scene.known.keep(7, vgpu.passing)
    assert ({7 << 32 | 11, 7 << 32 | 12}, {7: 2}) == (scene.passing.keys(), scene.processes)
    vgpu.users[13] = driver.users[13] = Protection(False, False)
    assert not scene.known.left_out(vgpu, 13, [vgpu, driver])
    scene.known.leave(vgpu, [11, 12])
    assert ({7 << 32 | 13}, {7: 1}, [12]) == (scene.passing.keys(), scene.processes, scene.lost)


def test_a_process_of_which_the_driver_is_announced_last() -> None:
    """A process keeps its usage if the library is announced before the driver, which it has mapped too."""
    scene = Scene()
    vgpu, driver = beside(11, VGPU, [21]), beside(11, DRIVER)
    assert not scene.known.left_out(vgpu, 11, [vgpu, driver])  # 21 is alone
    vgpu.users[12] = Protection(False, False)
    assert not scene.known.left_out(vgpu, 12, [vgpu, driver])
    driver.users[12] = Protection(False, False)
    assert ({11, 12}, []) == (vgpu.passing, scene.lost)


def test_a_process_that_has_ended() -> None:
    """A process of no known user is nobody who uses the library alone."""
    scene = Scene()
    vgpu, driver = beside(11, VGPU), beside(11, DRIVER)
    vgpu.left_out = scene.known.left_out(vgpu, 11, [vgpu, driver])
    vgpu.users[0] = Protection(False, False)
    assert set(CALLS) == vgpu.left_out == scene.known.left_out(vgpu, 0, [vgpu, driver])
    vgpu.users[12] = driver.users[12] = Protection(False, False)
    assert set(CALLS) == scene.known.left_out(vgpu, 12, [vgpu, driver])


def test_a_user_who_showed_it_before() -> None:
    """A library that is found in a process of such a user has no probes at first."""
    scene = Scene()
    assert scene.known.compare(11, VGPU, DRIVER)
    for pid, found in ((12, set(CALLS)), (21, set[str]())):
        assert found == scene.known.at_first(replace(VGPU, found_in=pid), [])
    assert set(CALLS) == scene.known.at_first(replace(VGPU, found_in=21), [beside(21, DRIVER)])


def test_a_kernel_without_room() -> None:
    """Calls of processes without a row count twice: no process goes uncounted."""
    scene = Scene()

    def fail(key: int, value: int) -> None:
        raise BpfError(errno.E2BIG, "full")

    scene.passing.set = fail  # type: ignore[method-assign]
    scene.known.keep(7, {11})
    assert ({}, {7: 0}) == (scene.passing, scene.processes)
