"""Queue pairs and memory regions are known as libibverbs' calls made them, and only by calls that succeeded."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from exporter.bpf import uprobe
from exporter.bpf.elf import Elf
from exporter.bpf.events import Events
from exporter.bpf.hook import Hook
from exporter.bpf.libbpf import Link, Object
from exporter.bpf.maps import Map
from exporter.bpf.placement import place
from exporter.bpf.uprobe import Point
from exporter.model import Span
from exporter.node import Clock
from exporter.verbs.control import FUNCTIONS, MAPS, READ, Control, Regions, by_process, hooks, hooks_of
from exporter.verbs.peers import Peers
from exporter.verbs.spans import span_of, trace_id
from tests.bpf.cuda_node import Script
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="RDMA queue pairs and memory regions", on="stand-in")]
A, B = "fe80:0000:0000:0000:0000:0000:0000:0001", "fe80:0000:0000:0000:0211:22ff:fe33:4455"
DEBIANS = Path("/usr/lib/x86_64-linux-gnu/libibverbs.so.1")

STANDIN = r"""
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
static struct ibv_device device = {.name = "mlx5_7"};
static struct ibv_context context = {.device = &device};
static struct ibv_pd pd = {.context = &context};
static int failing;
static unsigned numbered = 0x100;

void fail_with(int code) { failing = code; }

struct ibv_qp *ibv_create_qp(struct ibv_pd *on, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp *qp = failing ? NULL : calloc(1, sizeof(*qp));
	if (qp) { qp->context = on->context; qp->qp_num = numbered++; qp->qp_type = attr->qp_type; }
	return qp;
}
struct ibv_qp *provider_create_qp_ex(struct ibv_context *on, struct ibv_qp_init_attr_ex *attr)
{
	struct ibv_pd of = {.context = on};
	return ibv_create_qp(&of, (struct ibv_qp_init_attr *)attr);
}
int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	if (!failing && mask & IBV_QP_STATE) qp->state = attr->qp_state;
	return failing;
}
int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	memset(attr, 0x55, sizeof(*attr));
	attr->qp_state = IBV_QPS_ERR;
	return failing;
}
int ibv_destroy_qp(struct ibv_qp *qp) { if (!failing) free(qp); return failing; }

static struct ibv_mr *made(struct ibv_pd *on, size_t length)
{
	struct ibv_mr *mr = failing ? NULL : calloc(1, sizeof(*mr));
	if (mr) { mr->context = on->context; mr->pd = on; mr->length = length; }
	return mr;
}
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *on, void *at, size_t length, uint64_t iova, unsigned access)
{
	return made(on, length);
}
struct ibv_mr *ibv_reg_mr(struct ibv_pd *on, void *at, size_t length, int access)
{
	return ibv_reg_mr_iova2(on, at, length, (uintptr_t)at, access);
}
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *on, void *at, size_t length, uint64_t iova, int access)
{
	struct ibv_mr *mr = ibv_reg_mr_iova2(on, at, length, iova, access);
	if (mr) mr->addr = at; /* not a tail call */
	return mr;
}
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *on, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	return made(on, length);
}
struct mr_init_attr { size_t length; uint32_t access, comp_mask; uint64_t iova; void *addr; int fd; uint64_t offset; };
struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *on, struct mr_init_attr *attr) { return made(on, attr->length); }
int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *on, void *at, size_t length, int access)
{
	if (!failing && flags & IBV_REREG_MR_CHANGE_TRANSLATION) mr->length = length;
	return failing;
}
static _Atomic int holding, held;
void hold(int on) { holding = on; }
int is_held(void) { return held; }
int ibv_dereg_mr(struct ibv_mr *mr)
{
	for (held = holding; holding;) usleep(1000);
	if (!failing) free(mr);
	return failing;
}

/* What a job does, in C for the structures. */
__attribute__((noipa)) void note(struct ibv_qp *qp, uint64_t ago, uint64_t status, uint64_t n, uint64_t received) { }
struct ibv_qp *make_qp(int all) {
	struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .sq_sig_all = all};
	return ibv_create_qp(&pd, &attr);
}
struct ibv_qp *make_qp_ex(void) {
	struct ibv_qp_init_attr_ex attr = {.qp_type = IBV_QPT_UD, .sq_sig_all = 1};
	return provider_create_qp_ex(&context, &attr);
}
int to_state(struct ibv_qp *qp, int state) {
	struct ibv_qp_attr attr = {.qp_state = state};
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}
int connect_qp(struct ibv_qp *qp) {
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 2};
	int bad = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS);
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = 0x4242,
		.rq_psn = 77, .ah_attr = {.is_global = 1, .port_num = 2, .grh = {.sgid_index = 3}}};
	memcpy(attr.ah_attr.grh.dgid.raw, "\xfe\x80\0\0\0\0\0\0\x02\x11\x22\xff\xfe\x33\x44\x55", 16);
	bad |= ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 6, .rnr_retry = 7, .sq_psn = 99};
	int set = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN;
	return bad | ibv_modify_qp(qp, &attr, set);
}
int query(struct ibv_qp *qp) {
	struct ibv_qp_attr attr; struct ibv_qp_init_attr init;
	return ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV, &init);
}
struct ibv_mr *reg(size_t length) { return ibv_reg_mr(&pd, NULL, length, 0); }
struct ibv_mr *reg_iova(size_t length) { return ibv_reg_mr_iova(&pd, NULL, length, 0, 0); }
struct ibv_mr *reg_iova2(size_t length) { return ibv_reg_mr_iova2(&pd, NULL, length, 0, 0); }
struct ibv_mr *reg_dmabuf(size_t length) { return ibv_reg_dmabuf_mr(&pd, 0, length, 0, 3, 0); }
struct ibv_mr *reg_ex(size_t length, int mask) {
	struct mr_init_attr attr = {.length = length, .comp_mask = mask};
	return ibv_reg_mr_ex(&pd, &attr);
}
int rereg(struct ibv_mr *mr, int flags, size_t length) { return ibv_rereg_mr(mr, flags, NULL, NULL, length, 0); }
"""
PRELUDE = """
for name in ("make_qp", "make_qp_ex", "reg", "reg_iova", "reg_iova2", "reg_dmabuf", "reg_ex"):
    getattr(lib, name).restype = c_void_p
def p(address): return c_void_p(address)
"""


def seen(maps: Mapping[str, Map]) -> dict[int, Control]:
    """Return the present contents of the maps, by pid."""
    return by_process({name: maps[name].items() for name in READ})


def clear(observed: Observed) -> None:
    """Takes all that is kept of the job's process."""
    for name in MAPS:
        observed.maps[name].take({observed.job.pid})


class Observed:
    """A job on the stand-in library with the control path's probes at its functions."""

    def __init__(self, loaded: Object, job: Script) -> None:
        self.maps, self.job = loaded.maps, job

    def run(self, lines: str) -> object:
        return self.job.run(lines)

    def seen(self) -> Control:
        return seen(self.maps).get(self.job.pid, Control())


@pytest.fixture(scope="module")
def standin(compile_library: Callable[[str, str], Path]) -> Path:
    if not Path("/usr/include/infiniband/verbs.h").exists():
        pytest.skip("libibverbs-dev is not installed: its header has the places of the fields")
    return compile_library("libibverbs.so.1", STANDIN)


@pytest.fixture
def observed(compile_bpf: Callable[[str, str], Path], standin: Path, multi: bool) -> Iterator[Observed]:
    source = '#include "verbs/control.bpf.h"\n'
    links: list[Link] = []
    with Object(compile_bpf("control", source), multi=multi) as loaded, Script(standin.name, standin.parent) as job:
        table = {**hooks(loaded.types), "provider_create_qp_ex": hooks_of(loaded.types, "create_qp")}
        with Elf.open(standin) as elf:
            for symbol, function in elf.functions(table).items():
                offset = place(elf, function).offset
                for hook in table[symbol]:
                    program = loaded.programs[hook.program]
                    links.append(uprobe.attach(program, standin, [Point(offset, hook.cookie)], hook.returns))
        try:
            job.run(PRELUDE)
            yield Observed(loaded, job)
        finally:
            uprobe.close_all(links)


def test_a_queue_pair_from_creation_to_its_end(observed: Observed) -> None:
    """Number, type, peer, GIDs, MTU, timeout and retries are what the job set, and go when it is destroyed."""
    address = observed.run("out = lib.make_qp(0)")
    assert 0 == observed.run(f"out = lib.connect_qp(p({address}))")
    [(at, qp)] = observed.seen().qps.items()
    assert address == at
    assert ("mlx5_7", 0x100, 2, 3) == (qp.device, qp.number, qp.type, qp.state)
    assert (0x4242, B) == (qp.peer, qp.peer_gid)
    assert (2, 3, 4096, 14, 6, 7) == (qp.port, qp.gid_index, qp.mtu, qp.timeout, qp.retries, qp.rnr_retries)
    assert (99, 77, 0) == (qp.send_psn, qp.receive_psn, qp.resets)
    assert qp.created_ns > 0
    assert {("mlx5_7", 1): 1, ("mlx5_7", 2): 1, ("mlx5_7", 3): 1} == observed.seen().states
    assert 0 == observed.run(f"out = lib.ibv_destroy_qp(p({address}))")
    assert {} == observed.seen().qps
    assert 3 == observed.seen().states.total()


def test_calls_that_fail_change_nothing(observed: Observed) -> None:
    """Neither a refused creation nor a refused change, destruction, registration or deregistration is counted."""
    address, region = observed.run("out = lib.make_qp(0), lib.reg(4096)")  # type: ignore[misc]
    before = observed.seen()
    observed.run("lib.fail_with(22)")
    assert [None, None, None, 22, 22, 22, 22] == observed.run(
        f"out = [lib.make_qp(0), lib.reg(100), lib.reg_dmabuf(100), lib.to_state(p({address}), 1), "
        f"lib.ibv_destroy_qp(p({address})), lib.ibv_dereg_mr(p({region})), lib.rereg(p({region}), 1, size(9))]"
    )
    assert before == observed.seen()
    assert [4096] == [row.bytes for _, row in observed.maps["regions"].items()]


def test_a_queue_pair_in_error_and_reset(observed: Observed) -> None:
    """ERR is seen where the job sets it and where it queries the state; a reset forgets what was set."""
    address = observed.run("out = lib.make_qp(1)")
    observed.run(f"lib.connect_qp(p({address})); lib.to_state(p({address}), 6)")
    [qp] = observed.seen().qps.values()
    assert (6, 0x4242) == (qp.state, qp.peer)
    observed.run(f"lib.to_state(p({address}), 0)")
    [qp] = observed.seen().qps.values()
    assert (0, None, "", 0, 1) == (qp.state, qp.peer, qp.peer_gid, qp.mtu, qp.resets)
    observed.run(f"lib.query(p({address}))")
    [qp] = observed.seen().qps.values()
    assert (6, None, "") == (qp.state, qp.peer, qp.peer_gid)
    assert {("mlx5_7", 6): 1, ("mlx5_7", 0): 1} == {k: v for k, v in observed.seen().states.items() if k[1] in (0, 6)}


def test_extended_creation_counts_once(observed: Observed) -> None:
    """A provider's create_qp_ex that calls ibv_create_qp makes one queue pair, which signals all."""
    address = observed.run("out = lib.make_qp_ex()")
    [(at, qp)] = observed.seen().qps.items()
    assert (address, 4) == (at, qp.type)
    assert [1] == [row.all_signaled for _, row in observed.maps["qp_controls"].items()]


def test_a_queue_pair_from_before(observed: Observed) -> None:
    """One that was not seen created is known from its next change on, without what was set before."""
    address = observed.run("out = lib.make_qp(0)")
    clear(observed)
    observed.run(f"lib.to_state(p({address}), 3)")
    [qp] = observed.seen().qps.values()
    assert (0x100, 3, 0, None, 0) == (qp.number, qp.state, qp.created_ns, qp.peer, qp.mtu)


def test_memory_regions_by_kind(observed: Observed) -> None:
    """Every way to register counts once, with its bytes and kind of memory; so do changes and deregistrations."""
    made = observed.run(
        "out = [lib.reg(size(1000)), lib.reg_iova(size(200)), lib.reg_iova2(size(30)), lib.reg_ex(size(4), 2), "
        "lib.reg_dmabuf(size(1 << 33)), lib.reg_ex(size(5), 4 | 8)]"
    )
    host, dmabuf = (observed.seen().regions["mlx5_7", memory] for memory in ("host", "dmabuf"))
    assert (1234, 4, 0) == (host.bytes, host.registrations, host.deregistrations)
    assert ((1 << 33) + 5, 2) == (dmabuf.bytes, dmabuf.registrations)
    observed.run(f"lib.rereg(p({made[0]}), 1, size(3000)); lib.rereg(p({made[1]}), 4, size(7))")  # type: ignore[index]
    host = observed.seen().regions["mlx5_7", "host"]
    assert (3234, 4, 2) == (host.bytes, host.registrations, host.reregistrations)
    observed.run(f"for mr in {made}: lib.ibv_dereg_mr(p(mr))")
    host, dmabuf = (observed.seen().regions["mlx5_7", memory] for memory in ("host", "dmabuf"))
    assert (0, 4, 0, 2) == (host.bytes, host.deregistrations, dmabuf.bytes, dmabuf.deregistrations)
    assert [] == list(observed.maps["regions"].items())


def test_a_region_of_all_there_is(observed: Observed) -> None:
    """A region of the whole address space (implicit on-demand paging) is a registration without bytes."""
    [whole, other] = observed.run("out = [lib.reg(c_size_t(-1)), lib.reg(size(1000))]")  # type: ignore[misc]
    assert Regions(added=1000, registrations=2) == observed.seen().regions["mlx5_7", "host"]
    observed.run(f"lib.rereg(p({other}), 1, c_size_t(-1)); lib.ibv_dereg_mr(p({whole}))")
    host = observed.seen().regions["mlx5_7", "host"]
    assert (0, 2, 1, 1) == (host.bytes, host.registrations, host.reregistrations, host.deregistrations)
    assert 1 == len(list(observed.maps["regions"].items()))


def test_a_region_from_before(observed: Observed) -> None:
    """Deregistering what was not seen registered takes no bytes away."""
    [old, new] = observed.run("out = [lib.reg(size(100)), None]")  # type: ignore[misc]
    clear(observed)
    observed.run(f"lib.reg(size(50)); lib.ibv_dereg_mr(p({old}))")
    assert {("mlx5_7", "host"): Regions(added=50, registrations=1, unmatched=1)} == observed.seen().regions


def test_clear_leaves_nothing_of_a_process(observed: Observed) -> None:
    """After the end of a process no map has anything of it."""
    observed.run("lib.connect_qp(p(lib.make_qp(0))); lib.reg(size(5))")
    assert observed.seen() != Control()
    clear(observed)
    assert [] == [key for name in MAPS for key, _ in observed.maps[name].items()]


def test_more_than_there_is_room_for(compile_bpf: Callable[[str, str], Path], standin: Path) -> None:
    """Queue pairs and regions beyond the maps' room are counted, and the bytes that are registered are not known."""
    with room_for_two(compile_bpf, standin) as (loaded, job):
        job.run("for _ in range(5): lib.make_qp(0)\nout = [lib.reg(size(10)) for _ in range(5)]")
        control = seen(loaded.maps)[job.pid]
        counted = loaded.globals()
    assert (2, 3) == (len(control.qps), counted["qp_controls_lost"])
    total = control.regions["mlx5_7", "host"]
    assert (5, 50, 3) == (total.registrations, total.added, counted["regions_lost"])
    assert (30, None) == (total.untracked, total.bytes)


def test_no_room_after_a_failed_deregistration(compile_bpf: Callable[[str, str], Path], standin: Path) -> None:
    """After a region has lost its row to another one the bytes are not known, also once it is deregistered."""
    with room_for_two(compile_bpf, standin) as (loaded, job):
        job.run("first = p(lib.reg(size(10))); lib.reg(size(200))")
        job.run("t = threading.Thread(target=lib.ibv_dereg_mr, args=[first]); lib.hold(1); t.start()")
        job.run("while not lib.is_held(): time.sleep(0.001)")
        job.run("lib.fail_with(0); lib.reg(size(3000)); lib.fail_with(22); lib.hold(0); t.join(); lib.fail_with(0)")
        failed = seen(loaded.maps)[job.pid].regions["mlx5_7", "host"]
        job.run("lib.ibv_dereg_mr(first)")
        ended = seen(loaded.maps)[job.pid].regions["mlx5_7", "host"]
        lost = loaded.globals()["regions_lost"]
    assert (3, 0, None, 1) == (failed.registrations, failed.deregistrations, failed.bytes, lost)
    assert (0, 1, None) == (ended.deregistrations, ended.unmatched, ended.bytes)


def test_no_room_for_a_call_in_flight(compile_bpf: Callable[[str, str], Path], standin: Path) -> None:
    """After a call on memory of which the return was not seen the bytes are not known; one on a queue pair is none."""
    other = "t = threading.Thread(target={}, args=[{}]); t.start(); t.join()"
    with room_for_two(compile_bpf, standin, control_flights=1) as (loaded, job):
        job.run("first = p(lib.reg(size(10)))")  # the thread keeps its row
        job.run(other.format("lib.make_qp", "0"))
        assert 0 == seen(loaded.maps)[job.pid].memory_missed
        job.run(other.format("lib.ibv_dereg_mr", "first"))
        control = seen(loaded.maps)[job.pid]
        lost = loaded.globals()["control_flights_lost"]
    assert (1, 2) == (control.memory_missed, lost)
    assert {("mlx5_7", "host"): Regions(added=10, registrations=1)} == control.regions


def test_no_room_for_the_totals_of_a_device(compile_bpf: Callable[[str, str], Path], standin: Path) -> None:
    """After a registration that no row counts the bytes of its process are not known."""
    with room_for_two(compile_bpf, standin, region_totals=1) as (loaded, job):
        job.run("lib.reg(size(10)); lib.reg_ex(size(5), 4 | 8)")
        control = seen(loaded.maps)[job.pid]
    assert {("mlx5_7", "host"): Regions(added=10, registrations=1)} == control.regions
    assert 1 == control.memory_missed


@contextmanager
def room_for_two(
    compile_bpf: Callable[[str, str], Path], standin: Path, **entries: int
) -> Iterator[tuple[Object, Script]]:
    """Probes with room for two queue pairs and two regions, and a job that they observe."""
    names, links = ("ibv_create_qp", "ibv_reg_mr_iova2", "ibv_reg_mr_ex", "ibv_dereg_mr"), list[Link]()
    path = compile_bpf("control", '#include "verbs/control.bpf.h"\n')
    with (
        Object(path, entries={"qp_controls": 2, "regions": 2} | entries) as loaded,
        Script(standin.name, standin.parent) as job,
        Elf.open(standin) as elf,
    ):
        functions, table = elf.functions(names), hooks(loaded.types)
        for name in names:
            for hook in table[name]:
                point = Point(place(elf, functions[name]).offset, hook.cookie)
                links.append(uprobe.attach(loaded.programs[hook.program], standin, [point], hook.returns))
        job.run(PRELUDE)
        yield loaded, job
        uprobe.close_all(links)


SPANS = """
#include "verbs/control.bpf.h"
#include "verbs/spans.h"
SEC("uprobe") int completed(struct pt_regs *ctx) /* note(qp, ns ago, status, message, received) */
{
	__u64 now = bpf_ktime_get_ns(), ago = PT_REGS_PARM2(ctx);

	send_verbs_span(PT_REGS_PARM1(ctx), ago ? now - ago : 0, now, 2, 4096, PT_REGS_PARM3(ctx), PT_REGS_PARM4(ctx),
			PT_REGS_PARM5(ctx));
	return 0;
}
"""


@contextmanager
def noting(path: Path, standin: Path, per_second: int) -> Iterator[tuple[Script, Object, list[Span]]]:
    """A job with one queue pair; its note(ns ago, status, message, received) is a completion on that queue pair."""
    names, received, links = ("ibv_create_qp", "ibv_modify_qp"), list[Span](), list[Link]()
    constants = {"request_span_ns": 10_000_000, "verbs_spans_per_second": per_second}
    peers = Peers(Path("/nonexistent"))
    peers.gid = lambda *_: A  # type: ignore[method-assign]
    with Object(path, constants=constants) as loaded, Script(standin.name, standin.parent) as job:
        with Elf.open(standin) as elf:
            functions, table = elf.functions([*names, "note"]), hooks(loaded.types)
        for symbol, hooked in {"note": [Hook("completed")], **{name: table[name] for name in names}}.items():
            for hook in hooked:
                point = Point(functions[symbol].offset, hook.cookie)
                links.append(uprobe.attach(loaded.programs[hook.program], standin, [point], hook.returns))
        events = Events()
        events.add(loaded.maps["verbs_spans"], lambda record: received.append(span_of(record, peers, Clock(), {})))
        events.start("verbs spans", look=0.01)
        job.run(
            PRELUDE + "def note(*it): lib.note(qp, *map(c_uint64, (it[0], it[1], it[2] % 2**64, it[3])))\n"
            "qp = p(lib.make_qp(0)); lib.connect_qp(qp); ms = 1000000\n"
        )
        try:
            yield job, loaded, received
        finally:
            events.close()
            uprobe.close_all(links)


def test_spans_of_slow_and_failed_requests(compile_bpf: Callable[[str, str], Path], standin: Path) -> None:
    """Requests above the threshold and failed ones become spans, as many as are allowed; both ends name one trace."""
    with noting(compile_bpf("spans", SPANS), standin, 4) as (job, loaded, received):
        job.run("for it in ((9 * ms, 0, 1, 0), (11 * ms, 0, 7, 0), (0, 12, -1, 0)): note(*it)")
        job.run("note(30 * ms, 0, 8, 1); note(0, 0, -1, 0)")
        until(lambda: len(received) == 3, "three spans")
        begun = time.monotonic()
        job.run("for _ in range(20): note(0, 12, -1, 0)  # no flush: those that an error took along are not sent")
        seconds = int(time.monotonic() - begun) + 2  # at most, into which they may fall
        until(lambda: loaded.globals()["verbs_spans_limited"] + len(received) == 23, "the others sent or counted")
        assert len(received) <= 3 + 4 * seconds
    sent, failed, got = received[:3]
    here, there = (A, 0x100), (B, 0x4242)
    assert ("rdma SEND", trace_id(here, there, 99, 7)) == (sent.name, sent.trace_id)
    assert (11_000_000, 4096, 7) == (
        sent.end_ns - sent.start_ns,
        sent.attributes["rdma.bytes"],
        sent.attributes["rdma.message"],
    )
    assert ("RETRY_EXC_ERR", failed.start_ns) == (failed.error, failed.end_ns)
    assert "rdma.bytes" not in failed.attributes
    assert ("rdma RECV", trace_id(there, here, 77, 8)) == (got.name, got.trace_id)


def test_receives_leave_room_for_others(compile_bpf: Callable[[str, str], Path], standin: Path) -> None:
    """Receives, which wait for long as a rule, take half of a second's spans at most."""
    with noting(compile_bpf("spans", SPANS), standin, 100) as (job, loaded, received):

        def accounted() -> int:
            return int(loaded.globals()["verbs_spans_limited"]) + len(received)

        begun = ended = -1
        while begun < 0 or begun != ended:  # on a busy machine they may fall into two seconds
            time.sleep(1.05 - time.monotonic() % 1)  # the kernel's seconds begin with those of this clock
            begun, before, earlier = int(time.monotonic()), accounted(), len(received)
            job.run("for _ in range(200): note(30 * ms, 0, -1, 1)")
            job.run("for _ in range(200): note(30 * ms, 0, -1, 0)")
            ended = int(time.monotonic())
            until(partial(lambda all_of_them: accounted() == all_of_them, before + 400), "all sent or counted")
    assert Counter({"rdma RECV": 50, "rdma SEND": 50}) == Counter(span.name for span in received[earlier:])


@pytest.mark.skipif(not DEBIANS.exists(), reason="libibverbs1 is not installed")
def test_every_function_of_debians_library_has_a_place() -> None:
    """Of rdma-core 44 all but ibv_reg_mr_ex (rdma-core 59) exist, and each has a place for a probe."""
    with Elf.open(DEBIANS.resolve()) as elf:
        found = elf.functions(FUNCTIONS)
        placed = {name: place(elf, function) for name, function in found.items()}
    assert set(FUNCTIONS) - {"ibv_reg_mr_ex"} == set(placed) - {"ibv_reg_mr_ex"}
