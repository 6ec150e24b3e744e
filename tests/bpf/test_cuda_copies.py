"""Copies: how many bytes, which way, and what the host's side was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bpf.cuda_node import Job, Script, build_standins, observe, started
from tests.bpf.observed import Observed
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="CUDA copies", on="stand-in")]

COPIED = "gpu_cuda_memory_copies_bytes_total"
UNREAD = "gpu_cuda_memory_copies_unread_total"

MEMORY = """
device = new(lib.cuMemAlloc_v2, size(1 << 20)).value
pinned = new(lib.cuMemHostAlloc, size(1 << 20), 0).value
pool = new(lib.cuMemAllocAsync, size(1 << 20), None).value
managed = new(lib.cuMemAllocManaged, size(1 << 20), 1).value
buffer = ctypes.create_string_buffer(1 << 16)
plain = ctypes.addressof(buffer)
lib.cuMemHostRegister_v2(c_uint64(plain + 4097), size(9999), 0)
registered = plain + 4097
def call(name, *arguments):
    result = getattr(lib, name)(*(c_uint64(a) for a in arguments))
    assert result == 0, result
"""


@pytest.fixture(scope="module")
def observed() -> Iterator[Observed]:
    build_standins()
    with observe() as observed, started(observed, Job("--gate")):
        yield observed


@pytest.fixture
def script(observed: Observed) -> Iterator[Script]:
    """A process that is seen from its first call on."""
    with Script() as script:
        until(lambda: observed.kernel("covered", script.pid), "seen from the first call on")
        script.run(MEMORY)
        yield script


@pytest.fixture
def late(observed: Observed, script: Script) -> Script:
    """A process that may have done things unseen."""
    observed.collector.object.maps["covered"].delete(script.pid)
    return script


def copied(observed: Observed, pid: int) -> dict[tuple[str, str], int]:
    """Bytes by direction and host memory."""
    found = {tuple(dict(labels).items()): value for labels, value in observed.values(COPIED, pid).items()}
    return {(dict(k)["direction"], dict(k).get("host_memory", "")): value for k, value in found.items()}


@pytest.mark.parametrize(
    ("call", "arguments", "expected"),
    [
        ("cuMemcpyHtoD_v2", "device, pinned + 999, 77", ("h2d", "pinned")),
        ("cuMemcpyHtoD_v2_ptds", "device, pinned, 77", ("h2d", "pinned")),
        ("cuMemcpyHtoDAsync_v2", "device, pinned + (1 << 20) - 77, 77, 0", ("h2d", "pinned")),
        ("cuMemcpyHtoDAsync_v2_ptsz", "device, plain, 77, 0", ("h2d", "pageable")),
        ("cuMemcpyHtoD_v2", "device, registered, 77", ("h2d", "pinned")),
        ("cuMemcpyHtoD_v2", "device, registered - 1, 77", ("h2d", "pageable")),
        ("cuMemcpyHtoD_v2", "device, registered + 9998, 77", ("h2d", "pinned")),
        ("cuMemcpyHtoD_v2", "device, registered + 9999, 77", ("h2d", "pageable")),
        ("cuMemcpyHtoD_v2", "device, managed + 5, 77", ("h2d", "managed")),
        ("cuMemcpyHtoD_v2", "device, device + 5, 77", ("h2d", "unknown")),
        ("cuMemcpyDtoH_v2", "pinned, device, 77", ("d2h", "pinned")),
        ("cuMemcpyDtoHAsync_v2", "plain, device, 77, 0", ("d2h", "pageable")),
        ("cuMemcpyDtoD_v2", "device, device + 4096, 77", ("d2d", "")),
        ("cuMemcpyPeerAsync", "device, 0, device, 0, 77, 0", ("d2d", "")),
        ("cuMemcpyHtoA_v2", "1, 0, pinned, 77", ("h2d", "pinned")),
        ("cuMemcpyAtoH_v2", "plain, 1, 0, 77", ("d2h", "pageable")),
        ("cuMemcpyAtoA_v2", "1, 0, 2, 0, 77", ("d2d", "")),
        ("cuMemcpy", "device, pinned, 77", ("h2d", "pinned")),
        ("cuMemcpyAsync_ptsz", "pinned, device + 1000, 77, 0", ("d2h", "pinned")),
        ("cuMemcpy", "device, device, 77", ("d2d", "")),
        ("cuMemcpy", "pinned, registered, 77", ("h2h", "pinned")),
        ("cuMemcpy", "device, managed, 77", ("unknown", "managed")),
        ("cuMemcpy", "device, pool, 77", ("unknown", "unknown")),  # where pools' memory lies is not kept
        ("cuMemcpy", "device, plain, 77", ("unknown", "unknown")),  # may be device memory of another process
    ],
)
def test_linear_copies(
    observed: Observed, script: Script, call: str, arguments: str, expected: tuple[str, str]
) -> None:
    """Direction comes from the function's name or else from both addresses, host memory from where it was allocated."""
    script.run(f"call({call!r}, {arguments})")
    assert {expected: 77} == copied(observed, script.pid)


def test_whether_all_of_a_process_was_seen(observed: Observed, script: Script) -> None:
    """The value is 1 of a process seen from its first call, and 0 of one of which calls may have been missed."""
    seen = "gpu_cuda_seen_from_start"
    assert 1 == observed.value(seen, script.pid)

    observed.collector.object.maps["covered"].delete(script.pid)

    assert 0 == observed.value(seen, script.pid)


def test_pageable_is_known_only_if_all_was_seen(observed: Observed, late: Script) -> None:
    """In a process that may have pinned memory unseen, memory that was not seen pinned is unknown."""
    late.run("call('cuMemcpyHtoD_v2', device, plain, 77); call('cuMemcpyHtoD_v2', device, pinned, 7)")
    assert {("h2d", "unknown"): 77, ("h2d", "pinned"): 7} == copied(observed, late.pid)


def test_pinned_memory_is_not_pageable_while_its_process_is_put_aside(
    monkeypatch: pytest.MonkeyPatch, observed: Observed, script: Script
) -> None:
    """A program that pinned memory before the exec that started it was noticed copies while ranges are dropped."""

    program = observed.collector.object.programs["forget"]
    run = program.run

    def then_copy() -> None:
        monkeypatch.setattr(program, "run", run)  # the exec itself may be noticed only now
        run()
        script.run("call('cuMemcpyHtoD_v2', device, pinned, 77)")

    monkeypatch.setattr(program, "run", then_copy)
    observed.collector.processes_replaced([script.pid])
    assert {("h2d", "unknown"): 77} == copied(observed, script.pid)


def test_pinned_memory_without_a_row_is_not_pageable() -> None:
    """After the table of live allocations was full, host memory in no known range is of an unknown kind."""
    with observe(live_allocations=10) as observed, started(observed, Job("--gate")), Script() as script:
        until(lambda: observed.kernel("covered", script.pid), "seen from the first call on")
        script.run(MEMORY)  # five rows
        script.run("call('cuMemcpyHtoD_v2', device, plain, 7)")
        script.run("late = new(lib.cuMemHostAlloc, size(1 << 20), 0).value")
        script.run("call('cuMemcpyHtoD_v2', device, late, 77); call('cuMemcpyHtoD_v2', device, pinned, 777)")
        assert {("h2d", "pageable"): 7, ("h2d", "unknown"): 77, ("h2d", "pinned"): 777} == copied(observed, script.pid)
        assert 1 == observed.value("gpu_cuda_seen_from_start", script.pid)


@pytest.mark.parametrize(
    ("pool", "host"),
    [
        ("prop[8] = 1; new(lib.cuMemPoolCreate, prop)", "pageable"),
        ("prop[8] = 3; new(lib.cuMemPoolCreate, prop)", "unknown"),
        ("prop[0] = 1; new(lib.cuMemGetMemPool, prop, 1)", "pageable"),
        ("prop[0] = 2; new(lib.cuMemGetMemPool, prop, 1)", "unknown"),
    ],
)
def test_pools_of_host_memory(observed: Observed, script: Script, pool: str, host: str) -> None:
    """In a process that has a pool of host memory, memory in no range may be pinned: it is of an unknown kind."""
    script.run(f"prop = ctypes.create_string_buffer(88); {pool}; call('cuMemcpyHtoD_v2', device, plain, 77)")
    assert {("h2d", host): 77} == copied(observed, script.pid)


def test_freed_memory_is_not_pinned_any_more(observed: Observed, script: Script) -> None:
    """After it was freed or unregistered, an address is pageable."""
    script.run("call('cuMemFreeHost', pinned); call('cuMemHostUnregister', registered)")
    script.run("call('cuMemcpyHtoD_v2', device, pinned, 3); call('cuMemcpyHtoD_v2', device, registered, 4)")
    assert {("h2d", "pageable"): 7} == copied(observed, script.pid)


def test_a_failed_copy_moves_nothing(observed: Observed, script: Script) -> None:
    """A copy that fails counts no bytes, but its error."""
    script.run("lib.standin_fail(b'cuMemcpyDtoD_v2', 1); lib.cuMemcpyDtoD_v2(c_uint64(1), c_uint64(2), size(3))")
    assert {} == copied(observed, script.pid)
    assert 1 == observed.value("gpu_cuda_api_errors_total", script.pid, api="cuMemcpyDtoD_v2", code="1")


COPY_2D = """
class Side(ctypes.Structure):
    _fields_ = [("x", c_size_t), ("y", c_size_t), ("type", ctypes.c_int), ("host", c_uint64),
                ("device", c_uint64), ("array", c_uint64), ("pitch", c_size_t)]
class Copy(ctypes.Structure):
    _fields_ = [("source", Side), ("target", Side), ("width", c_size_t), ("height", c_size_t)]
"""
COPY_3D = """
class Side(ctypes.Structure):
    _fields_ = [("x", c_size_t), ("y", c_size_t), ("z", c_size_t), ("level", c_size_t), ("type", ctypes.c_int),
                ("host", c_uint64), ("device", c_uint64), ("array", c_uint64), ("context", c_uint64),
                ("pitch", c_size_t), ("height", c_size_t)]
class Copy(ctypes.Structure):
    _fields_ = [("source", Side), ("target", Side), ("width", c_size_t), ("height", c_size_t), ("depth", c_size_t)]
"""


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("type=1, host=pinned", "type=2, device=device", ("h2d", "pinned")),
        ("type=2, device=device", "type=1, host=plain", ("d2h", "pageable")),
        ("type=3, array=1", "type=2, device=device", ("d2d", "")),
        ("type=4, device=pinned", "type=4, device=device", ("h2d", "pinned")),
        ("type=4, device=managed", "type=4, device=device", ("unknown", "managed")),
        ("type=1, host=managed", "type=2, device=device", ("h2d", "managed")),
        ("type=2, device=device", "type=1, host=managed", ("d2h", "managed")),
        ("type=1, host=managed", "type=1, host=plain", ("h2h", "pageable")),
        ("type=1, host=managed", "type=4, device=device", ("h2d", "managed")),
        ("type=1, host=device + 5", "type=2, device=device", ("h2d", "unknown")),
        ("type=1, host=device + 5", "type=1, host=pinned", ("h2h", "unknown")),
    ],
)
@pytest.mark.parametrize(
    ("call", "structure", "shape", "total"),
    [
        ("cuMemcpy2D_v2", COPY_2D, "width=100, height=7", 700),
        ("cuMemcpy2DAsync_v2_ptsz", COPY_2D, "width=100, height=7", 700),
        ("cuMemcpy3D_v2", COPY_3D, "width=100, height=7, depth=3", 2100),
    ],
)
def test_copies_by_description(
    observed: Observed,
    script: Script,
    call: str,
    structure: str,
    shape: str,
    total: int,
    source: str,
    target: str,
    expected: tuple[str, str],
) -> None:
    """Copies of two and three dimensions count width x height x depth, by the memory types of their description."""
    script.run(f"{structure}\nlib.{call}(byref(Copy(source=Side({source}), target=Side({target}), {shape})), None)")
    assert {expected: total} == copied(observed, script.pid)


def test_an_unreadable_description(observed: Observed, script: Script) -> None:
    """A description at a bad address is counted as unread and moves nothing."""
    before = observed.value(UNREAD)
    script.run("lib.cuMemcpy2D_v2(c_void_p(8))")
    assert {} == copied(observed, script.pid)
    assert before + 1 == observed.value(UNREAD)


def test_batches(observed: Observed, script: Script) -> None:
    """Each copy of a batch counts for itself; those beyond 128 are counted as unread."""
    before = observed.value(UNREAD)
    script.run(
        "def batch(n, targets, sources, bytes):\n"
        "    pack = lambda it: (c_uint64 * n)(*it)\n"
        "    lib.cuMemcpyBatchAsync_v2(pack(targets), pack(sources), pack(bytes), size(n), None, None, size(0), None)\n"
        "batch(3, [device, device + 512, pinned], [pinned, device, device], [1, 20, 300])\n"
        "batch(130, [device] * 130, [device] * 130, [1000] * 130)"
    )
    assert {("h2d", "pinned"): 1, ("d2d", ""): 128_020, ("d2h", "pinned"): 300} == copied(observed, script.pid)
    assert before + 2 == observed.value(UNREAD)


def test_copies_of_three_dimensions_with_attributes(observed: Observed, script: Script) -> None:
    """Each counts as unread, of a batch a million at most; one that fails does not."""
    before = observed.value(UNREAD)
    script.run(
        "lib.cuMemcpy3DBatchAsync_v2(size(23), None, c_uint64(0), None)\n"
        "lib.cuMemcpy3DBatchAsync_v2(size(0), None, c_uint64(0), None)\n"
        "lib.cuMemcpy3DBatchAsync_v2(size(1 << 62), None, c_uint64(0), None)\n"
        "lib.cuMemcpy3DWithAttributesAsync(c_void_p(8), c_uint64(0), None)"
    )
    assert {} == copied(observed, script.pid)
    assert before + 23 + (1 << 20) + 1 == observed.value(UNREAD)


def test_ranges_of_odd_places(observed: Observed, script: Script) -> None:
    """Wherever a registered range begins and ends, each of its bytes is pinned and its neighbours are not."""
    script.run(
        "base = ctypes.create_string_buffer(1 << 21); base = ctypes.addressof(base)\n"
        "for first, length in ((1, 1), (4095, 2), (8191, 65537), (100001, 777777)):\n"
        "    lib.cuMemHostRegister_v2(c_uint64(base + first), size(length), 0)\n"
        "    for at in {first, first + length // 3, first + length // 2, first + length - 1}:\n"
        "        call('cuMemcpyHtoD_v2', device, base + at, 1)\n"
        "    for at in (first - 1, first + length):\n"
        "        call('cuMemcpyHtoD_v2', device, base + at, 1000)\n"
        "    lib.cuMemHostUnregister(c_uint64(base + first))"
    )
    assert {("h2d", "pinned"): 11, ("h2d", "pageable"): 8000} == copied(observed, script.pid)
    assert 0 == observed.value("accel_exporter_map_full_total", map="cuda_ranges")
