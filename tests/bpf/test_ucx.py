"""Calls of UCX are counted exactly, with their bytes and errors; on a stand-in and on the libraries of wheels."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from exporter.collectors.ucx import FLAGS, Ucx
from tests import wheels
from tests.bpf.cuda_node import Script, build_standins, started
from tests.bpf.fixtures import each, once
from tests.bpf.nixl_agents import initiator_and_target
from tests.bpf.observed import Observed, running
from tests.support import PATIENCE, free_port, until

pytestmark = [pytest.mark.needs_bpf]
standin = pytest.mark.evidence(feature="UCX calls", on="stand-in")
real = pytest.mark.evidence(feature="UCX calls", on="real software")

CALLS = "ucx_calls_total"
BYTES = "ucx_io_bytes_total"
UNSIZED = "ucx_calls_unsized_total"
ERRORS = "ucx_errors_total"
NOWHERE = Path("/nonexistent")

PRELUDE = """
class Param(ctypes.Structure):
    _fields_ = [('fields', ctypes.c_uint32), ('flags', ctypes.c_uint32), ('request', c_void_p), ('cb', c_void_p),
                ('datatype', c_uint64), ('rest', c_uint64 * 9)]
class Iov(ctypes.Structure): _fields_ = [('buffer', c_void_p), ('length', c_size_t)]
class Sgl(ctypes.Structure):
    _fields_ = [('fields', c_uint64), ('buffers', c_void_p), ('lengths', c_void_p), ('memhs', c_void_p),
                ('counts', c_void_p), ('strides', c_void_p)]
IOV, SGL, GENERIC, PENDING = 2, 4, 8 | 7, 1 << 40
def of(datatype): return byref(Param(fields=8, datatype=datatype))
PLAIN = byref(Param(datatype=IOV))  # which counts for nothing without its bit
def contig(size): return of(size << 3)
def returns(value): lib.standin_returns(c_void_p(value & (1 << 64) - 1))
def tag(count, param=PLAIN, buffer=None): lib.ucp_tag_send_nbx(None, buffer, size(count), c_uint64(7), param)
def put(count, param=PLAIN, buffer=None, function=None):
    (function or lib.ucp_put_nbx)(None, buffer, size(count), c_uint64(7), c_uint64(7), param)
def get(*arguments): put(*arguments, function=lib.ucp_get_nbx)
def active(count, param=PLAIN, buffer=None):
    lib.ucp_am_send_nbx(None, 3, None, size(77), buffer, size(count), param)
"""


class Worker(Script):
    """A Python process that calls a libucp through ctypes; `run` executes lines in it and gives their `out`."""

    def __init__(self, library: str | Path = "libucp.so.0", **arguments: Any) -> None:
        super().__init__(library, **arguments)
        self.run(PRELUDE)


observe = partial(running, Ucx, FLAGS, grace=1.0)


observed = once(observe)
job = each(Worker)


def calls(observed: Observed, pid: int) -> dict[tuple[str, ...], int]:
    return observed.by(CALLS, pid, "api", "result")


def moved(observed: Observed, pid: int) -> dict[tuple[str, ...], int]:
    return observed.by(BYTES, pid, "api", "direction")


@standin
def test_23_calls(observed: Observed) -> None:
    """23 sends by two threads, 23 writes and 23 reads, in each of two processes."""
    with started(observed, Worker()) as first, started(observed, Worker()) as second:
        for job in (first, second):
            job.run(
                "thread = threading.Thread(target=lambda: [tag(1000) for _ in range(11)])\n"
                "thread.start()\n"
                "for _ in range(12): tag(1000)\n"
                "thread.join()\n"
                "for _ in range(23): returns(PENDING); put(4099); get(7, contig(11)); active(5)"
            )
        for job in (first, second):
            names = {"tag_send": "completed", "put": "pending", "get": "completed", "am_send": "completed"}
            assert {(f"ucp_{name}_nbx", result): 23 for name, result in names.items()} == calls(observed, job.pid)
            sent = {"tag_send": 1000, "put": 4099, "am_send": 5}
            expected = {(f"ucp_{name}_nbx", "transmit"): 23 * size for name, size in sent.items()}
            assert expected | {("ucp_get_nbx", "receive"): 23 * 77} == moved(observed, job.pid)
            assert {} == observed.values(UNSIZED, job.pid) == observed.values(ERRORS, job.pid)
    assert {} == observed.lost


@standin
def test_lists(observed: Observed, job: Worker) -> None:
    """The bytes of lists are their sums, as far as they can be known; what cannot is counted apart."""
    job.run(
        "def iov(n, length): return (Iov * n)(*(Iov(8, length) for _ in range(n)))\n"
        "def sgl(n, length, fields=3):\n"
        "    global kept; kept = (c_size_t * n)(*[length] * n)\n"
        "    return byref(Sgl(fields, 8, ctypes.addressof(kept)))\n"
        "tag(1, of(IOV), iov(1, 5)); tag(9, of(IOV), iov(9, 1000)); active(3, of(IOV), iov(3, 11))\n"
        "tag(0, of(IOV)); tag(65536, of(IOV), iov(65536, 1)); put(17, of(SGL), sgl(17, 23))\n"
        "get(1000, of(SGL), sgl(1000, 3))"
    )
    assert {
        ("ucp_tag_send_nbx", "transmit"): 5 + 9000 + 65536,
        ("ucp_am_send_nbx", "transmit"): 33,
        ("ucp_put_nbx", "transmit"): 17 * 23,
        ("ucp_get_nbx", "receive"): 3000,
    } == moved(observed, job.pid)
    assert {} == observed.values(UNSIZED, job.pid)
    job.run(
        "tag(65537, of(IOV), iov(65537, 1)); tag(2, of(IOV), c_void_p(64)); tag(1, of(IOV), iov(1, 1 << 60))\n"
        "tag(1, of(GENERIC)); tag(1, of(1)); tag(1 << 40, contig(1 << 40)); tag(1 << 50); tag(1, c_void_p(8))\n"
        "put(2, of(SGL), sgl(2, 1, 1)); put(2, of(SGL), sgl(2, 1, 11))"
    )
    expected = {"ucp_tag_send_nbx": 8, "ucp_put_nbx": 2}
    assert expected == observed.by(UNSIZED, job.pid, "api")
    assert 5 + 9000 + 65536 == moved(observed, job.pid)["ucp_tag_send_nbx", "transmit"]


@standin
def test_errors(observed: Observed, job: Worker) -> None:
    """Errors count by function and constant, and move no bytes; receives and connections have results only."""
    job.run(
        "for _ in range(23): returns(-25); tag(1000)\n"
        "returns(-80); put(1); returns(-100); put(1); returns(-101); put(1)\n"
        "returns(-6); lib.ucp_ep_create(None, None, None); lib.ucp_ep_create(None, None, None)\n"
        "put(1000, function=lib.ucp_tag_recv_nbx); returns(PENDING); lib.ucp_ep_flush_nbx(None, None)"
    )
    assert {
        ("ucp_tag_send_nbx", "-25", "UCS_ERR_CONNECTION_RESET"): 23,
        ("ucp_put_nbx", "-80", "UCS_ERR_ENDPOINT_TIMEOUT"): 1,
        ("ucp_put_nbx", "-100", ""): 1,
        ("ucp_ep_create", "-6", "UCS_ERR_UNREACHABLE"): 1,
    } == observed.by(ERRORS, job.pid, "api", "code", "error")
    assert {
        ("ucp_tag_send_nbx", "error"): 23,
        ("ucp_put_nbx", "error"): 2,
        ("ucp_put_nbx", "pending"): 1,
        ("ucp_ep_create", "error"): 1,
        ("ucp_ep_create", "completed"): 1,
        ("ucp_tag_recv_nbx", "completed"): 1,
        ("ucp_ep_flush_nbx", "pending"): 1,
    } == calls(observed, job.pid)
    assert {("ucp_put_nbx", "transmit"): 1} == moved(observed, job.pid)


SENDING = {
    "ucp_tag_send_nbx": "None, buffer, size(1000), c_uint64(7), PLAIN",
    "ucp_tag_send_sync_nbx": "None, buffer, size(1000), c_uint64(7), PLAIN",
    "ucp_stream_send_nbx": "None, buffer, size(1000), PLAIN",
    "ucp_am_send_nbx": "None, 3, None, size(77), buffer, size(1000), PLAIN",
    "ucp_put_nbx": "None, buffer, size(1000), c_uint64(7), c_uint64(7), PLAIN",
    "ucp_get_nbx": "None, buffer, size(1000), c_uint64(7), c_uint64(7), PLAIN",
}
OTHERS = {
    "ucp_tag_recv_nbx": "None, buffer, size(1000), c_uint64(7), c_uint64(7), PLAIN",
    "ucp_tag_msg_recv_nbx": "None, buffer, size(1000), None, PLAIN",
    "ucp_stream_recv_nbx": "None, buffer, size(1000), None, PLAIN",
    "ucp_am_recv_data_nbx": "None, None, buffer, size(1000), PLAIN",
    **dict.fromkeys(("ucp_ep_close_nbx", "ucp_ep_flush_nbx", "ucp_worker_flush_nbx"), "None, PLAIN"),
    "ucp_ep_create": "None, None, None",
}
"""The functions that are probed, with arguments in the order of ucp.h (UCX 1.22)."""


@standin
def test_every_function(observed: Observed, job: Worker) -> None:
    """23 calls of each that are completed, 7 that are pending and 3 that fail; those that send or read have bytes."""
    results = {"completed": (0, 23), "pending": ("PENDING", 7), "error": (-25, 3)}
    job.run("buffer = None")
    for function, arguments in (SENDING | OTHERS).items():
        for returned, count in results.values():
            job.run(f"for _ in range({count}): returns({returned}); lib.{function}({arguments})")
    expected = {(function, result): results[result][1] for function in SENDING | OTHERS for result in results}
    expected["ucp_ep_create", "completed"] += expected.pop(("ucp_ep_create", "pending"))  # it returns a status
    assert expected == calls(observed, job.pid)
    ways = {function: "receive" if function == "ucp_get_nbx" else "transmit" for function in SENDING}
    assert {(function, way): 30_000 for function, way in ways.items()} == moved(observed, job.pid)
    assert dict.fromkeys(SENDING | OTHERS, 3) == observed.by(ERRORS, job.pid, "api")
    assert (SENDING | OTHERS).keys() == observed.collector.object.types.enum("api").keys()


@standin
def test_older_functions_count_once(observed: Observed, job: Worker) -> None:
    """A function without _nbx, which calls the one with it, is one call of that."""
    job.run("for _ in range(23): lib.ucp_tag_send_nb(None, None, size(10), c_uint64(3 << 3), c_uint64(7), None)")
    assert {("ucp_tag_send_nbx", "completed"): 23} == calls(observed, job.pid)
    assert {("ucp_tag_send_nbx", "transmit"): 690} == moved(observed, job.pid)


@standin
def test_a_killed_process(observed: Observed) -> None:
    """Calls before the end of the process stay counted, and no row is left in the kernel."""
    with started(observed, Worker()) as job:
        job.run("for _ in range(23): tag(1000)")
        job.process.kill()
        job.process.wait()
        until(lambda: not observed.kernel("calls", job.pid), "its rows taken")
    assert {("ucp_tag_send_nbx", "completed"): 23} == calls(observed, job.pid)
    assert {("ucp_tag_send_nbx", "transmit"): 23_000} == moved(observed, job.pid)
    assert [] == observed.kernel("in_flight", job.pid)


@standin
def test_without_return_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls count where return probes may not be used; results, bytes and errors are not known."""
    monkeypatch.setattr("exporter.bpf.trial.Trial.returns_allowed", lambda *_: (False, "this is a test"))
    build_standins()
    with observe() as observed, Worker() as job:
        until(lambda: job.pid in observed.collector.ledger, "known")
        job.run("for _ in range(23): tag(1000); returns(-1); put(1)")
        assert {("ucp_tag_send_nbx", "unknown"): 23, ("ucp_put_nbx", "unknown"): 23} == calls(observed, job.pid)
        for metric in (BYTES, UNSIZED, ERRORS):
            assert {} == observed.values(metric, job.pid)


def libucp(folder: Path) -> Path:
    return next(it for it in folder.rglob("libucp*.so*") if not it.is_symlink())


def listens(port: int) -> bool:
    """Return whether a TCP socket listens on a port; a connection would be taken for the client's."""
    tables = (Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6"))
    rows = [line.split() for table in tables for line in table]
    return any(int(row[1].rpartition(":")[2], 16) == port and row[3] == "0A" for row in rows)


@real
@pytest.mark.parametrize(
    ("test", "function", "direction", "more"),
    [
        ("tag_bw", "ucp_tag_send_nbx", "transmit", 0),
        ("ucp_put_bw", "ucp_put_nbx", "transmit", 1),  # one by which the other side sees the end
        ("ucp_get", "ucp_get_nbx", "receive", 0),
        ("stream_bw", "ucp_stream_send_nbx", "transmit", 0),
        ("ucp_am_bw", "ucp_am_send_nbx", "transmit", 0),
    ],
)
def test_ucx_perftest(observed: Observed, test: str, function: str, direction: str, more: int) -> None:
    """Two processes of UCX's own benchmark over TCP: the calls and bytes of its iterations."""
    folder = wheels.folder(wheels.UCX_12)
    program = next(it for it in folder.rglob("ucx_perftest") if it.parent.name == "bin")
    program.chmod(0o755)
    library = str(libucp(folder))
    with started(observed, Worker(library, libraries=NOWHERE)):  # so that it is probed before they begin
        port, iterations, size = str(free_port()), 2311, 4099
        command = [program, "-p", port, "-t", test, "-n", str(iterations), "-w", "0", "-s", str(size)]
        environment = os.environ | {"LD_LIBRARY_PATH": str(Path(library).parent), "UCX_TLS": "tcp,self,sm"}
        quiet: Any = {"env": environment, "stdout": subprocess.DEVNULL}
        with subprocess.Popen(command, **quiet) as server:
            try:
                until(lambda: listens(int(port)), "the server")
                with subprocess.Popen([*command, "127.0.0.1"], **quiet) as client:
                    assert 0 == client.wait(PATIENCE)
            finally:
                server.kill()
        until(lambda: calls(observed, client.pid), "its calls")
        made = {result: count for (name, result), count in calls(observed, client.pid).items() if name == function}
        assert {"completed", "pending"} >= made.keys() and iterations + more == sum(made.values())
        assert (iterations + more) * size == moved(observed, client.pid)[function, direction]
        assert {} == observed.values(UNSIZED, client.pid)


@real
@pytest.mark.parametrize("wheel", [wheels.NIXL_10, wheels.NIXL_15], ids=["1.0", "1.5"])
def test_below_nixl(observed: Observed, wheel: str) -> None:
    """Transfers of NIXL's agents with the libucp that auditwheel renamed have the bytes of NIXL's own telemetry."""
    folder = wheels.folder(wheel)
    with initiator_and_target(observed, folder, libucp(folder)) as (initiator, _):
        reported = initiator.run(
            "for operation in (nixl.NIXL_READ, nixl.NIXL_WRITE):\n"
            "    for _ in range(23):\n"
            "        it = me.createXferReq(operation, parts(mine, 10, 4096), parts(remote, 10, 4096), 'target', '',\n"
            "                              [backend])\n"
            "        wait(it, me.postXferReq(it, '')); me.releaseXferReq(it)\n"
            "out = telemetry"
        )
        assert [40_960] * 46 == reported
        found = moved(observed, initiator.pid)
        assert 23 * 40_960 == found["ucp_get_nbx", "receive"] == found["ucp_put_nbx", "transmit"]
        assert {} == observed.values(UNSIZED, initiator.pid) == observed.values(ERRORS, initiator.pid)


@real
def test_a_peer_that_cannot_be_reached(observed: Observed) -> None:
    """A call of the real library that fails counts with the code that the job got."""
    library = libucp(wheels.folder(wheels.UCX_12))
    with started(observed, Worker(library, libraries=NOWHERE)) as job:
        job.run("sys.stdout = os.fdopen(os.dup(1), 'w'); os.dup2(2, 1)")  # where the library writes its warnings
        made = job.run(
            "os.environ.update(UCX_TLS='tcp,self', UCX_LOG_LEVEL='fatal')\n"
            "lib.ucp_ep_create.restype = ctypes.c_int8\n"
            "class Context(ctypes.Structure): _fields_ = [('fields', c_uint64), ('features', c_uint64),\n"
            "                                             ('rest', c_uint64 * 30)]\n"
            "context, worker, ep = c_void_p(), c_void_p(), c_void_p()\n"
            "assert 0 == lib.ucp_init_version(1, 22, byref(Context(1, 1)), None, byref(context))\n"
            "assert 0 == lib.ucp_worker_create(context, byref((c_uint64 * 40)()), byref(worker))\n"
            "out = [lib.ucp_ep_create(worker, byref((c_uint64 * 40)()), byref(ep)) for _ in range(23)]"
        )
        assert 1 == len(set(made)) and made[0] < 0
        found = observed.by(ERRORS, job.pid, "api", "code", "error")
        assert [("ucp_ep_create", str(made[0]))] == [key[:2] for key in found] and [23] == list(found.values())
        assert all(key[2].startswith("UCS_ERR_") for key in found)


@real
def test_nothing_of_it_is_left_out(observed: Observed) -> None:
    """Every function of UCX 1.22 that sends, receives, reads or writes is hooked, but for atomic operations."""
    library = str(libucp(wheels.folder(wheels.UCX_12)))
    with started(observed, Worker(library, libraries=NOWHERE)):
        assert 0 == observed.value("accel_exporter_probe_symbols_uncovered", library=library)
        assert 0 == observed.value("accel_exporter_probe_symbols_missing", library=library)
        attached = observed.values("accel_exporter_probe_attached", library=library)
        assert 14 == len(attached) and {1} == set(attached.values())


@real
def test_the_names_of_errors() -> None:
    """The constants are those of the header in the wheel."""
    import re

    from exporter.ucx.codes import error_name

    header = next(wheels.folder(wheels.UCX_12).rglob("ucs/type/status.h")).read_text()
    found = {int(code): name for name, code in re.findall(r"(UCS_ERR_\w+)\s+= *(-\d+)", header)}
    bounds = {code for code, name in found.items() if re.search("FIRST|LAST", name)}
    assert {code: name for code, name in found.items() if code not in bounds} == {
        code: error_name(code) for code in range(-100, 0) if error_name(code)
    }
