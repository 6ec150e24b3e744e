"""The allocation of GPUs: a real gRPC server in the kubelet's place, a mapping folder, and pods listed over HTTPS."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from exporter.collectors import allocation
from exporter.collectors.allocation import AllocationCollector, configure
from exporter.kubernetes import podresources
from exporter.model import Labels, Unavailable
from exporter.nvml.gpus import Gpus
from exporter.nvml.snapshot import Gpu
from exporter.resolve.allocations import Allocations
from tests.nodes import make_node
from tests.standins import kubelet, pods
from tests.standins.kubelet import container, listening, pod
from tests.support import PATIENCE, until
from tests.unit.resolve.gpus import PART, WHOLE, gpu, mig, snapshot

VALUES = {option.name: option.default for option in allocation.OPTIONS}
INTERVAL = 60.0
GIVEN = {"pod": "train-0", "namespace": "ml", "container": "main", "resource": "nvidia.com/gpu"}


class Subject:
    """A collector on a node with these GPUs, a clock that a test turns, and its samples."""

    def __init__(self, folder: Path, *gpus: Gpu, **settings: Any) -> None:
        self.socket, self.folder, self.time = folder / "kubelet.sock", folder / "jobs", 0.0
        self.gpus, self.allocations = Gpus(), Allocations()
        if gpus:
            self.gpus.serve(lambda: snapshot(*gpus), lambda _: True)
        changed = {allocation.SOCKET: str(self.socket), allocation.INTERVAL: INTERVAL, **settings}
        self.node = node = make_node(
            configure(VALUES | changed) or {},
            None,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            lambda _: None,
            gpus=self.gpus,
            allocations=self.allocations,
        )
        self.collector = AllocationCollector(node, lambda: self.time)

    def info(self) -> list[Labels]:
        """The labels of gpu_allocation_info."""
        return [it.labels for it in self.collector.collect() if it.metric.name == allocation.INFO.name]

    def success(self) -> dict[str, object]:
        found = (it for it in self.collector.collect() if it.metric is allocation.SUCCESS)
        return {it.labels["source"]: it.value for it in found}

    def ages(self) -> dict[str, object]:
        found = (it for it in self.collector.collect() if it.metric.name == "accel_exporter.source.age")
        return {it.labels["source"]: it.value for it in found}

    def problem(self) -> str:
        [problem] = self.collector.problems()
        return problem


def labels(device: str, index: int = 0, **more: str) -> Mapping[str, str]:
    return {"gpu": str(index), "gpu_uuid": WHOLE.format(index), "device": device, **GIVEN, **more}


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    return Subject(tmp_path, gpu(0), gpu(1, minor=3, migs=(mig(0, 1), mig(1, 2), mig(2, 2, 1))))


def test_pods_appear_and_vanish(subject: Subject) -> None:
    """A GPU belongs to a pod as long as the kubelet reports it, for the page and for look-ups by UUID."""
    with kubelet.kubelet(subject.socket) as running:
        subject.collector.read()
        assert ([], {}) == (subject.info(), subject.allocations.of(WHOLE.format(0)))

        running.pods = [pod("train-0", container("main", WHOLE.format(0)))]
        subject.collector.read()
        assert [labels(WHOLE.format(0))] == subject.info()
        expected = {"pod": "train-0", "namespace": "ml", "container": "main"}
        assert expected == subject.allocations.of(WHOLE.format(0))

        running.pods = []
        subject.collector.read()
        assert ([], {}) == (subject.info(), subject.allocations.of(WHOLE.format(0)))
        assert {"kubelet": 1} == subject.success()


def test_kinds_of_devices(subject: Subject) -> None:
    """Slices of time, MIG devices and GKE's ids are the GPUs they mean; an id that means none has no gpu."""
    slices = [f"{WHOLE.format(0)}::{number}" for number in (0, 1)]
    with kubelet.kubelet(
        subject.socket,
        pod("train-0", container("main", slices[0])),
        pod("serve-1", container("main", slices[1])),
        pod("mig-2", container("main", PART.format(0))),
        pod("gke-3", container("main", "nvidia0/vgpu1", "nvidia3/gi2")),
        pod("odd-4", container("main", "nvidia9")),
    ):
        subject.collector.read()
        found = subject.info()

    assert [
        labels(slices[0]),
        labels(slices[1], pod="serve-1"),
        labels(PART.format(0), 1, pod="mig-2", mig_uuid=PART.format(0)),
        labels("nvidia0/vgpu1", pod="gke-3"),
        labels("nvidia3/gi2", 1, pod="gke-3", mig_uuid=PART.format(1)),
        labels("nvidia3/gi2", 1, pod="gke-3", mig_uuid=PART.format(2)),
        {**GIVEN, "pod": "odd-4", "device": "nvidia9"},
    ] == found
    assert {} == subject.allocations.of(WHOLE.format(0))


def test_gpus_known_later(tmp_path: Path) -> None:
    """Until NVML is read a pod has its device without a GPU; no question to the kubelet is needed for it then."""
    subject = Subject(tmp_path)
    with kubelet.kubelet(subject.socket, pod("train-0", container("main", WHOLE.format(0)))):
        subject.collector.read()
    assert [{**GIVEN, "device": WHOLE.format(0)}] == subject.info()
    subject.gpus.serve(lambda: snapshot(gpu(0)), lambda _: True)
    assert [labels(WHOLE.format(0))] == subject.info()


def test_no_kubelet_yet(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    """A node without a kubelet lacks a source, which is no failure; when one comes, it is read."""
    subject.collector.read()
    with pytest.raises(Unavailable, match="neither a kubelet nor a Slurm mapping folder") as raised:
        subject.info()
    assert "--kubernetes.pod-resources-socket" in raised.value.remedy
    assert ([], []) == (caplog.messages, list(subject.collector.problems()))
    with kubelet.kubelet(subject.socket, pod("train-0", container("main", WHOLE.format(0)))):
        subject.collector.read()
        assert [labels(WHOLE.format(0))] == subject.info()


def test_no_source_at_all(tmp_path: Path) -> None:
    """With both sources switched off the reason names that."""
    subject = Subject(tmp_path, **{allocation.SOCKET: ""})
    subject.collector.read()
    with pytest.raises(Unavailable, match="no source is configured"):
        subject.info()


def test_the_kubelet_restarts(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    """While it is gone its last word counts for three intervals, then nothing does; afterwards all is as before."""
    pods = [pod("train-0", container("main", WHOLE.format(0)))]
    with kubelet.kubelet(subject.socket, *pods):
        subject.collector.read()
    subject.socket.unlink(missing_ok=True)
    subject.time = 3 * INTERVAL
    subject.collector.read()
    assert [labels(WHOLE.format(0))] == subject.info()
    assert ({"kubelet": 0}, {"allocation_kubelet": 3 * INTERVAL}) == (subject.success(), subject.ages())
    assert "No such file or directory" in subject.problem()

    subject.time += 1
    assert ([], {}) == (subject.info(), subject.allocations.of(WHOLE.format(0)))
    subject.collector.read()
    with pytest.raises(Unavailable):
        subject.info()

    with kubelet.kubelet(subject.socket, *pods):
        subject.collector.read()
        assert ([labels(WHOLE.format(0))], {"kubelet": 1}) == (subject.info(), subject.success())
    assert 1 == len(caplog.messages)


def test_a_kubelet_that_refuses(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    """The failure is in the log once and on the landing page; the last answer counts meanwhile."""
    with kubelet.kubelet(subject.socket, pod("train-0", container("main", WHOLE.format(0)))) as running:
        subject.collector.read()
        running.fail = (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        for _ in range(3):
            subject.collector.read()
        assert [labels(WHOLE.format(0))] == subject.info()
        assert {"kubelet": 0} == subject.success()
        assert ["rejected by rate limit" in subject.problem()] == [
            "rejected by rate limit" in it for it in caplog.messages
        ]
        running.fail = None
        subject.collector.read()
        assert ({"kubelet": 1}, []) == (subject.success(), list(subject.collector.problems()))


def test_an_invalid_pod(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    """Only the allocations of the invalid pod are omitted: the pod is counted, logged once, and on the landing page."""
    bad, good = pod("bad\n", container("main", WHOLE.format(1))), pod("train-0", container("main", WHOLE.format(0)))
    with kubelet.kubelet(subject.socket, bad, good):
        for _ in range(2):
            subject.collector.read()
            assert [labels(WHOLE.format(0))] == subject.info()
            assert [1] == [it.value for it in subject.collector.collect() if it.metric is allocation.INVALID]
    [line] = caplog.messages
    assert line.endswith("left out a pod: field 1 is no name: 'bad\\n'")
    assert [line] == list(subject.collector.problems())


def test_no_access(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that is not ours to use is a failure with a remedy."""

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(podresources, "container_devices", denied)
    subject.collector.read()
    assert {"kubelet": 0} == subject.success()
    assert f"{subject.socket} may not be used by this user: run as root, or grant access to it" == subject.problem()


def test_a_kubelet_that_hangs(subject: Subject) -> None:
    """A hanging kubelet delays the background thread only: neither a scrape nor closing waits for it."""
    released = threading.Event()
    patient, subject = subject, Subject(subject.socket.parent, **{allocation.INTERVAL: 2.0})
    with listening(subject.socket, lambda _: released.wait(PATIENCE)):
        patient.collector.start()
        assert ([], {}) == (patient.info(), patient.success())
        patient.collector.close()
        subject.collector.start()
        until(subject.success, "an attempt")
        assert "no answer within 2 s" in subject.problem()
        assert {"kubelet": 0} == subject.success()
        subject.collector.close()
        assert not released.is_set()
        released.set()


def test_in_the_background(subject: Subject) -> None:
    """A started collector reads by itself, publishes by UUID, and withdraws the allocations when it is closed."""
    uuid = WHOLE.format(0)
    with kubelet.kubelet(subject.socket, pod("train-0", container("main", uuid))):
        subject.collector.start()
        assert "train-0" == until(lambda: subject.allocations.of(uuid))["pod"]
        subject.collector.close()
        assert {} == subject.allocations.of(uuid)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Subject]:
    (tmp_path / "jobs").mkdir()
    yield Subject(tmp_path, gpu(0), gpu(1, migs=(mig(0, 1),)), **{allocation.FOLDER: str(tmp_path / "jobs")})


def test_slurm_jobs(jobs: Subject) -> None:
    """Jobs come and go with the files of their GPUs; where there is no kubelet that is all there is."""
    (jobs.folder / "0").write_text("1001\n")
    (jobs.folder / "1.1").write_text("1002\n")
    jobs.collector.read()
    first = {"gpu": "0", "gpu_uuid": WHOLE.format(0), "slurm_job_id": "1001"}
    second = {"gpu": "1", "gpu_uuid": WHOLE.format(1), "mig_uuid": PART.format(0), "slurm_job_id": "1002"}
    assert ([first, second], {"slurm": 1}) == (jobs.info(), jobs.success())
    assert {"hpc_job": "1001"} == jobs.allocations.of(WHOLE.format(0))

    (jobs.folder / "0").unlink()
    jobs.collector.read()
    assert [second] == jobs.info()


def test_a_malformed_folder(jobs: Subject) -> None:
    """Files that are no mapping, GPUs there are not and repeated lines cost nothing of what is right."""
    for name, text in {"0": "1001\n1001\n\n\x00\n", "9": "1003", "readme": "1004", "1.x": "1005"}.items():
        (jobs.folder / name).write_text(text)
    jobs.collector.read()
    assert [{"gpu": "0", "gpu_uuid": WHOLE.format(0), "slurm_job_id": "1001"}] == jobs.info()


def test_a_folder_that_is_not_there(jobs: Subject) -> None:
    """A configured folder that is missing is a failure, not a node without jobs."""
    jobs.folder.rmdir()
    jobs.collector.read()
    assert ([], {"slurm": 0}) == (jobs.info(), jobs.success())
    assert f"allocations of slurm are not known, {jobs.folder}: No such file or directory" == jobs.problem()


def test_both_sources(jobs: Subject) -> None:
    """The allocations of each source are there, whatever becomes of the other."""
    (jobs.folder / "0").write_text("1001\n")
    with kubelet.kubelet(jobs.socket, pod("train-0", container("main", WHOLE.format(0)))) as running:
        jobs.collector.read()
        expected = {"pod": "train-0", "namespace": "ml", "container": "main", "hpc_job": "1001"}
        assert expected == jobs.allocations.of(WHOLE.format(0))
        running.fail = (grpc.StatusCode.INTERNAL, "")
        jobs.time = 3 * INTERVAL + 1
        jobs.collector.read()
    assert [{"gpu": "0", "gpu_uuid": WHOLE.format(0), "slurm_job_id": "1001"}] == jobs.info()
    assert {"kubelet": 0, "slurm": 1} == jobs.success()


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector can be switched off and knows dcgm-exporter's variable for the folder."""
    assert None is configure(VALUES | {"collector.allocation": False})
    monkeypatch.setenv(allocation.FOLDER_VARIABLE, "/run/jobs")
    assert "/run/jobs" == (configure(VALUES) or {})[allocation.FOLDER]
    assert "/other" == (configure(VALUES | {allocation.FOLDER: "/other"}) or {})[allocation.FOLDER]


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")
def test_workloads_of_pods(tmp_path: Path) -> None:
    """The workload of a pod is on its GPUs, and known to others, until the list of pods is too old."""
    queued = {"jobset.sigs.k8s.io/jobset-name": "pretrain", "kueue.x-k8s.io/local-queue-name": "vision"}
    with (
        pods.api(tmp_path, pods.pod("train-0", **queued), pods.pod("idle", app="x")) as api,
        kubelet.kubelet(tmp_path / "kubelet.sock", pod("train-0", container("main", WHOLE.format(0)))),
    ):
        settings = {
            allocation.WORKLOADS: True,
            allocation.URL: api.url,
            allocation.TOKEN: str(api.token_file),
            allocation.AUTHORITY: str(api.ca),
        }
        subject = Subject(tmp_path, gpu(0), **settings)
        subject.collector.read()
        named = {"workload": "pretrain", "workload_kind": "jobset", "queue": "vision"}
        assert [labels(WHOLE.format(0), **named)] == subject.info()
        assert (named, {}) == (subject.node.workloads.of("ml", "train-0"), subject.node.workloads.of("ml", "idle"))

        api.token = "another"
        subject.time = 3 * INTERVAL + 1
        subject.collector.read()
        assert [labels(WHOLE.format(0))] == subject.info()
        assert {} == subject.node.workloads.of("ml", "train-0")


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")
def test_labels_of_pods(tmp_path: Path) -> None:
    """Configured labels are beside the kubelet's, under names of their own; without them all else is there."""
    with (
        pods.api(tmp_path, pods.pod("train-0", app="llm", other="x"), pods.pod("train-0", "prod", app="web")) as api,
        kubelet.kubelet(tmp_path / "kubelet.sock", pod("train-0", container("main", WHOLE.format(0)))),
    ):
        settings = {
            allocation.LABELS: ("app", "team"),
            allocation.URL: api.url,
            allocation.TOKEN: str(api.token_file),
            allocation.AUTHORITY: str(api.ca),
        }
        subject = Subject(tmp_path, gpu(0), **settings)
        subject.collector.read()
        assert [labels(WHOLE.format(0), label_app="llm")] == subject.info()
        assert {"kubelet": 1, "pods": 1} == subject.success()
        [metric] = {it.metric for it in subject.collector.collect() if it.metric.name == allocation.INFO.name}
        assert {"label_app", "label_team"} == set(metric.labels) - set(allocation.INFO.labels)

        api.token = "another"
        subject.time = 3 * INTERVAL + 1
        subject.collector.read()
        assert [labels(WHOLE.format(0))] == subject.info()
        assert {"kubelet": 1, "pods": 0} == subject.success()
        assert "HTTP status 401" in subject.problem()
