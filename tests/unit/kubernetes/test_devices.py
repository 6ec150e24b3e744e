"""GPUs by the kubelet's device ids."""

from __future__ import annotations

import pytest

from exporter.kubernetes.devices import gpus
from exporter.resolve.gpu import Inventory
from tests.unit.resolve.gpus import PART, WHOLE, gpu, mig, snapshot

ALIKE = Inventory(snapshot(gpu(0), gpu(1, migs=(mig(0, 1), mig(1, 2), mig(2, 2, 1)))))
SWAPPED = Inventory(snapshot(gpu(0, minor=1), gpu(1, minor=0)))


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (WHOLE.format(0), [WHOLE.format(0)]),
        (WHOLE.format(0) + "::0", [WHOLE.format(0)]),
        (WHOLE.format(0) + "::15", [WHOLE.format(0)]),
        (PART.format(1), [PART.format(1)]),
        (PART.format(1) + "::3", [PART.format(1)]),
        ("nvidia0", [WHOLE.format(0)]),
        ("nvidia0/vgpu7", [WHOLE.format(0)]),
        ("nvidia1/gi1", [PART.format(0)]),
        ("nvidia1/gi2", [PART.format(1), PART.format(2)]),
        ("nvidia1/gi2/vgpu0", [PART.format(1), PART.format(2)]),
        ("gpu-1", [WHOLE.format(1)]),
        ("gpu-1-mig-1g10gb-19-0", [WHOLE.format(1)]),
    ],
)
def test_known(device: str, expected: list[str]) -> None:
    """Ids of the device plugin, time slices, MIG devices, GKE's and claimed devices are the GPUs they mean."""
    assert expected == [gpu.uuid for gpu in gpus(device, ALIKE)]


@pytest.mark.parametrize(
    "device",
    [
        "",
        "GPU-",
        WHOLE.format(7),
        WHOLE.format(0) + "::x",
        WHOLE.format(0) + ":0",
        "nvidia9",
        "nvidia0/gi1",
        "nvidia0/gi",
        "nvidia99999",
        "nvidia٣",
        "nvidiactl",
        "gpu-9",
        "MIG-GPU-0/1/0",
    ],
)
def test_unknown(device: str) -> None:
    """An id of unknown form is no GPU, rather than some GPU."""
    assert () == gpus(device, ALIKE)


def test_numbers_that_may_be_two_things() -> None:
    """GKE's number is the minor number; that of a claimed device is one or the other, so it counts where both agree."""
    assert [WHOLE.format(1)] == [gpu.uuid for gpu in gpus("nvidia0", SWAPPED)]
    assert () == gpus("gpu-0", SWAPPED)
