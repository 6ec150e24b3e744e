"""The GPUs of kubelet device ids: ids of NVIDIA's device plugin, of GKE's, and of NVIDIA's DRA driver."""

from __future__ import annotations

import re

from exporter.resolve.gpu import GpuDevice, Inventory

_PLUGIN = re.compile(r"((?:GPU|MIG)-.+?)(?:::[0-9]+)?")
"""A UUID; ::N is the N-th time slice of the GPU."""
_GKE = re.compile(r"nvidia([0-9]{1,4})(?:/gi([0-9]{1,4}))?(?:/vgpu[0-9]+)?", re.ASCII)
"""The minor number, and the GPU instance of a MIG device; vgpuN is a time slice."""
_DRA = re.compile(r"gpu-([0-9]{1,4})(?:-mig-.+)?", re.ASCII)


def gpus(device: str, inventory: Inventory) -> tuple[GpuDevice, ...]:
    """Return the GPU or the MIG devices of a device id; empty when the id is not recognized."""
    if found := _PLUGIN.fullmatch(device):
        gpu = inventory.of(found[1])
        return (gpu,) if gpu else ()
    if found := _GKE.fullmatch(device):
        return inventory.minor(int(found[1]), None if found[2] is None else int(found[2]))
    if found := _DRA.fullmatch(device):
        # The index in earlier releases of the driver, the minor number in later ones: used only where these agree.
        number = int(found[1])
        return inventory.at(number) if inventory.at(number) == inventory.minor(number) else ()
    return ()
