"""Container, pod and job out of cgroup paths as runtimes, kubelets and Slurm write them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.resolve.cgroup import Cgroup, parse

CID = "3f1a" * 16
INNER = "b07e" * 16
UID = "12ab34cd-56ef-78ab-90cd-ef1234567890"
FLAT = UID.replace("-", "_")
HASH = "0123456789abcdef" * 2
SLICE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{FLAT}.slice"

FORMS = {
    "v2 containerd, systemd driver": (f"0::{SLICE}/cri-containerd-{CID}.scope", Cgroup(CID, UID)),
    "v2 containerd, cgroupfs driver": (f"0::/kubepods/burstable/pod{UID}/{CID}", Cgroup(CID, UID)),
    "v2 guaranteed pod": (f"0::/kubepods.slice/kubepods-pod{FLAT}.slice/cri-containerd-{CID}.scope", Cgroup(CID, UID)),
    "v2 CRI-O": (f"0::{SLICE}/crio-{CID}.scope", Cgroup(CID, UID)),
    "v2 CRI-O, delegated": (f"0::{SLICE}/crio-{CID}.scope/container", Cgroup(CID, UID)),
    "v2 CRI-O monitor": (f"0::{SLICE}/crio-conmon-{CID}.scope", Cgroup("", UID)),
    "v2 dockershim": (f"0::{SLICE}/docker-{CID}.scope", Cgroup(CID, UID)),
    "v2 static pod": (
        f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{HASH}.slice/crio-{CID}.scope",
        Cgroup(CID, HASH),
    ),
    "v2 kubelet's own root": (f"0::/kubelet.slice/kubelet{SLICE}/cri-containerd-{CID}.scope", Cgroup(CID, UID)),
    "v2 seen from another namespace": (
        f"0::/../../kubepods-besteffort-pod{FLAT}.slice/cri-containerd-{CID}.scope",
        Cgroup(CID, UID),
    ),
    "v2 kind: a pod in a container that is a node": (
        f"0::/system.slice/docker-{INNER}.scope/kubelet.slice/kubelet-kubepods.slice"
        f"/kubelet-kubepods-pod{FLAT}.slice/cri-containerd-{CID}.scope",
        Cgroup(CID, UID),
    ),
    "v2 docker in a pod": (f"0::/kubepods/pod{UID}/{INNER}/docker/{CID}", Cgroup(CID, UID)),
    "v2 docker, systemd driver": (f"0::/system.slice/docker-{CID}.scope", Cgroup(CID)),
    "v2 docker, cgroupfs driver": (f"0::/docker/{CID}", Cgroup(CID)),
    "v2 docker with an init of its own": (f"0::/docker/{CID}/init.scope", Cgroup(CID)),
    "v2 rootless docker": (
        f"0::/user.slice/user-1000.slice/user@1000.service/app.slice/docker-{CID}.scope",
        Cgroup(CID),
    ),
    "v2 podman": (f"0::/machine.slice/libpod-{CID}.scope/container", Cgroup(CID)),
    "v2 podman pod": (f"0::/machine.slice/machine-libpod_pod_{INNER}.slice/libpod-{CID}.scope", Cgroup(CID)),
    "v2 podman monitor": (f"0::/machine.slice/libpod-conmon-{CID}.scope", Cgroup()),
    "v2 rootless podman": (
        f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{CID}.scope/container",
        Cgroup(CID),
    ),
    "v2 nerdctl": (f"0::/system.slice/nerdctl-{CID}.scope", Cgroup(CID)),
    "v2 removed cgroup": (f"0::{SLICE}/cri-containerd-{CID}.scope (deleted)", Cgroup(CID, UID)),
    "v1 docker": (f"12:pids:/docker/{CID}\n11:memory:/docker/{CID}\n1:name=systemd:/docker/{CID}", Cgroup(CID)),
    "v1 kubepods": (f"11:devices:/kubepods/besteffort/pod{UID}/{CID}\n1:name=systemd:/", Cgroup(CID, UID)),
    "v1 systemd driver": (f"4:cpu,cpuacct:{SLICE}/docker-{CID}.scope", Cgroup(CID, UID)),
    "v1 containerd with colons": (
        f"10:memory:/system.slice/containerd.service/kubepods-burstable-pod{FLAT}.slice:cri-containerd:{CID}",
        Cgroup(CID, UID),
    ),
    "hybrid: only one hierarchy knows": (f"9:cpuset:/\n5:devices:/kubepods/pod{UID}/{CID}\n0::/", Cgroup(CID, UID)),
    "v1 ECS": (f"9:memory:/ecs/{HASH}/{CID}", Cgroup(CID)),
    "v1 Slurm": ("6:memory:/slurm/uid_1000/job_4242/step_0/task_1", Cgroup(slurm_job_id="4242")),
    "v1 Slurm, several slurmd": ("6:memory:/slurm_node7/uid_0/job_17/step_batch", Cgroup(slurm_job_id="17")),
    "v2 Slurm": (
        "0::/system.slice/slurmstepd.scope/job_991/step_0/user/task_0",
        Cgroup(slurm_job_id="991"),
    ),
    "v2 Slurm, several slurmd": ("0::/system.slice/node7_slurmstepd.scope/job_5/step_extern", Cgroup(slurm_job_id="5")),
    "v2 Slurm job in podman": (
        f"0::/system.slice/slurmstepd.scope/job_8/step_0/user/libpod-{CID}.scope",
        Cgroup(CID, slurm_job_id="8"),
    ),
}
NOTHING = {
    "empty": "",
    "root": "0::/",
    "a service": "0::/system.slice/ssh.service",
    "a login": "0::/user.slice/user-1000.slice/session-3.scope",
    "63 digits": f"0::/docker/{CID[:-1]}",
    "65 digits": f"0::/docker/{CID}0",
    "capitals": f"0::/docker/{CID.upper()}",
    "no boundary": f"0::/docker/x{CID}",
    "a file ending": f"0::/docker/{CID}.mount",
    "half a UID": "0::/kubepods/pod12ab34cd-56ef",
    "dashes and underscores mixed": "0::/kubepods/pod12ab34cd-56ef_78ab-90cd-ef1234567890",
    "not a pod": f"0::/tripod{UID}",
    "Slurm with a SLUID": "0::/system.slice/slurmstepd.scope/s4A7BQ2XK9DM3ZT/step_0",
    "a job outside Slurm": "0::/user.slice/job_12/step_0",
    "Slurm without a number": "0::/system.slice/slurmstepd.scope/job_x",
    "digits of another script": "0::/system.slice/slurmstepd.scope/job_٤٢",
}


@pytest.mark.parametrize("form", FORMS)
def test_form(form: str) -> None:
    """Each runtime's and driver's path gives its ids."""
    text, expected = FORMS[form]
    assert expected == parse(text + "\n")


@pytest.mark.parametrize("form", NOTHING)
def test_no_id(form: str) -> None:
    """Paths that only look alike give nothing."""
    assert Cgroup() == parse(NOTHING[form] + "\n")


PIECES = st.sampled_from(
    [
        CID,
        UID,
        FLAT,
        HASH,
        "/",
        ":",
        "pod",
        "docker-",
        ".scope",
        "conmon-",
        "/slurm/uid_0/job_",
        "1",
        "\n",
        "0::",
        "\0",
        "\x85",
        "é",
    ]
)


@given(st.one_of(st.text(), st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=20).map("".join)))
def test_any_text(text: str) -> None:
    """Whatever a path contains, the results are hex ids, UUIDs and numbers, or nothing."""
    found = parse(text)

    assert re.fullmatch(r"(?a:[0-9a-f]{64})?", found.container_id)
    assert re.fullmatch(r"([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32})?", found.pod_uid)
    assert re.fullmatch(r"([0-9]{1,10})?", found.slurm_job_id)
