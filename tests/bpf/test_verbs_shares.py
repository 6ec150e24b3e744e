"""A process with a library of its own fills tables of RDMA in part: others count, and what is not known is absent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporter.bpf import object_path, uprobe
from exporter.bpf.elf import Elf
from exporter.bpf.ends import forget
from exporter.bpf.hook import Hook
from exporter.bpf.libbpf import Link, Object
from exporter.bpf.uprobe import Point
from exporter.verbs import activity, control
from exporter.verbs.control import hooks
from tests.bpf.cuda_node import Script, build_standins, started
from tests.bpf.verbs_node import Observed, observe
from tests.support import until

pytestmark = [pytest.mark.needs_bpf, pytest.mark.evidence(feature="RDMA queue pairs and memory regions", on="stand-in")]

REGISTERED = "rdma_memory_region_registered_bytes"
OPERATIONS = "rdma_memory_region_operations_total"
GIB = 1 << 30

FORGED = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#define MOST 80000
struct device { void *ops[3]; char name[64]; };
struct context { struct device *device; char rest[56]; };
struct mr { struct context *context; void *pd, *addr; uint64_t length; };
#ifdef __aarch64__
#define LONGER_MUTEX 8
#else
#define LONGER_MUTEX 0
#endif
struct qp {
	struct context *context;
	char before[44];
	uint32_t number, state, type;
	char behind[120 + LONGER_MUTEX];
	void *calls[22];
};
struct wr { uint64_t wr_id, next, list; uint32_t segments, opcode, flags, imm; };
struct wc { uint64_t wr_id; uint32_t status, opcode, vendor, length, imm, number, rest[4]; };
_Static_assert(__builtin_offsetof(struct qp, number) == 52, "struct ibv_qp");
_Static_assert(__builtin_offsetof(struct qp, calls) == 184 + LONGER_MUTEX, "struct ibv_qp_ex");

static struct device device = {.name = "mlx5_0"};
static struct context contexts[MOST];
static struct mr regions[MOST];
static struct qp qps[MOST];
static struct wc wc;
static int made;

#define CALL(type, name, ...) __attribute__((noipa)) type name(__VA_ARGS__)
#define WORK asm volatile("nop; nop; nop; nop" ::: "memory")
CALL(struct mr *, ibv_reg_mr, struct context **pd, void *at, uint64_t length, int access)
{
	struct mr *mr = &regions[made++];
	WORK;
	mr->context = *pd;
	mr->length = length;
	return mr;
}
CALL(int, ibv_dereg_mr, struct mr *mr) { WORK; return 0; }
CALL(struct qp *, ibv_create_qp, struct context **pd, void *attributes) { WORK; return &qps[made++]; }
CALL(int, ibv_modify_qp, struct qp *qp, uint32_t *attributes, int mask) { WORK; return 0; }
CALL(int, ibv_destroy_qp, struct qp *qp) { WORK; return 0; }
CALL(int, forged_post_send, struct qp *qp, struct wr *wr, struct wr **bad) { WORK; return 0; }
CALL(int, forged_poll_cq, struct context **cq, int most, struct wc *wc) { WORK; return 1; }
CALL(void, forged_start, struct qp *qp) { WORK; }

static void init(int i)
{
	contexts[i].device = &device;
	qps[i].context = &contexts[i];
	qps[i].number = i;
	qps[i].calls[17] = forged_start;
}
/* Each makes `count` rows of some tables. */
void register_all(int count, uint64_t length)
{
	struct context *pd = contexts;
	init(0);
	for (int i = 0; i < count; i++) ibv_reg_mr(&pd, NULL, length, 0);
}
void deregister_all(void) { while (made) ibv_dereg_mr(&regions[--made]); }
void name_all(int count)
{
	struct context *pd = contexts;
	init(0);
	for (int i = 0; i < count; i++) { sprintf(device.name, "e%d", i); ibv_reg_mr(&pd, NULL, 1, 0); }
}
void create_all(int count) { for (int i = 0; i < count; i++) { init(i); ibv_create_qp(NULL, qps); } }
void destroy_all(void) { while (made) ibv_destroy_qp(&qps[--made]); }
void modify_all(int count)
{
	uint32_t attributes[64] = {};
	init(0);
	for (int i = 0; i < count; i++) { attributes[0] = i; ibv_modify_qp(qps, attributes, 1); }
}
void post_all(int count)
{
	struct wr wr = {}, *bad;
	for (int i = 0; i < count; i++) { init(i); forged_post_send(&qps[i], &wr, &bad); }
}
void poll_all(int count)
{
	for (int i = 0; i < count; i++) {
		struct context *cq = &contexts[i];
		init(i);
		wc.status = i;
		forged_poll_cq(&cq, 1, &wc);
	}
}
void start_all(int count) { for (int i = 0; i < count; i++) { init(i); forged_start(&qps[i]); } }
"""


@pytest.fixture(scope="module")
def forged(compile_library: Callable[[str, str], Path]) -> Path:
    return compile_library("libforged.so", FORGED)


@pytest.fixture(scope="module")
def observed(forged: Path) -> Iterator[Observed]:
    build_standins()
    with observe() as running, started(running, Script(forged)):  # attached to the library
        yield running


def test_70000_regions_of_another_process(observed: Observed, forged: Path) -> None:
    """A process without an adapter takes half of the table; a victim's memory is right, its own absent, not 0."""
    for _ in range(2):
        with started(observed, Script(forged)) as hostile, started(observed, Script(forged)) as victim:
            hostile.run("lib.register_all(70000, c_uint64(1))")
            assert 32768 == len([*observed.collector.object.maps["regions"].items()])
            victim.run(f"lib.register_all(4, c_uint64({GIB}))")
            assert 4 * GIB == observed.value(REGISTERED, victim.pid)
            assert 4 == observed.value(OPERATIONS, victim.pid, operation="reg")
            assert 70000 == observed.value(OPERATIONS, hostile.pid, operation="reg")
            assert {} == observed.values(REGISTERED, hostile.pid)
        until(lambda pid=hostile.pid: not observed.kernel("shares", pid), "its end")  # type: ignore[misc]


def test_what_is_deregistered_makes_room(observed: Observed, forged: Path) -> None:
    """A process may register any number of regions one after the other: its share has those of now."""
    with started(observed, Script(forged)) as job:
        for _ in range(2):
            job.run("lib.register_all(32000, c_uint64(10)); lib.deregister_all()")
        job.run("lib.register_all(7, c_uint64(10))")
        assert 70 == observed.value(REGISTERED, job.pid)


def test_5000_names_of_devices(observed: Observed, forged: Path) -> None:
    """A process that invents devices takes half of the table; a victim's regions and memory count."""
    for round_ in range(2):
        with started(observed, Script(forged)) as hostile, started(observed, Script(forged)) as victim:
            hostile.run("lib.name_all(5000)")
            assert 2048 == len([*observed.collector.object.maps["region_totals"].items()])
            victim.run(f"lib.register_all(4, c_uint64({GIB}))")
            assert [(4, 4 * GIB)] == [
                (it.registrations, it.added - it.removed) for it in observed.kernel("region_totals", victim.pid)
            ]
            if not round_:  # later the series of the first one, which has ended, fill the page
                assert 4 * GIB == observed.value(REGISTERED, victim.pid)
                assert 4 == observed.value(OPERATIONS, victim.pid, operation="reg")
                assert {} == observed.values(REGISTERED, hostile.pid)
        until(lambda pid=hostile.pid: not observed.kernel("shares", pid), "its end")  # type: ignore[misc]


ROWS = {
    "create_all": {"qp_controls": 16384},
    "modify_all": {"qp_states": 4096},
    "post_all": {"calls": 4096, "posted": 4096, "contexts": 2048},
    "poll_all": {"completions": 4096, "times": 4096, "contexts": 2048},
    "start_all": {"extended_posts": 2048},
}
"""Tables that each function of the library fills, and half of their rows."""


@pytest.fixture
def loaded(forged: Path) -> Iterator[Object]:
    """The probes at the library's own functions, as discovery attaches them to a provider that a process made up."""
    links: list[Link] = []
    with Object(object_path("verbs")) as loaded, Elf.open(forged) as elf:
        names = ("ibv_create_qp", "ibv_modify_qp", "ibv_destroy_qp")
        table = {name: hooks(loaded.types)[name] for name in names}
        table["forged_post_send"] = [Hook("post_send_enter", 0)]
        table["forged_poll_cq"] = [Hook("poll_cq_enter", 0), Hook("poll_cq_return", 0, returns=True)]
        table["forged_start"] = [Hook("extended_start", 17 << 16)]
        functions = elf.functions(table)
        for name, hooked in table.items():
            for hook in hooked:
                point = Point(functions[name].offset, hook.cookie)
                links.append(uprobe.attach(loaded.programs[hook.program], forged, [point], hook.returns))
        try:
            yield loaded
        finally:
            uprobe.close_all(links)


def rows_of(loaded: Object, table: str, pid: int) -> int:
    return len([it for it, _ in loaded.maps[table].items() if _pid(it) == pid])


def _pid(key: object) -> int:
    """The process of a key: `tgid` in it, in its queue pair or in that of its life."""
    for part in ("life", "qp"):
        key = getattr(key, part, key)
    return int(getattr(key, "tgid", key))  # type: ignore[call-overload]


@pytest.mark.parametrize("function", ROWS)
def test_a_process_with_any_number_of_rows(loaded: Object, forged: Path, function: str) -> None:
    """One that makes them up takes half of each table, once more after its end; another process has all of its own."""
    for _ in range(2):
        with Script(forged) as hostile, Script(forged) as victim:
            hostile.run(f"lib.{function}(40000)")
            for table, most in ROWS[function].items():
                assert most == rows_of(loaded, table, hostile.pid), table
            victim.run(f"lib.{function}(23)")
            for table in ROWS[function]:
                assert 23 <= rows_of(loaded, table, victim.pid) <= 24, table
            ended = {hostile.pid, victim.pid}
        for name in (*control.MAPS, *activity.MAPS):
            loaded.maps[name].take(ended)
        forget(loaded, ended)
        assert [] == list(loaded.maps["shares"].items())


def test_queue_pairs_that_are_destroyed_make_room(loaded: Object, forged: Path) -> None:
    """A process may make any number of queue pairs one after the other."""
    with Script(forged) as job:
        for _ in range(3):
            job.run("lib.create_all(16000); lib.destroy_all()")
        job.run("lib.create_all(23)")
        assert 23 == rows_of(loaded, "qp_controls", job.pid)
