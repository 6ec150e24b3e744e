"""The allocation of GPUs by UUID."""

from __future__ import annotations

from exporter.kubernetes.podresources import ContainerDevice
from exporter.resolve.allocations import Allocation, Allocations, of_containers, of_jobs
from exporter.resolve.gpu import Inventory
from exporter.resolve.slurm import JobGpu
from tests.unit.resolve.gpus import PART, WHOLE, gpu, mig, snapshot

INVENTORY = Inventory(snapshot(gpu(0), gpu(1, migs=(mig(0, 1), mig(1, 2), mig(2, 2, 1)))))


def given(device: str, pod: str = "train-0", container: str = "main", namespace: str = "ml") -> ContainerDevice:
    return ContainerDevice(device, "nvidia.com/gpu", pod, namespace, container)


def allocated(*devices: ContainerDevice, jobs: tuple[JobGpu, ...] = ()) -> Allocations:
    allocations = Allocations()
    allocations.replace([*of_containers(devices, INVENTORY), *of_jobs(jobs, INVENTORY)])
    return allocations


POD = {"pod": "train-0", "namespace": "ml", "container": "main"}


def test_labels() -> None:
    """A series has what is known of an allocation and no empty label."""
    [one] = of_containers([given(PART.format(0) + "::2")], INVENTORY)
    gpu_labels = {"gpu": "1", "gpu_uuid": WHOLE.format(1), "mig_uuid": PART.format(0)}
    assert gpu_labels | POD | {"resource": "nvidia.com/gpu", "device": PART.format(0) + "::2"} == one.labels
    assert {"slurm_job_id": "42"} == Allocation(None, slurm_job_id="42").labels


def test_an_instance_of_several_devices() -> None:
    """A GPU instance that is divided further is one allocation of each of its MIG devices."""
    found = of_containers([given("nvidia1/gi2")], INVENTORY)
    assert [PART.format(1), PART.format(2)] == [it.gpu.mig_uuid for it in found if it.gpu]


def test_an_unknown_device_stays() -> None:
    """A device that is not identified is still allocated to its pod."""
    assert [{**POD, "resource": "nvidia.com/gpu", "device": "odd"}] == [
        dict(it.labels) for it in of_containers([given("odd")], INVENTORY)
    ]


def test_jobs() -> None:
    """A job has the GPU of its file's index, or the MIG devices of its instance; a GPU there is not is nobody's."""
    found = of_jobs([JobGpu(0, None, "42"), JobGpu(1, 2, "43"), JobGpu(7, None, "44")], INVENTORY)
    assert [(WHOLE.format(0), "42"), (PART.format(1), "43"), (PART.format(2), "43")] == [
        (it.gpu.uuid, it.slurm_job_id) for it in found if it.gpu
    ]
    assert 3 == len(found)


def test_of_a_gpu() -> None:
    """The one pod, container and job of a GPU or MIG device are its labels."""
    allocations = allocated(given(WHOLE.format(0)), jobs=(JobGpu(0, None, "42"), JobGpu(1, 1, "43")))
    assert POD | {"hpc_job": "42"} == allocations.of(WHOLE.format(0))
    assert {"hpc_job": "43"} == allocations.of(PART.format(0))
    assert {} == allocations.of(WHOLE.format(1))


def test_shared() -> None:
    """Of a GPU that two pods share by time neither is the owner; of two containers of one pod the pod is."""
    uuid = WHOLE.format(0)
    assert {} == allocated(given(uuid + "::0"), given(uuid + "::1", pod="serve-1")).of(uuid)
    assert {} == allocated(given(uuid + "::0"), given(uuid + "::1", namespace="other")).of(uuid)
    assert {"pod": "train-0", "namespace": "ml"} == allocated(
        given(uuid + "::0"), given(uuid + "::1", container="second")
    ).of(uuid)
    assert POD == allocated(given(uuid + "::0"), given(uuid + "::1")).of(uuid)
    assert {} == allocated(jobs=(JobGpu(0, None, "42"), JobGpu(0, None, "43"))).of(uuid)


def test_labels_pod_labels() -> None:
    """Labels of a pod are with all it has, and with the GPU that is its alone."""
    pod_labels = {("ml", "train-0"): {"label_app": "llm"}, ("ml", "serve-1"): {"label_app": "web"}}
    uuid = WHOLE.format(0)
    found = of_containers([given(uuid), given(PART.format(0), namespace="other")], INVENTORY, pod_labels)
    assert ["llm", None] == [it.labels.get("label_app") for it in found]
    allocations = Allocations()
    allocations.replace(found)
    assert POD | {"label_app": "llm"} == allocations.of(uuid)
    allocations.replace(of_containers([given(uuid + "::0"), given(uuid + "::1", pod="serve-1")], INVENTORY, pod_labels))
    assert {} == allocations.of(uuid)


def test_replaced() -> None:
    """Earlier allocations do not count any more."""
    allocations = allocated(given(WHOLE.format(0)))
    allocations.replace(())
    assert {} == allocations.of(WHOLE.format(0))
