"""SGLang's server on the soft GPU: its processes start, load a model and reserve the KV cache, until cuBLAS refuses."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.machine import Exporter
from tests.real.comparison import counted, in_words, seen
from tests.real.conftest import Ran
from tests.real.job import environment_of
from tests.real.releases import SGLANG, Release, python
from tests.real.vllm_server import write_model
from tests.softgpu.counts import Counts
from tests.support import free_port, until

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(900),
    pytest.mark.evidence(feature="CUDA memory", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA launches", on="real program on a stand-in"),
]
SOFTWARE = (SGLANG,)
CHOICES = ("--dtype=bfloat16", "--load-format=dummy", "--attention-backend=torch_native", "--sampling-backend=pytorch")
FREED = "gpu_cuda_memory_frees_bytes_total"
GIB = 1 << 30


@pytest.fixture
def server(release: Release, exporter: Exporter, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server that starts; its log is in `folder`."""
    write_model(python(release), folder / "model")
    (folder / "counts").mkdir()
    place = [f"--model-path={folder / 'model'}", "--host=127.0.0.1", f"--port={free_port()}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [python(release), "-m", "sglang.launch_server", *place, *CHOICES],
            env=os.environ | environment_of(release, folder / "counts") | {"HF_HUB_OFFLINE": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    yield process
    process.kill()
    process.wait(30)


def test_start(exporter: Exporter, release: Release, server: subprocess.Popen[bytes], folder: Path, ran: Ran) -> None:
    """The server's start until cuBLAS refuses the soft GPU: weights and KV cache of the scheduler, in its process."""
    until(lambda: server.poll() is not None, lambda: (folder / "log").read_text()[-2000:], 600)
    log = (folder / "log").read_text()
    assert "KV Cache is allocated" in log and "CUBLAS_STATUS_NOT_INITIALIZED" in log, log[-2000:]

    pids = sorted(int(path.name.partition(".")[0]) for path in (folder / "counts").glob("*.libcuda"))
    for pid in pids:
        counts = Counts(folder / "counts", pid)
        own = counted(counts)
        until(lambda pid=pid: not seen(exporter.scrape(), pid)["memory"], "memory given back")
        page = exporter.scrape()
        assert own | {"memory": {}} == seen(page, pid)
        freed = page.by("memory", FREED, pid=str(pid), implicit="true", api_layer="driver")
        assert own["memory"] == {kind: size for kind, size in freed.items() if size}
        if sum(own["memory"].values()) > GIB:
            ran.note(in_words(own))
