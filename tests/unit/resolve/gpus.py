"""GPUs to find by UUID, number and process."""

from __future__ import annotations

import time

from exporter.nvml.snapshot import PROCESSES, Gpu, GpuIdentity, GpuProcess, GpuSnapshot, Mig, Readings

WHOLE = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f{}"
PART = "MIG-265a219d-a49f-578a-825d-222c72699c1{}"


def gpu(
    index: int, minor: int | None = None, migs: tuple[Mig, ...] = (), processes: tuple[GpuProcess, ...] = ()
) -> Gpu:
    """`minor` is the index unless another is given."""
    number = index if minor is None else minor
    identity = GpuIdentity(WHOLE.format(index), index, "H100", "0", minor=number, mig_enabled=bool(migs), migs=migs)
    return Gpu(identity, sets={PROCESSES: Readings(time.monotonic(), processes=processes)})


def mig(number: int, instance: int, compute: int = 0) -> Mig:
    return Mig(PART.format(number), number, "1g.10gb", instance, compute)


def snapshot(*gpus: Gpu) -> GpuSnapshot:
    return GpuSnapshot("running", gpus=gpus)
