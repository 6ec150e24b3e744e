"""The place of a node: hostlists, Slurm's files, the site's file, and labels of nodes in Kubernetes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from exporter.options import SettingsError
from exporter.topology import inventory, node_labels, place, slurm
from exporter.topology.hostlist import matches
from exporter.topology.place import Place

pytestmark = pytest.mark.evidence(feature="place of a node", on="stand-in")

CONF = """
# Three levels, in any order; names have no case.
SWITCHNAME=core Switches=spine[0-1] LinkSpeed=100
SwitchName=spine0 Switches=leaf[0-3]
SwitchName=spine1 Switches=leaf[4-7]   # the other half
SwitchName=leaf3 \\
  Nodes=node[097-128],login
SwitchName = "leaf4" Nodes="node[129-160]" LinkSpeed = 100
BlockName=b1 Nodes=node[001-128]
BlockSizes=18,36
"""
YAML = """
- topology: flat
  flat: true
- topology: other
  tree: {switches: [{switch: wrong, nodes: "node[001-999]"}]}
- topology: fabric
  cluster_default: true
  tree:
    switches:
      - {switch: core, children: "spine[0-1]"}
      - {switch: spine0, children: "leaf[0-3]"}
      - {switch: leaf3, nodes: "node[097-128]"}
- topology: racks
  block: {block_sizes: [18], blocks: [{block: 7, nodes: "node[100-117]"}]}
"""


@pytest.mark.parametrize(
    ("expression", "names", "others"),
    [
        ("a", "a", "b aa A"),
        ("n[1-3,7],x", "n1 n2 n3 n7 x", "n0 n4 n01 n n1x x1 xn1"),
        ("n[08-12]", "n08 n09 n10 n12", "n8 n008 n13 n07"),
        ("n[8-12]", "n8 n10 n12", "n08 n7 n012"),
        ("n[098-102]", "n098 n100 n102", "n98 n0100 n1000"),
        ("r[1-2]n[01-04].x", "r1n01.x r2n04.x", "r3n01.x r1n1.x r1n05.x r1n01ax"),
        ("n[0-999999999],m", "n0 n123456789 m", "n1000000000 n00"),
        ("n[5]", "n5", "n[5] n"),
        ("a.b", "a.b", "axb"),
    ],
)
def test_hostlists(expression: str, names: str, others: str) -> None:
    """A hostlist has the names that Slurm's `scontrol show hostnames` prints of it, and no others."""
    assert [True] * len(names.split()) == [matches(expression, name) for name in names.split()]
    assert [False] * len(others.split()) == [matches(expression, name) for name in others.split()]


@pytest.mark.parametrize(
    "expression",
    ["", ",", "a,,b", "a[", "a]", "a[]", "a[1-]", "a[x]", "a[1-2-3]", "a[1],", "a[99999999999]", "a b", "n[1]" * 9],
)
def test_no_hostlists(expression: str) -> None:
    """Text that is no hostlist, or stands for too many hosts, is an error."""
    with pytest.raises(ValueError, match=r"hostlist"):
        matches(expression, "a")


def test_hostile_hostlists() -> None:
    """Neither long lists nor many brackets take more than a moment."""
    began = time.process_time()
    assert not matches(",".join(f"n[{at}-999999999]x" for at in range(10_000)), "n" + "1" * 200)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(("name", "text"), [("topology.conf", CONF), ("topology.yaml", YAML)])
def test_slurm(tmp_path: Path, name: str, text: str) -> None:
    """The switch of a node and those above it, and its block; of a node that is not in the file nothing is known."""
    (path := tmp_path / name).write_text(text)
    block = "b1" if name.endswith("conf") else "7"
    assert {"leaf": "leaf3", "spine": "spine0", "core": "core", "block": block} == slurm.place(path, "node101").labels
    assert {} == slurm.place(path, "elsewhere").labels
    if name.endswith("conf"):
        assert {"leaf": "leaf4", "spine": "spine1", "core": "core"} == slurm.place(path, "node130").labels
        path.write_bytes(text.replace("\n", "\r\n").encode())  # as some editors save it
        assert "leaf3" == slurm.place(path, "node101").labels["leaf"]


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("t.yaml", "a: [", "no valid YAML"),
        ("t.yaml", "{a: 1}", "no list of topologies"),
        ("t.yaml", "- !!int ''", "no valid YAML"),
        ("t.yaml", "- !!bool x", "no valid YAML"),
        ("t.yaml", "- !!timestamp x", "no valid YAML"),
        ("t.yaml", "- 2026-99-99", "no valid YAML"),
        ("t.yaml", "[" * 100_000, "no valid YAML"),
        ("t.yaml", "- {topology: a, tree: {switches: [{switch: s, nodes: 'n['}]}}", "no hostlist"),
        ("t.yaml", "x" * (1 << 18 | 1), "larger than"),
        ("t.conf", "x" * (place.MOST_BYTES + 1), "larger than"),
        ("t.conf", "SwitchName=s Nodes=n[", "no hostlist"),
        ("t.conf", "SwitchName=s\x01 Nodes=n1", "not printable"),
        ("t.conf", f"SwitchName={'s' * 129} Nodes=n1", "128 characters"),
        ("t.conf", "SwitchName=s Nodes=a\n" * (slurm.MOST_ENTRIES + 1), "more than"),
    ],
)
def test_wrong_slurm_files(tmp_path: Path, name: str, text: str, why: str) -> None:
    """A file without a topology is one error, in a moment."""
    (path := tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=why):
        slurm.place(path, "n1")


def test_long_lines_of_slurm(tmp_path: Path) -> None:
    """A file with anything else in one long line keeps nobody waiting."""
    path = tmp_path / "topology.conf"
    began = time.process_time()
    for text in ("x", "x ", 'x="', "= "):
        path.write_text(text * (1 << 20))
        assert {} == slurm.place(path, "n1").labels
    assert time.process_time() - began < 5


def test_loops_of_switches(tmp_path: Path) -> None:
    """Switches that are above themselves end after three levels."""
    (path := tmp_path / "t.conf").write_text("SwitchName=a Switches=b Nodes=n1\nSwitchName=b Switches=a\n")
    assert {"leaf": "a", "spine": "b", "core": "a"} == slurm.place(path, "n1").labels


def test_the_sites_file(tmp_path: Path) -> None:
    """Later lines replace earlier ones; a device has switches of its own."""
    lines = ["* zone=eu rack=none  # all", "n[01-32] rack=r7 leaf=l3", "", "n02 device=mlx5_1 leaf=l4", "n33 rack=r8"]
    (path := tmp_path / "topology").write_text("\n".join(lines))
    found = inventory.place(path, "n02")
    assert Place({"zone": "eu", "rack": "r7", "leaf": "l3"}, {"mlx5_1": {"leaf": "l4"}}) == found
    assert Place({"zone": "eu", "rack": "none"}) == inventory.place(path, "n34")
    path.write_text("\ufeffn1\tleaf=l1\r\n")  # as some editors save it
    assert Place({"leaf": "l1"}) == inventory.place(path, "n1")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("n1 rak=7", "line 2: 'rak=7' is not one of region, zone"),
        ("n1 rack=", "'rack=' is not one of"),
        ("n[ rack=7", "line 2: no hostlist"),
        ("n1", "line 2: nothing is known of 'n1'"),
        ("rack=7", "nothing is known of 'rack=7': a line is NODES NAME=VALUE"),
        ("n1 device=mlx5_0", "nothing is known of"),
        ("n1 device=a rack=7", "a device has leaf, spine, core only"),
        (f"n1 rack={'x' * 129}", "is not one of"),
        ("\n".join(f"n1 device=d{at} leaf=l" for at in range(65)), "more than 64 devices"),
    ],
)
def test_wrong_lines(tmp_path: Path, line: str, why: str) -> None:
    """The first wrong line is the error, also where it is about other nodes."""
    (path := tmp_path / "topology").write_text(f"* zone=a\n{line}\n")
    with pytest.raises(ValueError, match=why):
        inventory.place(path, "n1")


def test_no_regular_file(tmp_path: Path) -> None:
    """A pipe, a device or bytes that are no text keep nobody waiting."""
    os.mkfifo(pipe := tmp_path / "pipe")
    (binary := tmp_path / "binary").write_bytes(b"\xff\xfe")
    for path in (pipe, Path("/dev/zero"), binary):
        with pytest.raises(ValueError, match=r"regular|decode"):
            inventory.place(path, "n1")


def node(**labels: str) -> bytes:
    return json.dumps({"kind": "PartialObjectMetadata", "metadata": {"name": "n", "labels": labels}}).encode()


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "eu"}, {"zone": "a", "region": "eu"}),
        (
            {f"network.topology.nvidia.com/{it}": it for it in ("accelerator", "leaf", "spine", "core")},
            {"nvlink_domain": "accelerator", "leaf": "leaf", "spine": "spine", "core": "core"},
        ),
        (
            {f"fabric.topograph.run/tier-{it}": f"s{it}" for it in range(4)}
            | {"accelerator.topograph.run/domain": "d"},
            {"nvlink_domain": "d", "leaf": "s0", "spine": "s1", "core": "s2"},
        ),
        (
            {f"network.topology.nvidia.com/tier-{it}": f"s{it}" for it in range(4)},
            {"leaf": "s0", "spine": "s1", "core": "s2"},
        ),
        (
            {"topology.k8s.aws/ultraserver-id": "us-1", "network.topology.nvidia.com/accelerator": "cr-1"},
            {"nvlink_domain": "us-1"},
        ),
        (
            {"nvidia.com/gpu.clique": "u.1", "network.topology.nvidia.com/accelerator": "x"},
            {"nvlink_domain": "u.1"},
        ),
        (
            {f"topology.k8s.aws/network-node-layer-{it}": f"nn{it}" for it in (1, 2, 3)},
            {"core": "nn1", "spine": "nn2", "leaf": "nn3"},
        ),
        (
            {"cloud.google.com/gce-topology-block": "b", "cloud.google.com/gce-topology-subblock": "s"},
            {"spine": "b", "leaf": "s"},
        ),
        ({"example.com/rack": "r", "topology.kubernetes.io/rack": "x"}, {"rack": "r"}),
        ({"topology.kubernetes.io/zone": "", "other": "x"}, {}),
    ],
)
def test_labels_of_nodes(labels: dict[str, str], expected: dict[str, str]) -> None:
    """Labels of Kubernetes, topograph, the GPU operator, EKS, GKE and the site."""
    assert expected == node_labels.labels_of(node(**labels), {"rack": "example.com/rack"})


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b"{}", b'{"metadata": 1}', b'{"metadata": {"labels": [1]}}', b"[" * 10**5]
)
def test_no_node(answer: bytes) -> None:
    """Another answer is an error."""
    with pytest.raises(ValueError, match=r".+"):
        node_labels.labels_of(answer, {})


def test_values_that_are_no_labels() -> None:
    """Values that are no text, long or not printable are unknown."""
    metadata = {"labels": {"topology.kubernetes.io/zone": 1, "topology.kubernetes.io/region": "a\n", "x": "y" * 500}}
    assert {} == node_labels.labels_of(json.dumps({"metadata": metadata}).encode(), {})


def test_own_labels() -> None:
    """A label of the site is checked when the exporter starts."""
    assert {"rack": "example.com/rack"} == node_labels.own_labels(["rack=example.com/rack"])
    for wrong in ("rack", "rac=x", "rack=", "rack=a b"):
        with pytest.raises(SettingsError, match="such as rack=example.com/rack"):
            node_labels.own_labels([wrong])
    with pytest.raises(SettingsError, match=r"needs collector.topology.node-url outside a pod"):
        node_labels.url_of("", {})
    inside = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443", "NODE_NAME": "a/b"}
    assert "https://[fd00::1]:6443/api/v1/nodes/a%2Fb?resourceVersion=0" == node_labels.url_of("", inside)
