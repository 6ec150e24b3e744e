"""SGLang's server on the soft GPU: what its scheduler does there, from its first call until it is killed."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from tests.bpf.serving_node import Server
from tests.gpu.machine import Exporter
from tests.real.comparison import counted, in_words, seen
from tests.real.conftest import Ran
from tests.real.llm_servers import MODEL, llm_server
from tests.real.releases import SGLANG, Release
from tests.softgpu.counts import Counts
from tests.support import until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(900),
    pytest.mark.evidence(feature="CUDA memory", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA launches", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA copies", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA waits and spans", on="real program on a stand-in"),
]
SOFTWARE = (SGLANG,)
FREED = "gpu_cuda_memory_frees_bytes_total"
REQUESTS, TOKENS = 23, 20
GIB = 1 << 30


def generate(server: Server) -> None:
    """A request that is answered with `TOKENS` tokens, or fewer where memory that no kernel wrote names none."""
    host, port = server.address
    body = {"model": MODEL, "prompt": "the quick brown fox", "max_tokens": TOKENS, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://{host}:{port}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert 0 < json.load(answer)["usage"]["completion_tokens"] <= TOKENS


def of_scheduler(folder: Path) -> int:
    """Return the pid of the server's process that has memory on the GPU."""
    pids = {int(path.name.partition(".")[0]) for path in folder.glob("*.libcuda")}
    (scheduler,) = (pid for pid in pids if Counts(folder, pid).memory)
    return scheduler


def test_scheduler(exporter: Exporter, release: Release, folder: Path, ran: Ran) -> None:
    """The server's start, 23 requests and kill -9: weights, KV cache, CUDA graphs and kernels of its scheduler"""
    counts = folder / "counts"
    with llm_server(release, folder) as server:
        for _ in range(REQUESTS):
            generate(server)
        pid = of_scheduler(counts)
        until(lambda: counted(Counts(counts, pid)) == seen(exporter.scrape(), pid), "nothing is left to be seen")
        found = counted(Counts(counts, pid))
        assert 64 * GIB < found["memory"]["device"]
        assert REQUESTS < found["graph launches"]["driver"]
        assert 0 < Counts(counts, pid, "libcublas").calls("cublasGemmEx") < found["launches"]["driver"]
        ran.note(in_words(found))
    until(lambda: not seen(exporter.scrape(), pid)["memory"], "memory given back")
    page = exporter.scrape()
    assert found | {"memory": {}} == seen(page, pid)
    freed = page.by("memory", FREED, pid=str(pid), implicit="true", api_layer="driver")
    assert found["memory"] == {kind: size for kind, size in freed.items() if size}
