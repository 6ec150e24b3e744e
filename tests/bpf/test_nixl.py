"""Transfers of NIXL are counted exactly: ends, bytes, times, peers, errors; on a stand-in and on NVIDIA's wheels."""

from __future__ import annotations

from functools import partial

import pytest

from exporter.collectors.nixl import FLAGS, Nixl
from tests import wheels
from tests.bpf.cuda_node import Script, build_standins, started
from tests.bpf.fixtures import each, once
from tests.bpf.nixl_agents import NOWHERE, initiator_and_target, libnixl, ucx_plugin
from tests.bpf.observed import Observed, running
from tests.support import until

pytestmark = [pytest.mark.needs_bpf]
standin = pytest.mark.evidence(feature="NIXL transfers", on="stand-in")
real = pytest.mark.evidence(feature="NIXL transfers", on="real software")

TRANSFERS = "nixl_transfers_total"
BYTES = "nixl_transfer_bytes_total"
UNSIZED = "nixl_transfers_unsized_total"
DURATION = "nixl_transfer_duration_seconds"
IN_FLIGHT = "nixl_transfers_in_flight"
ERRORS = "nixl_errors_total"

PRELUDE = """
lib.standin_request.restype = c_void_p
post_, poll_, release_ = (getattr(lib, '_ZNK9nixlAgent' + name) for name in (
    '11postXferReqEP12nixlXferReqHPK21nixlAgentOptionalArgs', '13getXferStatusEP12nixlXferReqH',
    '14releaseXferReqEP12nixlXferReqH'))
register_ = lib._ZN9nixlAgent11registerMemERK12nixlDescListI12nixlBlobDescEPK21nixlAgentOptionalArgs
UCX, UCX_MO, GDS, NOT_PROBED = range(4)
def request(operation=0, backend=UCX, count=1, length=1000, peer='decode-0'):
    return c_void_p(lib.standin_request(operation, backend, size(count), size(length), peer.encode()))
def returns(it, posts, status): lib.standin_returns(it, posts, status); return it
AGENT = c_void_p(8)  # it is not used
def post(it): return post_(AGENT, it, None)
def poll(it): return poll_(AGENT, it)
def release(it): return release_(AGENT, it)
def whole(it):  # posted, polled twice while it is under way and twice after its end, released
    returns(it, 1, 1); post(it); poll(it); poll(it); returns(it, 1, 0); poll(it); poll(it); release(it)
"""


class Agent(Script):
    """A Python process that calls the stand-in through ctypes; `run` executes lines in it and gives their `out`."""

    def __init__(self) -> None:
        super().__init__("libnixl.so")
        self.run(PRELUDE)


observe = partial(running, Nixl, FLAGS, grace=1.0)


observed = once(observe)
job = each(Agent)


def ends(observed: Observed, pid: int) -> dict[tuple[str, ...], int]:
    return observed.by(TRANSFERS, pid, "operation", "backend", "peer", "status")


def sums(observed: Observed, metric: str, pid: int) -> dict[tuple[str, ...], int]:
    return observed.by(metric, pid, "operation", "backend", "peer")


@standin
def test_23_transfers(observed: Observed) -> None:
    """23 reads by two threads and 23 writes, in each of two processes, of several descriptors and to several peers."""
    with started(observed, Agent()) as first, started(observed, Agent()) as second:
        for job in (first, second):
            job.run(
                "thread = threading.Thread(target=lambda: [whole(request(count=7)) for _ in range(11)])\n"
                "thread.start()\n"
                "for _ in range(12): whole(request(count=7))\n"
                "thread.join()\n"
                "for _ in range(23): whole(request(1, GDS, 5, 4099, 'decode-1'))"
            )
        for job in (first, second):
            reads, writes = ("read", "UCX", "decode-0"), ("write", "GDS", "decode-1")
            assert {(*reads, "success"): 23, (*writes, "success"): 23} == ends(observed, job.pid)
            assert {reads: 23 * 7000, writes: 23 * 5 * 4099} == sums(observed, BYTES, job.pid)
            assert {reads: 0, writes: 0} == sums(observed, IN_FLIGHT, job.pid)
            took = observed.by(DURATION, job.pid, "operation", "backend")
            assert {reads[:2]: 23, writes[:2]: 23} == {key: sum(value.counts) for key, value in took.items()}
            assert {} == sums(observed, UNSIZED, job.pid) == observed.values(ERRORS, job.pid)
            assert [] == observed.kernel("active", job.pid)
    assert {} == observed.lost


@standin
def test_time_is_from_the_post_to_the_observed_end(observed: Observed, job: Agent) -> None:
    """A transfer of which the end is seen 50 ms after the post is in that bucket; one done at the post is not."""
    slow, quick = job.run(
        "times = [time.monotonic()]\n"
        "it = request(); post(it); time.sleep(0.05); poll(it); returns(it, 1, 0); poll(it)\n"
        "times.append(time.monotonic())\n"
        "post(returns(request(), 0, 0)); times.append(time.monotonic()); out = times[1] - times[0], times[2] - times[1]"
    )
    took = observed.value(DURATION, job.pid)
    assert 0.05 <= took.sum <= slow + quick and 2 == sum(took.counts)
    below = [bound for bound in took.bounds if bound <= 0.05]
    assert (quick <= below[-1]) <= sum(took.counts[: len(below)]) <= 1


@standin
def test_in_flight(observed: Observed, job: Agent) -> None:
    """Transfers that were posted are in flight until their end was seen, or they were released or posted again."""
    key = ("read", "UCX", "decode-0")
    job.run("all = [request() for _ in range(23)]\nfor it in all: post(it); poll(it)")
    assert {key: 23} == sums(observed, IN_FLIGHT, job.pid)
    assert {} == ends(observed, job.pid) == sums(observed, BYTES, job.pid)
    job.run(
        "for it in all[:5]: poll(returns(it, 1, 0))\n"
        "for it in all[5:12]: release(it); poll(it)\n"
        "for it in all[12:15]: post(it)\n"
        "for it in all[15:17]: poll(returns(it, 1, -3)); poll(it)"
    )
    assert {key: 9} == sums(observed, IN_FLIGHT, job.pid)
    expected = {"success": 5, "released": 7, "unseen": 3, "error": 2}
    assert {(*key, status): count for status, count in expected.items()} == ends(observed, job.pid)
    assert {key: 5000} == sums(observed, BYTES, job.pid)


@standin
def test_errors(observed: Observed, job: Agent) -> None:
    """Calls that fail count by function and constant; a post that is refused leaves the active transfer as it was."""
    job.run(
        "for _ in range(23): post(returns(request(), -10, 1))\n"
        "post(returns(request(-1), -2, 1))\n"
        "it = request(); post(it); lib.standin_returns(it, -7, 1)\n"
        "(ctypes.c_int * 1).from_address(it.value)[0] = -1\n"
        "post(it)\n"
        "for _ in range(3): poll(None)\n"
        "register_(AGENT, None, None)\n"
        "release(returns(request(), 1, -99))"
    )
    names = ("api", "code", "error")
    assert {
        ("postXferReq", "-10", "NIXL_ERR_REMOTE_DISCONNECT"): 23,
        ("postXferReq", "-2", "NIXL_ERR_INVALID_PARAM"): 1,
        ("postXferReq", "-7", "NIXL_ERR_REPOST_ACTIVE"): 1,
        ("getXferStatus", "-1", "NIXL_ERR_NOT_POSTED"): 3,
        ("registerMem", "-2", "NIXL_ERR_INVALID_PARAM"): 1,
        ("releaseXferReq", "-99", ""): 1,
    } == observed.by(ERRORS, job.pid, *names)
    assert {("read", "UCX", "decode-0", "error"): 23} == ends(observed, job.pid)
    assert {("read", "UCX", "decode-0"): 1} == sums(observed, IN_FLIGHT, job.pid)


@standin
def test_what_is_not_known(observed: Observed, job: Agent) -> None:
    """Bytes that cannot be known count nowhere: too many descriptors, hostile ones, a backend that is not probed."""
    job.run(
        "whole(request(count=65536, length=1))\n"
        "whole(request(count=65537, length=1))\n"
        "whole(request(count=3, length=1 << 62))\n"
        "whole(request(count=0))\n"
        "def misled(begin, end): it = request(); lib.standin_mislead(it, c_uint64(begin), c_uint64(end)); whole(it)\n"
        "misled(4096, 4096 + 32 * 7); misled(64, 32); misled(0, (1 << 64) - 32); misled(0, 33)\n"
        "whole(request(7))\n"
        "whole(request(backend=NOT_PROBED))"
    )
    known = ("UCX", "decode-0")
    nothing = ("unknown", "unknown", "unknown")
    assert {("read", *known, "success"): 8, ("unknown", *known, "success"): 1, (*nothing, "success"): 1} == ends(
        observed, job.pid
    )
    assert {("read", *known): 65536, ("unknown", *known): 1000} == sums(observed, BYTES, job.pid)
    assert {("read", *known): 6, nothing: 1} == sums(observed, UNSIZED, job.pid)


@standin
def test_a_backend_that_is_made_of_others(observed: Observed, job: Agent) -> None:
    """A backend that passes halves of a transfer on to others is one transfer, with the bytes of all of it."""
    job.run("for _ in range(23): whole(request(backend=UCX_MO, count=4))")
    assert {("read", "UCX_MO", "decode-0", "success"): 23} == ends(observed, job.pid)
    assert {("read", "UCX_MO", "decode-0"): 23 * 4000} == sums(observed, BYTES, job.pid)


@standin
def test_names_of_peers_are_bounded(observed: Observed, job: Agent) -> None:
    """A name that is too long is cut off; one that is no text, or empty, harms nothing."""
    job.run(
        "whole(request(peer='x' * 5000)); whole(request(peer='')); whole(request(peer='a\\n\"b'))\n"
        "it = request(peer='abc'); (ctypes.c_ubyte * 1).from_address(\n"
        "    c_uint64.from_address(it.value + 16 + 40).value)[0] = 0xff; whole(it)"
    )
    assert {"x" * 63, "unknown", 'a\n"b', "\ufffdbc"} == {key[2] for key in ends(observed, job.pid)}


@standin
def test_a_killed_process(observed: Observed) -> None:
    """Transfers that ended before the process stay counted; those in flight end, and leave no row in the kernel."""
    with started(observed, Agent()) as job:
        job.run("for _ in range(23): whole(request())\nfor _ in range(7): post(request())")
        assert 7 == observed.value(IN_FLIGHT, job.pid)
        job.process.kill()
        job.process.wait()
        until(lambda: not observed.kernel("transfers", job.pid), "its rows taken")
    assert {("read", "UCX", "decode-0", "success"): 23} == ends(observed, job.pid)
    assert {} == observed.values(IN_FLIGHT, job.pid)
    assert [] == observed.kernel("active", job.pid)


@standin
def test_a_fork(observed: Observed, job: Agent) -> None:
    """A child that inherits requests of its parent ends none of them."""
    job.run(
        "it = request(); post(it)\n"
        "child = os.fork()\n"
        "if not child: poll(returns(it, 1, 0)); os._exit(0)\n"
        "os.waitpid(child, 0)"
    )
    assert 1 == observed.value(IN_FLIGHT, job.pid)
    job.run("poll(returns(it, 1, 0))")
    assert {("read", "UCX", "decode-0", "success"): 1} == ends(observed, job.pid)


@standin
def test_a_job_from_before() -> None:
    """Of a job that was there first, what it posts from now on counts, and nothing that it posted before."""
    build_standins()
    with Agent() as job:
        job.run("old = [request() for _ in range(5)]\nfor it in old: post(it)")
        with observe() as observed:
            started(observed, job)
            job.run("for it in old: poll(returns(it, 1, 0)); release(it)\nfor _ in range(23): whole(request())")
            assert {("read", "UCX", "decode-0", "success"): 23} == ends(observed, job.pid)
            assert 0 == observed.value(IN_FLIGHT, job.pid)


class Narrow(Nixl):
    """With room for few transfers in flight."""

    def entries(self) -> dict[str, int]:
        return {"active": 8}


@standin
def test_a_full_table() -> None:
    """A transfer that there is no room for is counted as such, and in no other number."""
    build_standins()
    with running(Narrow, FLAGS, grace=1.0) as observed, started(observed, Agent()) as job:
        job.run("all = [request() for _ in range(67)]\nfor it in all: post(it)")
        kept = len(observed.kernel("active", job.pid))
        assert 8 <= kept < 67
        assert kept == observed.value(IN_FLIGHT, job.pid)
        assert 67 - kept == observed.value("accel_exporter_map_full_total", map="nixl_active")
        job.run("for it in all: poll(returns(it, 1, 0))")
        assert {("read", "UCX", "decode-0", "success"): kept} == ends(observed, job.pid)


@standin
def test_without_return_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without return probes transfers are unknown, and no series is shown."""
    monkeypatch.setattr("exporter.bpf.trial.Trial.returns_allowed", lambda *_: (False, "this is a test"))
    build_standins()
    with observe() as observed, Agent() as job:
        until(lambda: job.pid in observed.collector.ledger, "known")
        job.run("for _ in range(23): whole(request())")
        for metric in (TRANSFERS, BYTES, UNSIZED, DURATION, IN_FLIGHT, ERRORS):
            assert {} == observed.values(metric, job.pid)


@standin
def test_a_process_with_any_number_of_peers(observed: Observed, job: Agent) -> None:
    """One that names 5,000 peers takes half of the table, once more after its end; another's transfers count."""
    for round_ in range(1, 3):
        with started(observed, Agent()) as hostile:
            hostile.run("for n in range(5000): post(returns(request(peer=f'x{n}'), 0, 0))")
            assert 2048 == len([*observed.collector.object.maps["transfers"].items()])
            job.run("for _ in range(23): whole(request())")
            key = ("read", "UCX", "decode-0")
            assert {(*key, "success"): 23 * round_} == ends(observed, job.pid)
            assert {key: 23000 * round_} == sums(observed, BYTES, job.pid)
        until(lambda pid=hostile.pid: not observed.kernel("shares", pid), "its end")  # type: ignore[misc]


@standin
def test_a_process_with_any_number_of_transfers_in_flight(observed: Observed, job: Agent) -> None:
    """One that posts 20,000 requests takes half of the table, and what it ends makes room; another's are in flight."""
    key = ("read", "UCX", "decode-0")
    with started(observed, Agent()) as hostile:
        hostile.run("all = [request(peer='x') for _ in range(20000)]\nfor it in all: post(it)")
        assert {("read", "UCX", "x"): 8192} == sums(observed, IN_FLIGHT, hostile.pid)
        job.run("for _ in range(23): post(request())")
        assert {key: 23} == sums(observed, IN_FLIGHT, job.pid)
        hostile.run("for it in all[:1000]: release(it)\nfor it in all[:1000]: post(it)")
        assert {("read", "UCX", "x"): 8192 - 23} == sums(observed, IN_FLIGHT, hostile.pid)
    until(lambda: not observed.kernel("shares", hostile.pid), "its end")
    assert [] == observed.kernel("active", hostile.pid)


@real
@pytest.mark.parametrize("wheel", [wheels.NIXL_10, wheels.NIXL_15], ids=["1.0", "1.5"])
def test_the_real_libraries(observed: Observed, wheel: str) -> None:
    """Two agents of NVIDIA's wheel, over UCX and TCP: bytes are those of NIXL's own telemetry, and of what arrived."""
    folder = wheels.folder(wheel)
    with initiator_and_target(observed, folder, ucx_plugin(folder)) as (initiator, target):
        target.run("ctypes.memset(mine, 7, 1 << 20)")
        reported, arrived = initiator.run(
            "for _ in range(23):\n"
            "    it = me.createXferReq(nixl.NIXL_READ, parts(mine, 10, 4096), parts(remote, 10, 4096), 'target', '',\n"
            "                          [backend])\n"
            "    wait(it, me.postXferReq(it, '')); me.releaseXferReq(it)\n"
            "it = prepared(nixl.NIXL_WRITE, remote, 1000, 1021, list(range(0, 1000, 3)))\n"
            "for _ in range(23): wait(it, me.postXferReq(it, ''))\n"
            "me.releaseXferReq(it)\n"
            "out = telemetry, memory.raw.count(7)"
        )
        assert [40_960] * 23 + [334 * 1021] * 23 == reported and 40_960 == arrived
        reads, writes = ("read", "UCX", "target"), ("write", "UCX", "target")
        assert {(*reads, "success"): 23, (*writes, "success"): 23} == ends(observed, initiator.pid)
        assert {reads: 23 * 40_960, writes: 23 * 334 * 1021} == sums(observed, BYTES, initiator.pid)
        assert sum(reported) == sum(sums(observed, BYTES, initiator.pid).values())
        assert {reads: 0, writes: 0} == sums(observed, IN_FLIGHT, initiator.pid)
        assert {} == ends(observed, target.pid) == observed.values(ERRORS, initiator.pid)
        took = observed.by(DURATION, initiator.pid, "operation", "backend")
        assert {reads[:2]: 23, writes[:2]: 23} == {key: sum(value.counts) for key, value in took.items()}


@real
@pytest.mark.parametrize("wheel", [wheels.NIXL_10, wheels.NIXL_15], ids=["1.0", "1.5"])
def test_nothing_of_it_is_left_out(observed: Observed, wheel: str) -> None:
    """Every function that begins, polls or ends a transfer is hooked in libnixl, and postXfer of every plugin."""
    folder = wheels.folder(wheel)
    plugins = [it for it in folder.rglob("libplugin_*.so") if it.parent.name == "plugins"]
    with started(observed, Script(libnixl(folder), libraries=NOWHERE)) as job:
        opened = job.run(
            "out = []\n"
            f"for it in {[str(it) for it in plugins]!r}:\n"
            "    try: ctypes.CDLL(it, mode=os.RTLD_LAZY | os.RTLD_LOCAL); out.append(it)\n"
            "    except OSError: pass"
        )
        assert any(it.endswith("_UCX.so") for it in opened) and any(it.endswith("_POSIX.so") for it in opened)
        known = [it for it in opened if "INFINIA" not in it]
        until(lambda: observed.attached(job.pid, known), "the plugins' probes")
        for library in (str(libnixl(folder)), *known):
            assert 0 == observed.value("accel_exporter_probe_symbols_uncovered", library=library)
            attached = observed.values("accel_exporter_probe_attached", library=library)
            assert len(attached) >= 1 and {1} == set(attached.values())


@real
def test_calls_that_fail(observed: Observed) -> None:
    """An agent that is not known, and a target that is killed: errors count as what the job got, and it lives on."""
    folder = wheels.folder(wheels.NIXL_15)
    with initiator_and_target(observed, folder, ucx_plugin(folder)) as (initiator, target):
        initiator.run(
            "for _ in range(23):\n"
            "    try: me.createXferReq(nixl.NIXL_READ, parts(mine, 1, 1), parts(mine, 1, 1), 'nobody', '', [backend])\n"
            "    except nixl.nixlNotFoundError: pass"
        )
        key = ("createXferReq", "-4", "NIXL_ERR_NOT_FOUND")
        assert {key: 23} == observed.by(ERRORS, initiator.pid, "api", "code", "error")
        initiator.run(
            "it = me.createXferReq(nixl.NIXL_READ, parts(mine, 1, 64), parts(remote, 1, 64), 'target', '', [backend])\n"
            "wait(it, me.postXferReq(it, ''))"
        )
        target.process.kill()
        target.process.wait()
        failed = initiator.run(
            "out = ''\n"
            "for _ in range(200):\n"
            "    try:\n"
            "        status = me.postXferReq(it, '')\n"
            "        until = time.monotonic() + 20\n"
            "        while status == nixl.NIXL_IN_PROG and time.monotonic() < until: status = me.getXferStatus(it)\n"
            "    except Exception as error: out = type(error).__name__; break\n"
            "    time.sleep(0.05)"
        )
        assert failed == "nixlRemoteDisconnectError"
        found = observed.by(TRANSFERS, initiator.pid, "status")
        assert 1 == found["error"] and found["success"] >= 1
        errors = {key[2]: value for key, value in observed.by(ERRORS, initiator.pid, "api", "code", "error").items()}
        assert {"NIXL_ERR_NOT_FOUND": 23, "NIXL_ERR_REMOTE_DISCONNECT": 1} == errors
