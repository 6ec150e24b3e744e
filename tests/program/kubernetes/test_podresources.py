"""The kubelet's PodResources API: a real gRPC server, and everything that can be in its place."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived

from exporter.kubernetes import podresources
from exporter.kubernetes.grpc import RpcError, call
from exporter.kubernetes.podresources import MOST_DEVICES, ContainerDevice, container_devices
from tests.standins import kubelet
from tests.standins.kubelet import METHOD, container, listening, pod
from tests.support import PATIENCE

pytestmark = pytest.mark.evidence(feature="GPUs of pods", on="stand-in")

UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
MIG = "MIG-265a219d-a49f-578a-825d-222c72699c16"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


def test_devices_of_containers(path: Path) -> None:
    """NVIDIA's devices of every container are returned, claimed ones too; CPUs, memory and other devices are not."""
    with kubelet.kubelet(
        path,
        pod("train-0", container("main", UUID, f"{MIG}::3"), container("sidecar")),
        pod("serve-1", container("llm", "gpu-x", resource="nvidia.com/mig-1g.10gb"), namespace="prod"),
        pod("dra-2", container("claims", claims=("gpu-0", "gpu-1"))),
    ):
        found = container_devices(path, PATIENCE)
    assert [
        ContainerDevice(UUID, "nvidia.com/gpu", "train-0", "ml", "main"),
        ContainerDevice(f"{MIG}::3", "nvidia.com/gpu", "train-0", "ml", "main"),
        ContainerDevice("gpu-x", "nvidia.com/mig-1g.10gb", "serve-1", "prod", "llm"),
        ContainerDevice("gpu-0", "gpu.nvidia.com", "dra-2", "ml", "claims"),
        ContainerDevice("gpu-1", "gpu.nvidia.com", "dra-2", "ml", "claims"),
    ] == found


def test_a_node_without_pods(path: Path) -> None:
    """No pod, no device: an empty answer is no error."""
    with kubelet.kubelet(path):
        assert [] == container_devices(path, PATIENCE)


def test_a_full_node(path: Path) -> None:
    """An answer of many frames, larger than any window of HTTP/2, is read whole."""
    pods = [
        pod(f"pod-{n:04}-{'x' * 200}", *(container(f"c{m}", f"{UUID}::{n}") for m in range(4))) for n in range(1000)
    ]
    with kubelet.kubelet(path, *pods):
        found = container_devices(path, PATIENCE)
    assert 4000 == len(found)
    assert f"{UUID}::999" == found[-1].device


def test_more_devices_than_there_can_be(path: Path) -> None:
    """A limit keeps a broken kubelet from filling the memory."""
    pods = [pod("a", container("c", *(f"gpu-{n}" for n in range(MOST_DEVICES + 1))))]
    with kubelet.kubelet(path, *pods), pytest.raises(ValueError, match=f"more than {MOST_DEVICES} GPUs"):
        container_devices(path, PATIENCE)


def test_an_answer_that_is_too_large(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading stops when the limit is passed, not when all is there."""
    monkeypatch.setattr(podresources, "MOST_BYTES", 10_000)
    pods = [pod("x" * 200, container("c")) for _ in range(100)]
    with kubelet.kubelet(path, *pods), pytest.raises(RpcError, match="larger than 10000 bytes"):
        container_devices(path, PATIENCE)


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "rejected by rate limit",
            "'RESOURCE_EXHAUSTED': 'rejected by rate limit'",
        ),
        (grpc.StatusCode.UNIMPLEMENTED, "", "'UNIMPLEMENTED'"),
        (grpc.StatusCode.INTERNAL, "ü\n%" + "x" * 500, r"'INTERNAL': 'ü\\n%xxx"),
    ],
)
def test_a_call_that_is_refused(path: Path, status: grpc.StatusCode, message: str, expected: str) -> None:
    """The status and the message are in the error, shortened and printable."""
    with kubelet.kubelet(path) as running:
        running.fail = (status, message)
        with pytest.raises(RpcError) as raised:
            container_devices(path, PATIENCE)
    assert expected.replace("\\\\", "\\") in str(raised.value)
    assert len(str(raised.value)) < 300


def test_another_method(path: Path) -> None:
    """A server without this API is an error that names it."""
    with kubelet.kubelet(path), pytest.raises(RpcError, match="UNIMPLEMENTED"):
        call(path, "/v1.PodResourcesLister/Other", b"", PATIENCE, 100)


def test_no_socket(path: Path) -> None:
    """A node without a kubelet and one with a silent kubelet are different errors."""
    with pytest.raises(FileNotFoundError):
        container_devices(path, PATIENCE)


def test_a_socket_that_nobody_listens_on(path: Path) -> None:
    """The socket left behind by a kubelet that ended is an error."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))
    with pytest.raises(ConnectionRefusedError):
        container_devices(path, PATIENCE)


def _silent(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


def _drop(connection: socket.socket) -> None:
    connection.recv(100)


def _http1(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    connection.recv(1 << 16)


def _broken(connection: socket.socket) -> None:
    connection.sendall(b"\0\0\5\4\0\0\0\0\0hello")  # settings come in sixes
    connection.recv(1 << 16)


def _pings(connection: socket.socket) -> None:
    server = H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    try:
        while True:
            connection.sendall(server.data_to_send())
            server.ping(b"12345678")
            time.sleep(0.01)
    except OSError:
        return


@pytest.mark.parametrize(
    ("serve", "error", "reason"),
    [
        (_silent, TimeoutError, "no answer within 0.5 s"),
        (_drop, OSError, "closed before|reset by peer"),
        (_http1, RpcError, "closed before the answer was complete"),
        (_broken, RpcError, "no HTTP/2, or a broken one"),
        (_pings, TimeoutError, "no answer within 0.5 s"),
    ],
)
def test_no_kubelet_at_the_socket(
    path: Path, serve: Callable[[socket.socket], None], error: type[Exception], reason: str
) -> None:
    """Something that hangs, hangs up, speaks another protocol or keeps us busy is an error after the time allowed."""
    with listening(path, serve), pytest.raises(error, match=reason):
        container_devices(path, 0.5 if error is TimeoutError else PATIENCE)


@pytest.mark.parametrize(
    ("headers", "body", "trailers", "reason"),
    [
        ({":status": "404"}, b"", {}, "HTTP status 404: no gRPC server"),
        ({":status": "200"}, b"\0\0\0\0\0", {"grpc-status": "x" * 99}, "gRPC status 'xxxx"),
        ({":status": "200"}, b"\0\0\0\0\0", {}, "gRPC status ''"),
        ({":status": "200"}, b"", {"grpc-status": "0"}, "not one uncompressed message"),
        ({":status": "200"}, b"\1\0\0\0\0", {"grpc-status": "0"}, "not one uncompressed message"),
        ({":status": "200"}, b"\0\0\0\0\5ab", {"grpc-status": "0"}, "not one uncompressed message"),
        ({":status": "200"}, b"\0\0\0\0\0\0\0\0\0\0", {"grpc-status": "0"}, "not one uncompressed message"),
    ],
)
def test_answers_that_are_none(
    path: Path, headers: dict[str, str], body: bytes, trailers: dict[str, str], reason: str
) -> None:
    """HTTP/2 that is not gRPC, or gRPC that is not one whole message, is an error that names the defect."""

    def serve(connection: socket.socket) -> None:
        server = H2Connection(H2Configuration(client_side=False))
        server.initiate_connection()
        requested = False
        while not requested:
            requested = any(isinstance(it, RequestReceived) for it in server.receive_data(connection.recv(1 << 16)))
        server.send_headers(1, list(headers.items()))
        server.send_data(1, body, end_stream=not trailers)
        if trailers:
            server.send_headers(1, list(trailers.items()), end_stream=True)
        connection.sendall(server.data_to_send())
        connection.recv(1 << 16)

    with listening(path, serve), pytest.raises(RpcError, match=reason):
        call(path, METHOD, b"", PATIENCE, 1000)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize(("user", "expected"), [(65534, "PermissionError"), (0, "ok")])
def test_which_user_may_connect(path: Path, user: int, expected: str) -> None:
    """The kubelet's socket is root's: root without any capability may use it, an unprivileged user may not."""
    program = (
        "import os, sys; from pathlib import Path\n"
        "from exporter.bpf.privileges import drop\nfrom exporter.kubernetes.grpc import call\n"
        "drop(()) if sys.argv[2] == '0' else os.setgroups([]) or os.setuid(int(sys.argv[2]))\n"
        "try:\n    call(Path(sys.argv[1]), '/v1.PodResourcesLister/List', b'', 60, 1000); print('ok')\n"
        "except OSError as error:\n    print(type(error).__name__)\n"
    )
    with kubelet.kubelet(path):
        path.chmod(0o700)
        for folder in (path.parent, path.parent.parent, path.parent.parent.parent):
            folder.chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-c", program, str(path), str(user)], capture_output=True, text=True, timeout=120
        )
    assert expected == done.stdout.strip(), done.stderr
