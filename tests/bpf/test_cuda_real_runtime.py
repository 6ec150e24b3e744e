"""The CUDA runtimes that NVIDIA ships, on a machine without a driver: they fail, and that is counted as it is."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.cuda.codes import error_name
from tests.bpf.cuda_node import Script, observe, started
from tests.bpf.observed import Observed
from tests.wheels import CUDART_12, CUDART_13, library

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.evidence(feature="CUDA errors", on="real software"),
    pytest.mark.evidence(feature="finding and attaching", on="real software"),
]

NOWHERE = Path("/nonexistent")


@pytest.fixture(scope="module")
def observed() -> Iterator[Observed]:
    with observe() as observed:
        yield observed


def has_driver() -> bool:
    found = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    return "libcuda.so.1" in found


@pytest.mark.parametrize("wheel", [CUDART_12, CUDART_13], ids=["12", "13"])
@pytest.mark.skipif(has_driver(), reason="there is a driver here: calls succeed")
def test_without_a_driver_the_real_error_is_counted(observed: Observed, wheel: tuple[str, str]) -> None:
    """Every call fails with the code the application got, no bytes are counted, and the process lives on."""
    runtime = library(*wheel)
    with started(observed, Script(runtime, libraries=NOWHERE)) as script:
        codes = script.run(
            "p = c_uint64()\n"
            "out = [lib.cudaMalloc(byref(p), size(1 << 20)) for _ in range(23)]\n"
            "out += [lib.cudaMallocHost(byref(p), size(1 << 20)), lib.cudaStreamSynchronize(None)]\n"
            "lib.cudaMemcpy(p, p, size(1), 1)"
        )
        assert 1 == len(set(codes)) and codes[0] != 0
        [code] = set(codes)
        errors = observed.values("gpu_cuda_api_errors_total", script.pid, api_layer="runtime", code=str(code))
        assert {"cudaMalloc": 23, "cudaMallocHost": 1, "cudaStreamSynchronize": 1} == {
            dict(labels)["api"]: count for labels, count in errors.items()
        }
        assert error_name("runtime", code).startswith("cudaError")
        assert {error_name("runtime", code)} == {dict(labels)["error"] for labels in errors}
        assert 1 == observed.value("gpu_cuda_api_calls_total", script.pid, api="cudaMemcpy")
        assert {} == observed.values("gpu_cuda_memory_allocations_bytes_total", script.pid)
        assert "alive" == script.run("out = 'alive'")


@pytest.mark.parametrize("wheel", [CUDART_12, CUDART_13], ids=["12", "13"])
def test_nothing_of_it_is_left_out(observed: Observed, wheel: tuple[str, str]) -> None:
    """Every function of the runtime that allocates, frees, copies, launches or waits is hooked or knowingly not."""
    runtime = library(*wheel)
    with started(observed, Script(runtime, libraries=NOWHERE)):
        assert 0 == observed.value("accel_exporter_probe_symbols_uncovered", library=str(runtime))
