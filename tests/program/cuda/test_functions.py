"""The table of functions against the headers and libraries of CUDA 12 and 13."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import capstone
import pytest
from elftools.elf.elffile import ELFFile

from exporter.cuda.codes import error_name
from exporter.cuda.functions import COVERABLE, FUNCTIONS, UNCOVERED
from tests.bpf import cuda_calls
from tests.wheels import CUDART_12, CUDART_13, library

pytestmark = pytest.mark.evidence(feature="CUDA functions and structures", on="real software")

WHEELS = pytest.mark.parametrize("wheel", [CUDART_12, CUDART_13], ids=["12", "13"])
NAMES = {function.name for function in FUNCTIONS}


def header(wheel: tuple[str, str], name: str) -> str:
    return library(wheel[0], name).read_text()


def driver_symbols(text: str) -> set[str]:
    """Return the exports of libcuda according to cuda.h: declared names, and those that its macros turn them into."""
    declared = set(re.findall(r"CUDAAPI\s+(cu\w+)\(", text))
    renamed = set(re.findall(r"^#define\s+cu\w+\s+(cu\w+)$", text, re.MULTILINE))
    variants = re.findall(r"^\s*#define\s+cu\w+\s+__CUDA_API_(PTDS|PTSZ)\((cu\w+)\)", text, re.MULTILINE)
    return declared | renamed | {name + suffix for kind, name in variants for suffix in ("", f"_{kind.lower()}")}


def runtime_symbols(path: Path) -> set[str]:
    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        return {symbol.name.partition("@")[0] for symbol in table.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF"}


def test_names_are_unique() -> None:
    """No function is declared twice, or both hooked and left out."""
    assert len(FUNCTIONS) == len(NAMES)
    assert [] == [name for name in NAMES if not COVERABLE.fullmatch(name)]


@WHEELS
def test_the_runtime_is_covered(wheel: tuple[str, str]) -> None:
    """Whatever libcudart exports that allocates, frees, copies, launches or waits is hooked or listed with a reason."""
    exported = runtime_symbols(library(*wheel))
    assert "cudaMalloc" in exported
    assert [] == sorted(name for name in exported if COVERABLE.fullmatch(name) and name not in NAMES)


@WHEELS
def test_the_driver_is_covered(wheel: tuple[str, str]) -> None:
    """The same for what cuda.h declares, with the _v2, _ptsz and _ptds variants its macros name."""
    declared = driver_symbols(header(wheel, "cuda.h"))
    assert {"cuMemAlloc_v2", "cuLaunchKernel_ptsz", "cuMemcpyHtoD_v2_ptds"} <= declared
    assert [] == sorted(name for name in declared if COVERABLE.fullmatch(name) and name not in NAMES)


def test_no_hook_is_for_nothing() -> None:
    """Every hooked function, and every pattern of those left out, is in one of the two versions."""
    wheels = (CUDART_12, CUDART_13)
    known = {name for wheel in wheels for name in runtime_symbols(library(*wheel))}
    known |= {name for wheel in wheels for name in driver_symbols(header(wheel, "cuda.h"))}
    assert [] == sorted(NAMES - known)
    assert [] == [pattern for pattern in UNCOVERED if not any(re.fullmatch(pattern, name) for name in known)]


@WHEELS
def test_no_hooked_function_calls_another(wheel: tuple[str, str]) -> None:
    """In the runtime none jumps to or calls another one, so that a call counts once."""
    with library(*wheel).open("rb") as file:
        elf = ELFFile(file)
        symbols = {
            it.name.partition("@")[0]: (it["st_value"], it["st_size"])
            for it in elf.get_section_by_name(".dynsym").iter_symbols()
        }
        text = elf.get_section_by_name(".text")
        code, base = text.data(), text["sh_addr"]
        machine = elf["e_machine"]
    if machine != "EM_X86_64":
        pytest.skip("reads x86-64 code")
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    hooked = {symbols[name][0]: name for name in NAMES if name in symbols}
    assert len(hooked) > 60
    calls = []
    for start, name in hooked.items():
        length = symbols[name][1]
        for instruction in decoder.disasm(code[start - base : start - base + length], start):
            if instruction.mnemonic in ("call", "jmp") and instruction.op_str.startswith("0x"):
                target = int(instruction.op_str, 16)
                if target in hooked and target != start:
                    calls.append((name, hooked[target]))
    assert [] == calls


def parameters(wheel: tuple[str, str]) -> set[tuple[str, str]]:
    """Return the functions that the headers declare, each with the text of its parameters; renamed ones twice."""
    text = re.sub(r"/\*.*?\*/", "", header(wheel, "cuda_runtime_api.h"), flags=re.DOTALL)
    found = re.findall(r"CUDARTAPI (cuda\w+)\(((?:[^()]|\([^()]*\))*)\)", text)
    for define in ("USUAL", "CUDA_API_PER_THREAD_DEFAULT_STREAM", "__CUDA_API_VERSION_INTERNAL"):
        command = ["gcc", "-E", "-P", f"-D{define}", library(wheel[0], "cuda.h")]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found += re.findall(r"CUresult\s+(cu\w+)\(([^)]*)\)", text)
    return {(name, re.sub(r"\s+", " ", it.strip())) for name, it in found}


def test_the_parameters_that_are_tried() -> None:
    """Functions have the parameters with which tests/bpf/test_cuda_functions.py calls them, in this order."""
    declared = parameters(CUDART_12) | parameters(CUDART_13)
    known = {name for name, _ in declared}
    for it in cuda_calls.FUNCTIONS.values():
        name = it.name if it.name in known else re.sub(r"_pt[ds][sz]$", "", it.name)
        assert name in known
        for text in [text for of, text in declared if of == name and it.parameters]:
            types = text.split(", ")
            patterns = [cuda_calls.PARAMETERS[word] for word in it.parameters]
            assert len(patterns) == len(types) and all(map(re.fullmatch, patterns, types)), (it, text)


LAYOUTS = """
#include <stddef.h>
#include <cuda.h>
#define IS(expression, value) _Static_assert((expression) == (value), #expression)
IS(offsetof(CUDA_MEMCPY2D, srcMemoryType), 16); IS(offsetof(CUDA_MEMCPY2D, srcHost), 24);
IS(offsetof(CUDA_MEMCPY2D, srcDevice), 32); IS(offsetof(CUDA_MEMCPY2D, dstMemoryType), 72);
IS(offsetof(CUDA_MEMCPY2D, dstHost), 80); IS(offsetof(CUDA_MEMCPY2D, dstDevice), 88);
IS(offsetof(CUDA_MEMCPY2D, WidthInBytes), 112); IS(sizeof(CUDA_MEMCPY2D), 128);
IS(offsetof(CUDA_MEMCPY3D, srcMemoryType), 32); IS(offsetof(CUDA_MEMCPY3D, srcHost), 40);
IS(offsetof(CUDA_MEMCPY3D, srcDevice), 48); IS(offsetof(CUDA_MEMCPY3D, dstMemoryType), 120);
IS(offsetof(CUDA_MEMCPY3D, dstHost), 128); IS(offsetof(CUDA_MEMCPY3D, dstDevice), 136);
IS(offsetof(CUDA_MEMCPY3D, WidthInBytes), 176); IS(sizeof(CUDA_MEMCPY3D), 200);
IS(offsetof(CUDA_MEMCPY3D_PEER, dstDevice), 136); IS(sizeof(CUDA_MEMCPY3D_PEER), 200);
IS(offsetof(CUmemAllocationProp, location.type), 8); IS(CU_MEM_LOCATION_TYPE_HOST, 2);
IS(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 4); IS(CU_MEM_LOCATION_TYPE_DEVICE, 1);
IS(offsetof(CUmemPoolProps, allocType), 0); IS(offsetof(CUmemPoolProps, location.type), 8);
IS(offsetof(CUmemPoolProps, location.id), 12); IS(sizeof(CUmemLocation), 8);
#if CUDA_VERSION >= 13000
IS(CU_MEM_ALLOCATION_TYPE_MANAGED, 2);
#endif
IS(CU_MEMORYTYPE_HOST, 1); IS(CU_MEMORYTYPE_DEVICE, 2); IS(CU_MEMORYTYPE_ARRAY, 3); IS(CU_MEMORYTYPE_UNIFIED, 4);
"""


@WHEELS
def test_the_structures_that_are_read(wheel: tuple[str, str], tmp_path: Path) -> None:
    """The layouts written down in bpf/cuda/copies.h, memory.h and pools.h are those of the headers."""
    (tmp_path / "cuda.h").write_text(header(wheel, "cuda.h"))
    (tmp_path / "check.c").write_text(LAYOUTS)
    subprocess.run(["gcc", "-fsyntax-only", "-I", tmp_path, tmp_path / "check.c"], check=True)
    types = re.sub(r"/\*.*?\*/", "", header(wheel, "driver_types.h"), flags=re.DOTALL)
    assert re.search(r"cudaPitchedPtr\s*{\s*void +\*ptr;\s*size_t +pitch;\s*size_t +xsize;\s*size_t +ysize;\s*}", types)
    assert re.search(r"cudaExtent\s*{\s*size_t +width;\s*size_t +height;\s*size_t +depth;\s*}", types)


@WHEELS
@pytest.mark.parametrize(
    ("layer", "file", "enum", "prefix"),
    [
        ("driver", "cuda.h", "typedef enum cudaError_enum", "CUDA_ERROR_"),
        ("runtime", "driver_types.h", "enum __device_builtin__ cudaError\n", "cudaError"),
    ],
)
def test_error_codes(wheel: tuple[str, str], layer: str, file: str, enum: str, prefix: str) -> None:
    """Every error constant of the headers has its name."""
    text = re.sub(r"/\*.*?\*/", "", header(wheel, file), flags=re.DOTALL)
    body = text[text.index(enum) :].partition("}")[0]
    constants = {int(value): name for name, value in re.findall(rf"({prefix}\w+)\s*=\s*(\d+)", body)}
    assert len(constants) > 90
    assert constants == {code: error_name(layer, code) for code in constants}


def test_an_unknown_code_has_no_name() -> None:
    """A code that is in neither header has an empty name, as success has."""
    assert ["", ""] == [error_name("driver", 4242), error_name("runtime", 0)]
