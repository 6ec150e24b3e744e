"""PyTorch's models of linear layers and attention, on the soft GPU with a cuBLAS of our own that multiplies nothing."""

from __future__ import annotations

import pytest

from tests.gpu.machine import Exporter
from tests.real.comparison import counted, seen
from tests.real.conftest import Ran
from tests.real.job import Job
from tests.real.releases import TORCH
from tests.softgpu.counts import Counts

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.evidence(feature="CUDA memory", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA launches", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA copies", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA waits and spans", on="real program on a stand-in"),
]

SOFTWARE = TORCH
MODEL = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(512, 128)
        block = torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0, batch_first=True, norm_first=True)
        self.blocks = torch.nn.TransformerEncoder(block, 3, enable_nested_tensor=False)
        self.head = torch.nn.Linear(128, 512)

    def forward(self, tokens):
        return self.head(self.blocks(self.embedding(tokens)))

torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN has CUDA's runtime linked in
model = Model().cuda()
optimiser = torch.optim.Adam(model.parameters())
tokens = torch.randint(512, (8, 64), pin_memory=True)

def train(steps):
    for _ in range(steps):
        batch = tokens.to('cuda', non_blocking=True)
        loss = torch.nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())
        loss.backward()
        optimiser.step(); optimiser.zero_grad()
        torch.cuda.synchronize()
"""
RESERVED = "out = torch.cuda.memory_reserved()"


def products(job: Job) -> int:
    """Return how many kernels the soft cuBLAS has launched for a job: by its own count of calls."""
    both = (Counts(job.folder, job.pid, library).functions.items() for library in ("libcublas", "libcublasLt"))
    return sum(row.calls for rows in both for name, row in rows if "gemm" in name.lower() or name == "cublasLtMatmul")


@pytest.mark.parametrize("attention", ["math", "flash"])
def test_transformer(job: Job, exporter: Exporter, ran: Ran, attention: str) -> None:
    """A transformer of 3 blocks trained for 23 steps with Adam, attention in products of matrices and in one kernel"""
    job.run(
        f"{MODEL}\nfor it in ('flash', 'mem_efficient', 'math'): "
        f"getattr(torch.backends.cuda, f'enable_{{it}}_sdp')(it == '{attention}')\n"
        f"{'model.bfloat16()' if attention == 'flash' else ''}\ntrain(1)"
    )
    before, known = job.counts, products(job)
    reserved = job.run(f"train(22)\n{RESERVED}")
    assert {"device": reserved, "pinned_host": 4096} == seen(exporter.scrape(), job.pid)["memory"]
    launches = job.counts.calls("cuLaunchKernel") - before.calls("cuLaunchKernel")
    made = products(job) - known
    # Of a linear layer a forward product and two of gradients: 4 layers in each block and the head.
    assert 22 * 13 * 3 <= made < launches
    if attention == "math":
        assert 22 * (13 + 3 * 2) * 3 == made
    assert 23 == counted(job.counts)["waits"]["cuCtxSynchronize"]
    ran(job)
