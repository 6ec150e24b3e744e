"""The real process with GPUs of the stand-in library, a kubelet that gives them to pods, and a Slurm prolog's files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.backend import Prometheus
from tests.program.process import Exporter
from tests.standins import kubelet, nvml, pods
from tests.standins.kubelet import Kubelet, container, pod
from tests.standins.nvml import UUID, Scenario
from tests.support import PATIENCE, labels_of, until

pytestmark = [
    pytest.mark.evidence(feature="GPUs of pods", on="stand-in"),
    pytest.mark.evidence(feature="GPUs of Slurm jobs", on="stand-in"),
]

FLAGS = (
    "--collector.disable-defaults",
    "--collector.nvml",
    "--collector.allocation",
    "--compat.dcgm",
    "--kubernetes.interval=1s",
    *(f"--collector.nvml.{name}-interval=0.5" for name in ("fast", "processes", "slow")),
)
OWN = "pod", "namespace", "container", "hpc_job"


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    nvml.build()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Kubelet]:
    """A kubelet at kubelet.sock, which gives nothing yet."""
    with kubelet.kubelet(tmp_path / "kubelet.sock") as made:
        yield made


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Exporter]]:
    started: list[Exporter] = []

    def start(*flags: str, **scenario: object) -> Exporter:
        variables = Scenario(tmp_path, **scenario).environment()
        socket = f"--kubernetes.pod-resources-socket={tmp_path / 'kubelet.sock'}"
        started.append(Exporter(tmp_path, *FLAGS, socket, *flags, **variables).await_ready())
        return started[-1]

    yield start
    for exporter in started:
        with suppress(ProcessLookupError):
            exporter.process.kill()
        exporter.process.wait(PATIENCE)


def series(exporter: Exporter, name: str) -> list[dict[str, str]]:
    """The labels of a family's series."""
    return [labels_of(text) for text in exporter.family(name)]


def owners(exporter: Exporter) -> dict[str, dict[str, str]]:
    """The owners on dcgm-exporter's series, by GPU and instance."""
    return {
        f"{it['gpu']}/{it['GPU_I_ID']}" if "GPU_I_ID" in it else it["gpu"]: {
            name: it[name] for name in OWN if name in it
        }
        for it in series(exporter, "DCGM_FI_DEV_FB_USED")
    }


def test_pods_process_gpus(start: Callable[..., Exporter], running: Kubelet, tmp_path: Path) -> None:
    """Prometheus joins power with pods by gpu_uuid; dcgm-exporter's series carry the pod of each GPU that has one."""
    running.pods = [
        pod("train-0", container("main", UUID.format(0), UUID.format(1))),
        pod("serve-1", container("llm", f"{UUID.format(2)}::0")),
        pod("serve-2", container("llm", f"{UUID.format(2)}::1"), namespace="prod"),
    ]
    exporter = start(gpus=4)
    exporter.await_(lambda: sum("gpu_uuid" in it for it in series(exporter, "gpu_allocation_info")) == 4)
    train = {"pod": "train-0", "namespace": "ml", "container": "main"}
    exporter.await_(lambda: {"0": train, "1": train, "2": {}, "3": {}} == owners(exporter))

    with Prometheus(tmp_path, exporter.address, []) as prometheus:
        query = "sum by (namespace, pod) (hw_power_watts * on (gpu_uuid) group_right () gpu_allocation_info)"

        def joined() -> dict[str, float]:
            return {dict(labels)["pod"]: value for labels, value in prometheus.query(query).items()}

        expected = {"train-0": 2 * 312.456, "serve-1": 312.456, "serve-2": 312.456}
        until(lambda: expected == pytest.approx(joined()), joined)

    running.pods = [pod("other", container("main", UUID.format(3)))]
    other = {"pod": "other", "namespace": "ml", "container": "main"}
    exporter.await_(lambda: {"0": {}, "1": {}, "2": {}, "3": other} == owners(exporter))
    assert ["other"] == [it["pod"] for it in series(exporter, "gpu_allocation_info")]


def test_pods_on_instances(start: Callable[..., Exporter], running: Kubelet) -> None:
    """A pod with a MIG device is on the series of its GPU instance and of no other."""
    exporter = start(**{"gpus": 1, "gpu0.mig": 2})
    exporter.await_(lambda: len(series(exporter, "gpu_mig_info")) == 2)
    first = series(exporter, "gpu_mig_info")[0]
    running.pods = [pod("train-0", container("main", first["mig_uuid"], resource="nvidia.com/mig-1g.10gb"))]
    exporter.await_(lambda: len(series(exporter, "gpu_allocation_info")) == 1)
    [info] = series(exporter, "gpu_allocation_info")

    assert (UUID.format(0), first["mig_uuid"], "train-0") == (info["gpu_uuid"], info["mig_uuid"], info["pod"])
    exporter.await_(lambda: sum(bool(it) for it in owners(exporter).values()) == 1)
    [(instance, owner)] = [(place, it) for place, it in owners(exporter).items() if it]
    assert instance.startswith("0/")
    assert {"pod": "train-0", "namespace": "ml", "container": "main"} == owner


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")
def test_labels_of_pods(start: Callable[..., Exporter], running: Kubelet, tmp_path: Path) -> None:
    """Labels of pods come over HTTPS with a token, onto the allocation and, as dcgm-exporter has them, its series."""
    running.pods = [pod("train-0", container("main", UUID.format(0)))]
    with pods.api(tmp_path, pods.pod("train-0", app="llm", secret="x")) as api:
        exporter = start(
            "--kubernetes.pod-labels=app,team",
            f"--kubernetes.pods-url={api.url}",
            f"--kubernetes.token-file={api.token_file}",
            f"--kubernetes.ca-file={api.ca}",
            gpus=1,
        )
        exporter.await_(lambda: any(it.get("app") == "llm" for it in series(exporter, "DCGM_FI_DEV_FB_USED")))
        [info] = series(exporter, "gpu_allocation_info")

    assert ("llm", "train-0", UUID.format(0)) == (info["label_app"], info["pod"], info["gpu_uuid"])
    assert "secret" not in exporter.get("/metrics")[1]
    assert pods.TOKEN not in exporter.log


def test_jobs_of_slurm(start: Callable[..., Exporter], tmp_path: Path) -> None:
    """Without a kubelet, the files that a prolog writes for dcgm-exporter name the job of each GPU."""
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    (jobs / "1").write_text("1001\n")
    exporter = start(f"--slurm.mapping-dir={jobs}", gpus=2)
    exporter.await_(lambda: owners(exporter) == {"0": {}, "1": {"hpc_job": "1001"}})

    expected = {"gpu": "1", "gpu_uuid": UUID.format(1), "slurm_job_id": "1001"}
    assert [expected] == series(exporter, "gpu_allocation_info")
    assert [{"source": "slurm"}] == series(exporter, "accel_exporter_allocation_success")


def test_a_kubelet_that_comes_later(start: Callable[..., Exporter], tmp_path: Path) -> None:
    """Without a kubelet the collector is unavailable, which is no error; when one comes, it is found by itself."""
    exporter = start(gpus=1)
    available = 'accel_exporter_collector_available{collector="allocation"}'
    exporter.await_(lambda: exporter.value(available) == 0)
    exporter.await_(lambda: "neither a kubelet nor a Slurm mapping folder" in exporter.log)
    assert 1 == exporter.log.count("neither a kubelet nor a Slurm mapping folder")

    with kubelet.kubelet(tmp_path / "kubelet.sock", pod("train-0", container("main", UUID.format(0)))):
        exporter.await_(lambda: owners(exporter).get("0", {}).get("pod") == "train-0")
        assert 1 == exporter.value(available)
    code = exporter.end()
    assert 0 == code
