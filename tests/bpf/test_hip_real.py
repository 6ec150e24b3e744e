"""AMD's libamdhip64 of three releases: its functions are those that are probed, and its calls count as they fail."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from exporter.bpf import object_path
from exporter.bpf.btf import Btf
from exporter.bpf.elf import Elf
from exporter.collectors.hip import Hip
from exporter.hip import codes
from tests import rocm
from tests.bpf import hip_calls
from tests.bpf.cuda_node import started
from tests.bpf.hip_node import ALLOCATED, CALLS, COPIED, ERRORS, EXTENDED, GRAPHS, LAUNCHES, WAITED, HipScript, observe
from tests.bpf.observed import Observed
from tests.rocm import RELEASES, Rocm

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="HIP calls", on="real software")]

FUNCTIONS = Path(__file__).parents[2] / "bpf/hip/functions.h"
AFTER_5_2 = {  # functions that HIP 5.2 has not
    *("hipModuleLaunchCooperativeKernel", "hipModuleLaunchCooperativeKernelMultiDevice", "hipGraphLaunch_spt"),
    *("hipMemcpyToSymbolAsync_spt", "hipMemcpyFromSymbolAsync_spt", "hipMemcpy2DAsync_spt", "hipMemcpyFromArray_spt"),
    *("hipMemcpy2DToArrayAsync_spt", "hipMemcpy2DFromArrayAsync_spt", "hipMemcpy3DAsync_spt"),
    *("hipStreamBeginCapture_spt", "hipStreamEndCapture_spt"),
}
AFTER_5_7 = {
    *("hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel"),  # as C has them
    *("hipMemcpyHtoAAsync", "hipMemcpyAtoHAsync", "hipMemcpyAtoD", "hipMemcpyDtoA", "hipMemcpyAtoA"),
    *("hipMemcpy2DArrayToArray", "hipStreamBeginCaptureToGraph"),
}
AFTER_6_4 = {
    *("hipLaunchKernelExC", "hipDrvLaunchKernelEx", "hipMemcpy3DPeer", "hipMemcpy3DPeerAsync"),
    *("hipMemcpyBatchAsync", "hipMemcpy3DBatchAsync"),
}
MISSING = {"5.2": AFTER_5_2 | AFTER_5_7 | AFTER_6_4, "5.7": AFTER_5_7 | AFTER_6_4, "6.4": AFTER_6_4}
COPY = re.compile(r"(BOTH\((?=COPIES))?(COPIES\w*)[(,] *F, (hip\w+), (\d+)(?:, (\d+))?")
"""A copy in bpf/hip/functions.h: whether there is a variant _spt, macro, name, where bytes and kind stand."""

releases = pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.hip)
loadable = pytest.mark.parametrize("release", [it for it in RELEASES if it.loads], ids=lambda release: release.hip)


@pytest.fixture(scope="module")
def observed() -> Iterator[Observed]:
    with observe() as observed:
        yield observed


def probed() -> set[str]:
    """The functions that are probed where a library has them."""
    with object_path("hip").open("rb") as file:
        return set(Btf(ELFFile(file).get_section_by_name(".BTF").data()).enum("api"))


def script(release: Rocm) -> HipScript:
    extended = "hipExtModuleLaunchKernel" if release is rocm.NEWEST else EXTENDED
    return HipScript(release.library(), extended, libraries=release.libraries(), loader=release.loader())


@loadable
def test_the_real_library(observed: Observed, release: Rocm) -> None:
    """AMD's library, without a device: calls fail, count with the code the job got, and the process lives on."""
    with started(observed, script(release)) as job:
        made = job.run(
            "at = c_uint64()\n"
            "out = [lib.hipMalloc(byref(at), size(1 << 20)) for _ in range(23)]\n"
            "out += [lib.hipHostMalloc(byref(at), size(10), 0), lib.hipMemcpy(memory, memory, size(10), 1)]\n"
            "out += [lib.hipDeviceSynchronize(), lib.hipMemcpyPeer(memory, 1, memory, 0, size(10))]\n"
            "out += [lib.hipMemAllocHost(byref(at), size(10))]\n"
            "out += [lib.hipMemcpyToSymbolAsync(memory, memory, size(1), size(0), 1, None)]"
        )
        [code] = set(made)
        error = codes.error_name(code)
        assert error in {"hipErrorInvalidDevice", "hipErrorNoDevice"}
        others = ("hipHostMalloc", "hipMemcpy", "hipDeviceSynchronize", "hipMemcpyPeer")
        counts = {"hipMalloc": 23} | dict.fromkeys((*others, "hipMemAllocHost", "hipMemcpyToSymbolAsync"), 1)
        expected = {(api, str(code), error): calls for api, calls in counts.items()}
        assert expected == observed.by(ERRORS, job.pid, "api", "code", "error")
        assert counts == observed.by(CALLS, job.pid, "api")
        assert {} == observed.values(ALLOCATED, job.pid) == observed.values(COPIED, job.pid)
        assert [1] == [sum(it.counts) for it in observed.values(WAITED, job.pid).values()]
        assert "alive" == job.run("out = 'alive'")


@loadable
def test_launches_of_the_real_library(observed: Observed, release: Rocm) -> None:
    """Each launch counts once, whatever its function is made of, though without a device it is refused."""
    with started(observed, script(release)) as job:
        made = job.run(
            "graph = lambda: lib.hipGraphLaunch(None, None)\n"
            "out = [call() for call in (launch, module, extended, graph) for _ in range(23)]\n"
            f"ext = lib.{EXTENDED}; out += [extended() for _ in range(7)]"  # HIP 6 has it by both names
        )
        assert 0 not in made
        expected = dict.fromkeys(("hipLaunchKernel", "hipModuleLaunchKernel", "hipGraphLaunch"), 23)
        assert expected | {"hipExtModuleLaunchKernel": 30} == observed.by(CALLS, job.pid, "api")
        assert (76, 23) == (observed.value(LAUNCHES, job.pid), observed.value(GRAPHS, job.pid))
        assert "alive" == job.run("out = 'alive'")


@releases
def test_no_function_is_left_out(release: Rocm) -> None:
    """Of the functions that move or allocate memory, launch or wait each release has no other than those probed."""
    with Elf.open(release.library()) as elf:
        exported = set(elf.functions(None))
    assert MISSING[release.hip] == probed() - exported
    assert set() == {name for name in exported - probed() if Hip.coverable and Hip.coverable.fullmatch(name)}


@loadable
def test_every_function_is_attached(observed: Observed, release: Rocm) -> None:
    """All probes of what a release has are attached, and no function is reported as not covered."""
    library = str(release.library())
    with Elf.open(release.library()) as elf:
        exported = set(elf.functions(None))
    with started(observed, script(release)):
        assert 0 == observed.value("accel_exporter_probe_symbols_uncovered", library=library)
        attached = observed.values("accel_exporter_probe_attached", library=library)
        assert len(exported & probed()) == len(attached) and {1} == set(attached.values())


@releases
def test_names_and_numbers_are_those_of_the_header(release: Rocm) -> None:
    """Errors have the constants of hip_runtime_api.h, and kinds of copies the numbers of driver_types.h."""
    include = release.root() / "usr/include/hip"
    header = (include / "hip_runtime_api.h").read_text()
    found: dict[int, str] = {}
    for name, number in re.findall(r"(hipError\w+)\s*=\s*(\d+)", header):
        found.setdefault(int(number), name)
    later = {911: "hipErrorInvalidChannelDescriptor", 912: "hipErrorInvalidTexture"}
    assert found | later == codes.names()
    kinds = re.findall(r"hipMemcpy(\w+)\s*=\s*(\d+)", (include / "driver_types.h").read_text())
    expected = {"HostToHost": "0", "HostToDevice": "1", "DeviceToHost": "2", "DeviceToDevice": "3", "Default": "4"}
    assert expected.items() <= dict(kinds).items() <= (expected | {"DeviceToDeviceNoCU": "1024"}).items()


def copies() -> Iterator[tuple[str, int, int | None, int | None]]:
    """Functions that copy, and which arguments have their bytes, height and kind."""
    for variant, what, name, at, kind in COPY.findall(FUNCTIONS.read_text()):
        found = int(at), int(at) + 1 if what.startswith("COPIES_ROWS") else None, int(kind) if kind else None
        for suffix in ("", "_spt") if variant else ("",):
            yield name + suffix, *found


def arguments(release: Rocm) -> dict[str, list[str]]:
    """The arguments of the functions of two headers."""
    include = release.root() / "usr/include/hip"
    files = (include / "hip_runtime_api.h", include / "amd_detail/amd_hip_runtime_pt_api.h")
    header = re.sub(
        r"/\*.*?\*/|//[^\n]*|__dparm\([^)]*\)", "", "".join(it.read_text() for it in files), flags=re.DOTALL
    )
    found = re.findall(r"hipError_t\s+(hip\w+)\s*\(([^;{]*)\)\s*;", header)
    return {name: [" ".join(it.split()) for it in listed.split(",")] for name, listed in found}


@releases
def test_arguments_are_those_of_the_header(release: Rocm) -> None:
    """Bytes, heights and kinds of copies stand where bpf/hip/functions.h has them."""
    header = arguments(release)
    present = [it for it in copies() if it[0] in header]
    assert len(present) > 30
    for name, at, height, kind in present:
        assert re.fullmatch(r"size_t (sizeBytes|count|ByteCount|width)", header[name][at]), name
        assert not height or "size_t height" == header[name][height], name
        assert not kind or header[name][kind].startswith("hipMemcpyKind kind"), name


@releases
def test_the_parameters_that_are_tried(release: Rocm) -> None:
    """Functions have the parameters with which test_hip_functions.py calls them, in this order."""
    header = arguments(release)
    present = [it for it in hip_calls.FUNCTIONS.values() if it.parameters and it.name in header]
    assert len(present) > 50
    for it in present:
        patterns = [hip_calls.PARAMETERS[word] for word in it.parameters]
        assert len(patterns) == len(header[it.name]), it
        assert all(map(re.fullmatch, patterns, header[it.name])), (it, header[it.name])


PLACED = re.compile(r"\bF(?:\(|, )(hip\w+),[^\n]*STREAM_AT\((\d+)\)")
"""A function in bpf/hip/functions.h with the argument that its stream is."""


def streams() -> Mapping[str, int]:
    """The functions with a stream, and which argument it is, with two values of 12 bytes as two arguments each."""
    text = FUNCTIONS.read_text()
    found = {name: int(at) for name, at in PLACED.findall(text)}
    for variant, what, name, at, kind in COPY.findall(text):
        if what.endswith("_ASYNC"):
            for suffix in ("", "_spt") if variant else ("",):
                found[name + suffix] = int(kind or at) + 1
    return found


@releases
def test_streams_are_those_of_the_header(release: Rocm) -> None:
    """Streams stand where bpf/hip/functions.h has them, and no other copy, launch, wait or allocation has one."""
    header = {
        name: [part for it in listed for part in ([it, it] if it.startswith("dim3") else [it])]
        for name, listed in arguments(release).items()
    }
    present = {name: at for name, at in streams().items() if name in header}
    assert len(present) > 20
    assert {} == {name: at for name, at in present.items() if not header[name][at].startswith("hipStream_t ")}
    placed = {name for name, listed in header.items() if any(it.startswith("hipStream_t ") for it in listed)}
    others = {"hipFreeAsync", "hipMallocFromPoolAsync", "hipStreamDestroy"}  # of the memory, the pool, the thread
    captures = {name for name in probed() if "Capture" in name}
    assert placed & probed() - present.keys() <= others | captures
