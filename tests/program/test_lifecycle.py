"""Reloading and releasing over a network: from another network namespace, and to an own address that is no loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.standins.served import Served

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip"), reason="a network takes root and iproute2 to make"
)
HERE, THERE = "198.51.100.1", "198.51.100.2"
POST = """if True:
    import http.client, sys
    connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=10)
    connection.request("POST", sys.argv[3], headers={"Host": sys.argv[1]})
    print(connection.getresponse().status)
"""


@pytest.fixture
def network() -> Iterator[list[str]]:
    """The command that runs another in a network namespace with the address THERE, which is connected to HERE."""
    name = f"lifecycle{os.getpid()}"
    here, there = f"l{os.getpid()}h", f"l{os.getpid()}t"
    script = f"""
        ip netns add {name} && ip link add {here} type veth peer name {there} netns {name} &&
        ip addr add {HERE}/30 dev {here} && ip link set {here} up &&
        ip -n {name} addr add {THERE}/30 dev {there} && ip -n {name} link set {there} up
    """
    try:
        made = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"no network can be made here: {made.stderr.strip()}")
        yield ["ip", "netns", "exec", name]
    finally:
        subprocess.run(["ip", "link", "del", here], capture_output=True)
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def post(prefix: list[str], port: int, path: str) -> int:
    words = [*prefix, "python3", "-c", POST, HERE, str(port), path]
    return int(subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout)


@pytest.mark.parametrize("enabled", [False, True])
def test_from_the_network(network: list[str], enabled: bool) -> None:
    """Another machine is refused without the flag; root on this one is not, whichever of its addresses is used."""
    calls: list[object] = []

    def release(seconds: float) -> bool:
        calls.append(seconds)
        return True

    paths = ("/-/reload", "/-/release-gpus")
    words = {"listen_address": (f"{HERE}:0",), "enable_lifecycle": enabled}
    with Served([], reload=lambda: calls.append("reload"), release=release, **words) as served:
        assert [200 if enabled else 403] * 2 == [post(network, served.port, path) for path in paths]
        assert (["reload", 300.0] if enabled else []) == calls
        assert [200] * 2 == [post([], served.port, path) for path in paths]
