"""JAX on the soft GPU: what XLA's allocators hold, its launches and graphs, and copies between GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.machine import Exporter
from tests.real.comparison import seen
from tests.real.conftest import Ran, followed
from tests.real.job import Job
from tests.real.releases import JAX, Release
from tests.softgpu.story import CONTEXT

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.timeout(300),
    pytest.mark.evidence(feature="CUDA memory", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA launches", on="real program on a stand-in"),
    pytest.mark.evidence(feature="CUDA copies", on="real program on a stand-in"),
]

SOFTWARE = (JAX,)
MIB = 1 << 20
USED = "gpu_cuda_memory_usage_bytes"
AS_NEEDED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
POOLS = "out = sum(device.memory_stats()['pool_bytes'] for device in jax.devices())"
"""The bytes that the allocators of the GPUs hold, by their own account."""
NETWORK = (
    "def loss(network, x):\n"
    "    for weights, bias in network: x = jnp.tanh((x[:, :, None] * weights).sum(1) + bias)\n"
    "    return jnp.sum(x ** 2)\n"
    "@jax.jit\n"
    "def step(network, x):\n"
    "    return jax.tree.map(lambda old, slope: old - 0.01 * slope, network, jax.grad(loss)(network, x))\n"
    "network = [(jnp.ones((64, 64)) / 64, jnp.zeros(64)) for _ in range(3)]\n"
)


def used(exporter: Exporter, job: Job, memory: str) -> float | None:
    """Return the bytes of a kind of memory that a job holds."""
    return exporter.scrape().total(USED, pid=str(job.pid), memory=memory, api_layer="driver")


def test_jax_training(release: Release, exporter: Exporter, folder: Path, ran: Ran) -> None:
    """A network trained for 230 steps, compiled and tuned by XLA; a step is a graph. XLA's pools hold what is used."""
    with Job(release, folder, **AS_NEEDED) as job:
        job.run("jax.devices()")
        followed(exporter, job)
        job.run(
            f"{NETWORK}x = jnp.ones((32, 64))\nfor _ in range(230): network = step(network, x)\n"
            "jax.block_until_ready(network); jnp.sort(x.ravel()).sum().item()"
        )
        found = seen(exporter.scrape(), job.pid)
        assert 230 <= found["graph launches"]["driver"] and found["launches"]["driver"]
        assert job.run(POOLS) == used(exporter, job, "vmm")
        ran(job)


def test_jax_scan(release: Release, exporter: Exporter, folder: Path, ran: Ran) -> None:
    """A lax.scan of 23 steps over a table, which is a variable of a module that XLA looks up, three times."""
    with Job(release, folder, **AS_NEEDED) as job:
        job.run("jax.devices()")
        followed(exporter, job)
        job.run(
            "table = np.arange(23 * 64, dtype=np.float32).reshape(23, 64)\n"
            "@jax.jit\n"
            "def scan(x): return jax.lax.scan(lambda c, row: (c * 1.1 + row, c.sum()), x, jnp.asarray(table))\n"
            "for _ in range(3): jax.block_until_ready(scan(jnp.ones(64)))"
        )
        assert job.counts.calls("cuModuleGetGlobal_v2")
        assert job.run(POOLS) == used(exporter, job, "vmm")
        ran(job)


def test_jax_arrays(release: Release, exporter: Exporter, folder: Path, ran: Ran) -> None:
    """An allocation from CUDA's pool for each array (cuda_async): 23 on each of two GPUs, all but 7 of each deleted."""
    with Job(release, folder, **AS_NEEDED, XLA_PYTHON_CLIENT_ALLOCATOR="cuda_async") as job:
        job.run("first, second = jax.devices()")
        followed(exporter, job)
        job.run(
            "arrays = [jax.device_put(np.ones(MIB + n, np.uint8), at) for n in range(23) for at in (first, second)]\n"
            "jax.block_until_ready(arrays)"
        )
        assert 2 * sum(MIB + n for n in range(23)) == used(exporter, job, "pool")
        job.run("[array.delete() for array in arrays[14:]]")
        assert 2 * sum(MIB + n for n in range(7)) == used(exporter, job, "pool")
        ran(job)


def test_jax_two_gpus(release: Release, exporter: Exporter, folder: Path, ran: Ran) -> None:
    """Arrays of 4 MiB are copied to a GPU, to the other one and back to the host, 23 times, and used on both."""
    with Job(release, folder, **AS_NEEDED) as job:
        job.run("first, second = jax.devices(); held = jax.device_put(np.ones(MIB, np.float32), first)")
        followed(exporter, job)
        before = seen(exporter.scrape(), job.pid)["copies"]
        job.run(
            "for n in range(23):\n"
            "    there = jax.device_put(held, second); held = jax.device_put(there + 1, first) * 2\n"
            "    np.asarray(held)"
        )
        assert seen(exporter.scrape(), job.pid)["copies"]["d2d"] - before.get("d2d", 0) >= 2 * 23 * 4 * MIB
        assert job.run(POOLS) == used(exporter, job, "vmm")
        ran(job)


def test_jax_takes_all(release: Release, exporter: Exporter, folder: Path, ran: Ran) -> None:
    """XLA as it is by default: 75 % of each GPU's memory from the first array on, in one piece."""
    with Job(release, folder, SOFTGPU_BYTES=8192 * MIB) as job:
        job.run("jax.devices()")
        followed(exporter, job)
        job.run("arrays = [jnp.ones(n) for n in range(1, 24)]; jax.block_until_ready(arrays)")
        taken = used(exporter, job, "vmm")
        assert job.run(POOLS) == taken
        assert taken and 0.7 * 8192 * MIB < taken < 0.8 * 8192 * MIB
        ran(job)


def test_jax_memory_ends(release: Release, exporter: Exporter, folder: Path, ran: Ran) -> None:
    """A GPU with 256 MiB and a context: arrays until JAX raises RESOURCE_EXHAUSTED, then work continues with some."""
    pool = AS_NEEDED | {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"}
    with Job(release, folder, SOFTGPU_BYTES=CONTEXT + 256 * MIB, **pool) as job:
        job.run("held = [jnp.ones(1000)]")
        followed(exporter, job)
        refused = job.run(
            "try:\n"
            "    while True: held.append(jax.device_put(np.ones(5 * MIB, np.float32)))\n"
            "except jax.errors.JaxRuntimeError as error: out = str(error)\n"
        )
        assert refused.startswith("RESOURCE_EXHAUSTED")
        assert job.counts.functions["cuMemAllocFromPoolAsync"].failures
        job.run("del held[5:]; jax.block_until_ready(held[0] + 1)")
        ran(job)
