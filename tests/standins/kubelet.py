"""The kubelet's PodResources API for tests: a real gRPC server on a socket, and servers that are none."""

from __future__ import annotations

import importlib.util
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
from grpc_tools import protoc

PROTO = Path(__file__).parent / "podresources.proto"
METHOD = "/v1.PodResourcesLister/List"


@cache
def messages() -> ModuleType:
    """The message classes, compiled from the .proto by the official compiler."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["protoc", f"-I{PROTO.parent}", f"--python_out={folder}", str(PROTO)]
        assert 0 == protoc.main(command)
        spec = importlib.util.spec_from_file_location("podresources_pb2", Path(folder, "podresources_pb2.py"))
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module


def container(name: str, *devices: str, resource: str = "nvidia.com/gpu", claims: tuple[str, ...] = ()) -> Any:
    """A container with devices of one resource, claimed devices of NVIDIA's driver, and CPUs and memory as others."""
    pb = messages()
    numa = pb.TopologyInfo(nodes=[pb.NUMANode(ID=1)])
    made = pb.ContainerResources(name=name, cpu_ids=range(64, 96))
    made.memory.add(memory_type="memory", size=1 << 40, topology=numa)
    made.devices.add(resource_name="rdma/hca", device_ids=["mlx5_0"], topology=numa)
    if devices:
        made.devices.add(resource_name=resource, device_ids=devices, topology=numa)
    for device in claims:
        claimed = pb.ClaimResource(driver_name="gpu.nvidia.com", pool_name="node-1", device_name=device)
        claimed.cdi_devices.add(name=f"k8s.gpu.nvidia.com/claim=0123-{device}")
        other = pb.ClaimResource(driver_name="dra.example.com", pool_name="node-1", device_name="gpu-7")
        made.dynamic_resources.add(claim_name="gpus", claim_namespace="ml", claim_resources=[claimed, other])
    return made


def pod(name: str, *containers: Any, namespace: str = "ml") -> Any:
    return messages().PodResources(name=name, namespace=namespace, containers=containers)


class Kubelet:
    """A stand-in of the kubelet with replaceable answers; `fail` is a gRPC status to answer with instead."""

    def __init__(self, path: Path) -> None:
        self.pods: list[Any] = []
        self.fail: tuple[grpc.StatusCode, str] | None = None
        self.calls = 0
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers((self._handler(),))
        self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    def close(self) -> None:
        self._server.stop(None).wait()

    def _handler(self) -> grpc.GenericRpcHandler:
        pb = messages()
        answer = grpc.unary_unary_rpc_method_handler(
            self._list,
            request_deserializer=pb.ListPodResourcesRequest.FromString,
            response_serializer=pb.ListPodResourcesResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": answer})

    def _list(self, _: Any, context: grpc.ServicerContext) -> Any:
        self.calls += 1
        if self.fail:
            context.abort(*self.fail)
        return messages().ListPodResourcesResponse(pod_resources=self.pods)


@contextmanager
def kubelet(path: Path, *pods: Any) -> Iterator[Kubelet]:
    """A kubelet that knows these pods."""
    running = Kubelet(path)
    running.pods = list(pods)
    try:
        yield running
    finally:
        running.close()


@contextmanager
def listening(path: Path, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """Something at a socket that is no kubelet: `serve` gets each connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(8)
        ended = threading.Event()

        def accept() -> None:
            while not ended.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)
