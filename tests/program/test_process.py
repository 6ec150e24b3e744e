"""Process labels out of a made-up /proc and the kubelet's log folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.model import PROCESS_LABELS
from exporter.resolve import slurm, workload
from exporter.resolve.environment import variable
from exporter.resolve.process import ProcessTable, printable, start_time

CID = "3f1a" * 16
UID = "12ab34cd-56ef-78ab-90cd-ef1234567890"


class Now:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def stat(comm: bytes, started: int, pid: int = 7) -> bytes:
    before = b" ".join([b"S"] + [b"1"] * 18)
    return b"%d (%s) %s %d 4096 12 0\n" % (pid, comm, before, started)


def process(
    proc: Path,
    pid: int = 7,
    comm: bytes = b"python3",
    cgroup: str = "0::/",
    environ: bytes = b"HOME=/\0",
    started: int = 100,
) -> None:
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    (folder / "comm").write_bytes(comm + b"\n")
    (folder / "cgroup").write_text(cgroup + "\n")
    (folder / "environ").write_bytes(environ)
    (folder / "stat").write_bytes(stat(comm, started, pid))


def end(proc: Path, pid: int = 7) -> None:
    for file in (proc / str(pid)).iterdir():
        file.unlink()
    (proc / str(pid)).rmdir()


def test_plain_process(tmp_path: Path) -> None:
    """A process of no container has its pid and name, and no empty label."""
    process(tmp_path)

    assert {"pid": "7", "comm": "python3"} == ProcessTable(tmp_path, tmp_path).labels(7)


def test_unknown_pid(tmp_path: Path) -> None:
    """Of a process that is gone the pid alone is known."""
    assert {"pid": "9"} == ProcessTable(tmp_path, tmp_path).labels(9)


def test_ended_process_costs_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands of processes that ended before anyone looked, not every file is tried."""
    opened = list[str]()
    monkeypatch.setattr(os, "open", lambda path, *_: opened.append(str(path)) or (_ for _ in ()).throw(OSError))

    ProcessTable(tmp_path, tmp_path).labels(9)

    assert [str(tmp_path / "9" / "stat")] == opened


@pytest.mark.parametrize(
    ("environ", "value"),
    [
        (b"ABC=1\0", b"1"),
        (b"ABC=1", b"1"),
        (b"X=\0ABC=\0Y=2\0", b""),
        (b"XABC=1\0", None),
        (b"XABC=1\0ABC=2\0", b"2"),
        (b"X=ABC=1\0", None),
        (b"ABC=1\0ABC=2\0", b"1"),
        (b"ABCD=1\0", None),
        (b"", None),
    ],
)
def test_variable(environ: bytes, value: bytes | None) -> None:
    """A variable is found by its whole name, the first where there are several."""
    found = variable("ABC").search(environ)
    assert value == (found[1] if found else None)


def test_pod_by_container(tmp_path: Path) -> None:
    """The kubelet's container link names pod, namespace and container; the pod's UID is kept beside the labels."""
    process(tmp_path, cgroup=f"0::/kubepods/pod{UID}/{CID}")
    (tmp_path / "containers").mkdir()
    (tmp_path / "containers" / f"train-0_research_pytorch-{CID}.log").touch()

    identity = ProcessTable(tmp_path, tmp_path).identity(7)

    expected = {"container_id": CID, "pod": "train-0", "namespace": "research", "container": "pytorch"}
    assert {"pid": "7", "comm": "python3"} | expected == identity.labels
    assert UID == identity.pod_uid


def test_pod_by_uid(tmp_path: Path) -> None:
    """The kubelet's pod folder names pod and namespace where the container's link is missing."""
    process(tmp_path, cgroup=f"0::/kubepods/pod{UID}/{CID}")
    (tmp_path / "pods" / f"research_train-0_{UID}" / "pytorch").mkdir(parents=True)

    labels = ProcessTable(tmp_path, tmp_path).labels(7)

    assert {"pid": "7", "comm": "python3", "container_id": CID, "pod": "train-0", "namespace": "research"} == labels


def test_pod_named_later(tmp_path: Path) -> None:
    """Names that the kubelet writes after the first sight of a process are found at the next look."""
    now = Now()
    process(tmp_path, cgroup=f"0::/kubepods/pod{UID}/{CID}")
    table = ProcessTable(tmp_path, tmp_path, now=now)
    assert "pod" not in table.labels(7)
    (tmp_path / "containers").mkdir()
    (tmp_path / "containers" / f"train-0_research_pytorch-{CID}.log").touch()

    now.time += 6

    assert "train-0" == table.labels(7)["pod"]


def test_foreign_log_names(tmp_path: Path) -> None:
    """Files in the log folder that the kubelet did not name are passed over."""
    process(tmp_path, cgroup=f"0::/kubepods/pod{UID}/{CID}")
    (tmp_path / "containers").mkdir()
    for name in (f'a"b_c_d-{CID}.log', f"a_b-{CID}.log", f"a\nb_c_d-{CID}.log", "README"):
        (tmp_path / "containers" / name).touch()

    assert {"pid": "7", "comm": "python3", "container_id": CID} == ProcessTable(tmp_path, tmp_path).labels(7)


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        (b"HOME=/\0SLURM_JOB_ID=4242\0", "4242"),
        (b"SLURM_JOB_ID=1", "1"),
        (b"XSLURM_JOB_ID=1\0", ""),
        (b"SLURM_JOB_ID=1;rm\0", ""),
        (b"SLURM_JOB_ID=\0", ""),
        (b"SLURM_JOB_ID=12345678901\0", ""),
        (b"\xff\xfe=\x80\0SLURM_JOB_ID=3\0", "3"),
    ],
)
def test_slurm_environment(environ: bytes, job: str) -> None:
    """The job id of the environment counts when it is a number and nothing else."""
    assert job == slurm.job_id(environ)


def test_a_variable_that_is_cut(tmp_path: Path) -> None:
    """Of an environment of more than a MiB the variable at its end is unknown: half of its number is another job's."""
    cut = b"SLURM_JOB_ID=12"
    process(tmp_path, environ=b"A=" + b"x" * ((1 << 20) - 3 - len(cut)) + b"\0" + cut + b"345\0")

    assert "slurm_job_id" not in ProcessTable(tmp_path).labels(7)


def test_slurm_cgroup_wins(tmp_path: Path) -> None:
    """A process cannot name itself into another job than the one Slurm put it in."""
    process(tmp_path, cgroup="0::/system.slice/slurmstepd.scope/job_5/step_0", environ=b"SLURM_JOB_ID=6\0")
    process(tmp_path, pid=8, environ=b"SLURM_JOB_ID=6\0")
    table = ProcessTable(tmp_path, tmp_path)

    assert ("5", "6") == (table.labels(7)["slurm_job_id"], table.labels(8)["slurm_job_id"])


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"python3", "python3"),
        (b"a b", "a b"),
        ("größe".encode(), "größe"),
        (b"a\nb\t", r"a\nb\t"),
        (b'{x="1"}', '{x="1"}'),
        (b"\xff\xfe", r"\xff\xfe"),
        (b"\x00\x1b[31m", r"\x00\x1b[31m"),
        ("\u202eabc\u2028".encode(), r"\u202eabc\u2028"),
    ],
)
def test_printable(raw: bytes, shown: str) -> None:
    """A hostile name becomes one printable line that still distinguishes names."""
    assert shown == printable(raw)


@given(st.binary(max_size=64))
def test_printable_always(raw: bytes) -> None:
    """Any bytes become text that prints and encodes."""
    shown = printable(raw)

    assert shown.isprintable()
    assert len(shown.encode("utf-8")) <= 4 * len(raw)


@pytest.mark.parametrize("comm", [b"python3", b"a b", b") R 1 2 3", b"x) S (y", b"\n) Z 9", b""])
def test_start_time(tmp_path: Path, comm: bytes) -> None:
    """The start time is read behind any name."""
    process(tmp_path, comm=comm, started=123_456)

    assert 123_456 == start_time(tmp_path, 7)


def test_start_time_of_a_child() -> None:
    """The kernel's own format: this process started no earlier than its parent."""
    parent, own = start_time(Path("/proc"), os.getppid()), start_time(Path("/proc"), os.getpid())

    assert parent is not None and own is not None
    assert 0 <= parent <= own


@pytest.mark.parametrize("broken", [b"", b"7 (x) S 1", b"7 (x", b"\xff" * 4096])
def test_start_time_broken(tmp_path: Path, broken: bytes) -> None:
    """A stat file that is none gives no start time."""
    process(tmp_path)
    (tmp_path / "7" / "stat").write_bytes(broken)

    assert start_time(tmp_path, 7) is None


def test_kept_after_the_end(tmp_path: Path) -> None:
    """Labels read while a process lived stay, for its series outlive it."""
    now = Now()
    process(tmp_path)
    table = ProcessTable(tmp_path, tmp_path, now=now)
    table.labels(7)
    end(tmp_path)

    now.time += 60

    assert {"pid": "7", "comm": "python3"} == table.labels(7)


def test_read_once(tmp_path: Path) -> None:
    """A process that renames itself keeps its labels; after `forget` it has the new ones."""
    now = Now()
    process(tmp_path)
    table = ProcessTable(tmp_path, tmp_path, now=now)
    table.labels(7)
    process(tmp_path, comm=b"renamed")
    now.time += 60
    assert "python3" == table.labels(7)["comm"]

    table.forget(7)

    assert "renamed" == table.labels(7)["comm"]


def test_reused_pid(tmp_path: Path) -> None:
    """A pid that another process has meanwhile is noticed by its start time, without any word of the end."""
    now = Now()
    process(tmp_path, comm=b"old", started=100)
    table = ProcessTable(tmp_path, tmp_path, now=now)
    table.labels(7)
    process(tmp_path, comm=b"new", started=200)

    now.time += 6

    assert ("new", 200) == (table.labels(7)["comm"], table.identity(7).start_time)


def test_bounded(tmp_path: Path) -> None:
    """The table keeps no more processes than its limit, and keeps those used last."""
    for pid in (1, 2, 3):
        process(tmp_path, pid=pid, comm=b"old")
    table = ProcessTable(tmp_path, tmp_path, limit=2)
    for pid in (1, 2, 1, 3):
        table.labels(pid)
    for pid in (1, 2, 3):
        process(tmp_path, pid=pid, comm=b"new")

    assert ["old", "old", "new"] == [table.labels(pid)["comm"] for pid in (1, 3, 2)]


SLURM = b"SLURM_JOB_NAME=pretrain\0SLURM_JOB_PARTITION=h100\0SLURM_JOB_ACCOUNT=ml\0SLURM_STEP_ID=0\0SLURM_PROCID=3\0"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (b"HOME=/\0", {}),
        (
            SLURM + b"SLURM_ARRAY_TASK_ID=7\0SLURM_NTASKS=16\0",
            {"workload": "pretrain", "workload_kind": "slurm", "queue": "h100", "account": "ml", "step": "0"}
            | {"array_task": "7", "rank": "3", "world_size": "16"},
        ),
        (
            SLURM + b"RANK=25\0WORLD_SIZE=128\0TORCHELASTIC_RUN_ID=none\0",
            {"workload": "pretrain", "workload_kind": "slurm", "queue": "h100", "account": "ml", "step": "0"}
            | {"rank": "25", "world_size": "128"},
        ),
        (
            b"TORCHELASTIC_RUN_ID=llama\0RANK=2\0",
            {"workload": "llama", "workload_kind": "torchrun", "rank": "2"},
        ),
        (b"TORCHELASTIC_RUN_ID=none\0", {}),
        (
            b"TORCHELASTIC_RUN_ID=none\0MASTER_ADDR=n1\0MASTER_PORT=29500\0RANK=9\0WORLD_SIZE=16\0",
            {"workload": "n1:29500", "workload_kind": "pytorch", "rank": "9", "world_size": "16"},
        ),
        (b"MASTER_ADDR=localhost\0MASTER_PORT=29500\0RANK=0\0", {"rank": "0"}),
        (b"MASTER_ADDR=n1\0", {}),
        (b"MASTER_ADDR=::1\0MASTER_PORT=1\0JAX_COORDINATOR_ADDRESS=0.0.0.0:1234\0", {}),
        (b"JAX_COORDINATOR_ADDRESS=n1:1234\0", {"workload": "n1:1234", "workload_kind": "jax"}),
        (
            b"PMIX_NAMESPACE=prterun-n1-4711@1\0OMPI_COMM_WORLD_RANK=3\0OMPI_COMM_WORLD_SIZE=8\0",
            {"workload": "prterun-n1-4711@1", "workload_kind": "mpi", "rank": "3", "world_size": "8"},
        ),
        (
            b"TORCHELASTIC_RUN_ID=llama\0MASTER_ADDR=n1\0MASTER_PORT=1\0",
            {"workload": "llama", "workload_kind": "torchrun"},
        ),
        (b"MASTER_ADDR=" + b"n" * 63 + b"\0MASTER_PORT=1\0", {"workload": "n" * 61 + ":1", "workload_kind": "pytorch"}),
        (b"RAY_CLUSTER_NAME=serve\0TORCHELASTIC_RUN_ID=x\0", {"workload": "serve", "workload_kind": "raycluster"}),
        (b"OMPI_COMM_WORLD_RANK=1\0OMPI_COMM_WORLD_SIZE=4\0", {"rank": "1", "world_size": "4"}),
        (b"VLLM_DP_RANK=1\0VLLM_DP_SIZE=2\0VLLM_DP_RANK_LOCAL=0\0", {"rank": "1", "world_size": "2"}),
        (b"MY_RANK=1\0RANK=-1\0WORLD_SIZE=12345678901\0", {}),
        (b"SLURM_JOB_NAME=\x1b[2J\0", {}),
        (b"SLURM_JOB_NAME=" + b"a" * 200 + b"\0", {"workload": "a" * 63, "workload_kind": "slurm"}),
    ],
    ids=[
        "nothing",
        "slurm",
        "torchrun in slurm",
        "torchrun",
        "unnamed",
        "torchrun without a name",
        "on one node",
        "address without a port",
        "loopback",
        "jax",
        "pmix",
        "torchrun with a name",
        "long address",
        "ray",
        "mpi",
        "vllm",
        "other",
        "unprintable",
        "long",
    ],
)
def test_the_job_of_a_process(environ: bytes, expected: dict[str, str]) -> None:
    """Launchers name job and rank by variables; what they do not name is absent, and values are bounded."""
    assert expected == workload.workload(environ)


def test_labels_with_the_workload(tmp_path: Path) -> None:
    """The workload comes from the pod, else from the variables, and is absent if neither is known."""
    process(tmp_path, environ=SLURM)
    process(tmp_path, pid=8)
    table = ProcessTable(tmp_path, tmp_path)

    assert "pretrain" == table.named(7, lambda namespace, pod: {})["workload"]
    assert "llm" == table.named(7, lambda namespace, pod: {"workload": "llm"})["workload"]
    assert table.labels(8) == table.named(8, lambda namespace, pod: {})


def test_jobs_of_processes(tmp_path: Path) -> None:
    """Each process with a job has one series, for five minutes after the last look at it."""
    process(tmp_path, environ=SLURM)
    process(tmp_path, pid=8)
    now = Now()
    table = ProcessTable(tmp_path, tmp_path, now=now)
    table.labels(7), table.labels(8)

    [sample] = table.jobs()
    assert workload.INFO is sample.metric and 1 == sample.value
    assert {"pid": "7", "comm": "python3"} == {key: sample.labels[key] for key in ("pid", "comm")}
    assert ("pretrain", "3") == (sample.labels["workload"], sample.labels["rank"])
    assert {*sample.labels} <= {*PROCESS_LABELS, *workload.INFO.labels}
    now.time += 301
    table.labels(8)
    assert [] == [*table.jobs()]


def test_a_component_of_a_heterogeneous_job() -> None:
    """A process has the variables of the component that its cgroup's job id belongs to; the leader's id is another."""
    environ = (
        b"SLURM_JOB_ID=11741\0SLURM_HET_SIZE=2\0SLURM_JOB_NAME=pretrain\0SLURM_JOB_PARTITION=cpu\0"
        b"SLURM_JOB_ID_HET_GROUP_0=11741\0SLURM_JOB_PARTITION_HET_GROUP_0=cpu\0"
        b"SLURM_JOB_ID_HET_GROUP_1=11742\0SLURM_JOB_PARTITION_HET_GROUP_1=h100\0SLURM_PROCID=3\0"
    )
    named = {"workload": "pretrain", "workload_kind": "slurm", "rank": "3"}
    assert {**named, "queue": "h100", "het_group": "1"} == workload.workload(environ, "11742")
    assert {**named, "queue": "cpu", "het_group": "0"} == workload.workload(environ, "11741")
    assert {**named, "queue": "cpu"} == workload.workload(environ, "7") == workload.workload(environ)


def test_a_process_in_a_pod_with_a_known_workload(tmp_path: Path) -> None:
    """The workload of the pod counts before variables; the rank is the process's all the same."""
    process(
        tmp_path, cgroup=f"0::/kubepods/pod{UID}/{CID}", environ=b"TORCHELASTIC_RUN_ID=mine\0RANK=3\0WORLD_SIZE=8\0"
    )
    (tmp_path / "containers").mkdir()
    (tmp_path / "containers" / f"train-0_research_pytorch-{CID}.log").touch()
    table = ProcessTable(tmp_path, tmp_path)
    table.labels(7)
    known = {("research", "train-0"): {"workload": "pretrain", "workload_kind": "jobset", "queue": "vision"}}
    queue_only = {("research", "train-0"): {"queue": "vision"}}

    def job(pods: dict[tuple[str, str], dict[str, str]]) -> dict[str, str]:
        [sample] = table.jobs(lambda namespace, pod: pods.get((namespace, pod), {}))
        return {key: value for key, value in sample.labels.items() if key in workload.INFO.labels}

    assert {**known["research", "train-0"], "rank": "3", "world_size": "8"} == job(known)
    torchrun = {"workload": "mine", "workload_kind": "torchrun", "rank": "3", "world_size": "8"}
    assert torchrun == job({}) and {**torchrun, "queue": "vision"} == job(queue_only)


def test_container_of_a_process(tmp_path: Path) -> None:
    """A process in a container has a series with the container's id, also without variables of a launcher."""
    process(tmp_path, cgroup=f"0::/system.slice/docker-{CID}.scope")
    table = ProcessTable(tmp_path, tmp_path)
    table.labels(7)
    assert [{"pid": "7", "comm": "python3", "container_id": CID}] == [dict(it.labels) for it in table.jobs()]
