"""Families of processes that use a GPU, which have their sockets followed; and inference engines of processes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from exporter.serving.engines import engine
from exporter.serving.family import FamilyMember, families, members, processes

POD = "0::/kubepods.slice/kubepods-pod11111111_2222_3333_4444_555555555555.slice/cri-containerd-{}.scope\n"


def test_the_tree_of_a_user() -> None:
    """Front end, worker that uses the GPU, and the worker's sibling; not init and what else it started."""
    seen = {
        1: FamilyMember(0, ""),
        5: FamilyMember(1, ""),
        6: FamilyMember(5, ""),
        7: FamilyMember(5, ""),
        8: FamilyMember(1, ""),
    }
    assert {5, 6, 7} == members(seen, [6])


def test_the_pod_of_a_user() -> None:
    """Containers of the pod are followed; what started them, and other pods, are not."""
    seen = {
        1: FamilyMember(0, ""),
        2: FamilyMember(1, ""),
        10: FamilyMember(2, "pod"),
        11: FamilyMember(10, "pod"),
        20: FamilyMember(2, "pod"),
    }
    assert {10, 11, 20} == members({**seen, 30: FamilyMember(2, "another")}, [11])


def test_loops_and_ends() -> None:
    """A user that has ended has no family, and parents that form a circle, read at different times, end."""
    assert set() == members({}, [4])
    assert {2, 3} == members({2: FamilyMember(3, ""), 3: FamilyMember(2, "")}, [2])


def test_a_deep_tree_of_users() -> None:
    """Thousands of users below each other are looked up once each."""
    many = 5_000
    seen = {1: FamilyMember(0, ""), **{pid: FamilyMember(pid - 1, "") for pid in range(2, many)}}
    began = time.process_time()
    assert set(range(2, many)) == members(seen, range(many - 1, 1, -1))
    assert time.process_time() - began < 1.0  # 10 ms; a walk to the top for each took a minute


def test_from_proc(tmp_path: Path) -> None:
    """Names with parentheses and control groups of pods are read."""
    for pid, parent, container in ((1, 0, ""), (7, 1, "a" * 64), (8, 7, "a" * 64)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (x) R 9 ) S {parent} 1 1 0")
        (tmp_path / str(pid) / "cgroup").write_text(POD.format(container) if container else "0::/init.scope\n")
    (tmp_path / "9").mkdir()

    assert {1: 0, 7: 1, 8: 7} == {pid: it.parent for pid, it in processes(tmp_path).items()}
    assert {7, 8} == families(tmp_path, [8])


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/python3 /opt/venv/bin/vllm serve meta/llama", "vllm"),
        ("python3 -m vllm.entrypoints.openai.api_server --model x", "vllm"),
        ("VLLM::APIServer", "vllm"),
        ("python3 -m sglang.launch_server --model-path x", "sglang"),
        ("/usr/bin/python3 /usr/local/bin/trtllm-serve llama", "tensorrt-llm"),
        ("/opt/tritonserver/bin/tritonserver --model-repository=/models", "triton"),
        ("./llama-server -m /models/vllm.gguf", "llama.cpp"),
        ("text-generation-router --port 80", "tgi"),
        ("python3 -m dynamo.frontend", "dynamo"),
        ("python3 -m uvicorn app:app", "unknown"),
    ],
)
def test_engines(tmp_path: Path, command: str, name: str) -> None:
    """An engine is known by its program or module."""
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "stat").write_text("5 (x) S 1")
    (tmp_path / "5" / "cmdline").write_bytes(b"\0".join(command.encode().split()) + b"\0")
    assert name == engine(tmp_path, 5)
    assert "unknown" == engine(tmp_path, 6)
