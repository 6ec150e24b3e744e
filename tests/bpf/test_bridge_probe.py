"""A probe on a stand-in library: what its table names is attached, and what is not is known with its reason."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.bpf.calibrate import Costs
from exporter.bpf.elf import Elf
from exporter.bpf.find_places import find_places
from exporter.bpf.libbpf import Object
from exporter.bpf.library import Library
from exporter.bpf.probe import Hook, Probes
from exporter.bpf.safety import Protection

pytestmark = pytest.mark.needs_bpf

SOURCE = """
#define CALL(name) int name(int n) { asm volatile("push %%rbp; pop %%rbp" ::: "memory"); return n; }
CALL(gpuTake) CALL(gpuGive) CALL(gpuNew) CALL(otherCall)
int gpuAlias(int n) __attribute__((weak, alias("gpuTake")));
"""
PROBE = """
#include "probe.h"
MAP(calls, HASH, __u64, __u64, 64);

static int count(void *ctx, __u64 kind)
{
	__u64 key = bpf_get_attach_cookie(ctx) * 10 + kind, zero = 0, *seen = lookup_or_init(calls, &key, &zero);

	if (seen)
		add(seen, 1);
	return 0;
}

RETURNING()

SEC("uprobe") int on_call(void *ctx) { return count(ctx, 0); }
SEC("uprobe") int on_numbered(void *ctx)
{
	__u64 cookie = bpf_get_attach_cookie(ctx);
	__u64 key = (cookie & 0xff) * 10 + 4 + returning_of(cookie >> 8), zero = 0;
	__u64 *seen = lookup_or_init(calls, &key, &zero);

	if (seen)
		add(seen, 1);
	return 0;
}
SEC("uprobe") int on_enter(void *ctx) { return count(ctx, 1); }
SEC("uretprobe") int on_return(void *ctx) { return count(ctx, 2); }
"""
PLAIN = Protection(seccomp=False, shadow_stack=False)
SHADOWED = Protection(seccomp=False, shadow_stack=True)
TABLE = {
    "gpuTake": [Hook("on_call", 1), Hook("on_enter", 1, paired=True), Hook("on_return", 1, returns=True)],
    "gpuAlias": [Hook("on_call", 4)],
    "gpuGive": [Hook("on_call", 2)],
    "gpuGone": [Hook("on_call", 3)],
    "rocTake": [Hook("on_call", 5)],
}
FAR = 1 << 30
EVERY_CALL = {10: 1, 11: 1, 12: 1, 20: 1}


@pytest.fixture(scope="module")
def library(compile_library) -> Library:
    path = compile_library("libgpu.so", SOURCE)
    with Elf.open(path) as elf:
        functions = elf.functions(TABLE)
        return Library((1, 2), str(path), str(path), elf.machine, elf.build_id, functions)


@pytest.fixture(scope="module")
def compiled(compile_bpf) -> Path:
    return compile_bpf("gpu", PROBE)


@pytest.fixture
def loaded(compiled, multi):
    with Object(compiled, multi=multi) as opened:
        yield opened


class Policy:
    """Return probes are safe for all but processes with a shadow stack; `pids` have one."""

    def __init__(self, *pids):
        self.pids = pids

    def protection(self, pid):
        return SHADOWED if pid in self.pids else PLAIN

    def allowed(self, users):
        unsafe = any(user.shadow_stack for user in users)
        return not unsafe, "a user has a shadow stack" if unsafe else ""


def probes(loaded, policy=None, **settings) -> Probes:
    policy = policy or Policy()
    settings = {"hits": dict, "protection": policy.protection, "returns_allowed": policy.allowed} | settings
    return Probes("gpu", loaded, TABLE, **settings)


def calls_seen(loaded, library) -> dict[int, int]:
    """Return the counts that one call of each function adds."""
    before = dict(loaded.maps["calls"].items())
    functions = ctypes.CDLL(library.path)
    for name in ("gpuTake", "gpuGive", "gpuNew", "otherCall"):
        getattr(functions, name)(1)
    return {key: calls - before.get(key, 0) for key, calls in loaded.maps["calls"].items() if calls != before.get(key)}


def values(probe) -> dict[tuple[str, ...], float]:
    """Samples by name and labels, the probe's own name and the library's path left out."""
    samples = {}
    for sample in probe.collect():
        labels = [text for label, text in sample.labels.items() if label not in ("probe", "library")]
        samples[(sample.metric.name.removeprefix("accel_exporter."), *labels)] = sample.value
    return samples


def test_hooks_run_where_the_table_has_them(loaded, library):
    """Entry, paired entry and return hooks run once a call; names of one code are probed once; closing ends it."""
    probe = probes(loaded)
    link = probe.attach(library)
    probe.process_started(7, library, True)

    assert calls_seen(loaded, library) == EVERY_CALL
    assert {
        "gpuTake": (True, ""),
        "gpuAlias": (True, "the same code as gpuTake"),
        "gpuGive": (True, ""),
    } == {state.symbol: (state.attached, state.reason) for state in probe.states()}

    link.close()

    assert {} == calls_seen(loaded, library)
    assert [] == probe.states()


def test_an_unsafe_process_ends_return_probes_until_it_ends(loaded, library):
    """Return hooks and the entries paired with them go when one user must not have them, and come back after it."""
    probe = probes(loaded, Policy(8))
    link = probe.attach(library)
    probe.process_started(7, library, True)
    probe.process_started(8, library, True)

    assert {10: 1, 20: 1} == calls_seen(loaded, library)
    [take] = [state for state in probe.states() if state.symbol == "gpuTake"]
    assert (False, "no return probes: a user has a shadow stack") == (take.attached, take.reason)

    probe.processes_ended({8})

    assert calls_seen(loaded, library) == EVERY_CALL
    link.close()


def test_an_entry_that_stays_knows_whether_its_return_is_seen(loaded, library):
    """An entry program that stays counts each call once; each attachment of return probes has another number."""
    table = {"gpuTake": [Hook("on_numbered", 1, numbered=True), TABLE["gpuTake"][2]], "gpuGive": TABLE["gpuGive"]}
    policy = Policy(8)
    protected = {"hits": dict, "protection": policy.protection, "returns_allowed": policy.allowed}
    probe = Probes("gpu", loaded, table, returning=loaded.maps["returning"], **protected)
    others = [probe.attach(replace(library, functions={})) for _ in range(3)]
    link = probe.attach(library)
    assert {14: 1, 20: 1} == calls_seen(loaded, library)

    for time in (1, 2):
        probe.process_started(7, library, True)
        assert {14 + time: 1, 12: 1, 20: 1} == calls_seen(loaded, library)
        assert [(3, time)] == [(number, since) for number, since in loaded.maps["returning"].items() if since]
        probe.process_started(8, library, True)
        assert {14: 1, 20: 1} == calls_seen(loaded, library)
        probe.processes_ended([8])
    assert {17: 1, 12: 1, 20: 1} == calls_seen(loaded, library)

    for it in (link, *others):
        it.close()
    assert {} == calls_seen(loaded, library)
    assert not any(loaded.maps["returning"].get(number) for number in range(4))


def test_return_probes_wait_for_the_first_user(loaded, library):
    """Nobody is put at risk before the policy has seen who uses the library."""
    probe = probes(loaded)
    link = probe.attach(library)

    assert {10: 1, 20: 1} == calls_seen(loaded, library)
    assert {"no return probes: no process uses the library yet"} == {
        state.reason for state in probe.states() if not state.attached
    }
    link.close()


def test_one_bad_symbol_costs_only_itself(loaded, library):
    """A point that the kernel refuses, and a function without a place, have a reason; the others are attached."""

    def odd_places(library, symbols):
        found = find_places(library, [it for it in symbols if it != "rocTake"])
        far = replace(found.found["gpuGive"], offset=found.found["gpuGive"].offset + FAR)
        return replace(
            found, found=found.found | {"gpuGive": far}, problems={"rocTake": "no place for a probe: nonsense"}
        )

    elsewhere = replace(library.functions["gpuTake"], name="rocTake", offset=1)
    odd = replace(library, functions={**library.functions, "rocTake": elsewhere})
    probe = probes(loaded, find=odd_places)
    link = probe.attach(odd)
    probe.process_started(7, odd, True)
    reasons = {state.symbol: state.reason for state in probe.states()}

    assert {10: 1, 11: 1, 12: 1} == calls_seen(loaded, library)
    assert "no place for a probe: nonsense" == reasons["rocTake"]
    assert re.search(r"attach on_call to .* at offset 0x40.*: Invalid argument", reasons["gpuGive"])
    assert "" == reasons["gpuTake"]
    link.close()


def test_an_unreadable_library_is_a_reason(loaded, library, tmp_path):
    """A file that cannot be read any more leaves every symbol unattached, with the reason, and raises nothing."""
    (tmp_path / "broken").write_bytes(b"\x7fELF")
    probe = probes(loaded)
    probe.attach(replace(library, open_path=str(tmp_path / "broken")))

    assert {(False, "cannot read the library: too short for an ELF file")} == {
        (state.attached, state.reason) for state in probe.states()
    }


def test_metrics_of_attachment_and_cost(loaded, library):
    """Attached, missing in a family the library has, uncovered, hits, and hits times the dearer cost."""
    costs = Costs(emulated=1e-6, stepped=2e-5, return_emulated=3e-6, return_stepped=4e-5)
    hits: dict[str, int] = {}
    probe = probes(
        loaded,
        hits=lambda: hits,
        costs=costs,
        coverable=re.compile("gpu[A-Z].*"),
        family=lambda symbol: symbol[:3],
    )
    link = probe.attach(library)
    probe.process_started(7, library, True)
    hits |= {"gpuTake": 1000, "gpuGive": 100}
    seen = values(probe)
    link.close()

    assert 1 == seen["probe.attached", "gpuTake", "emulated"]
    assert 1 == seen["probe.symbols.missing",]  # gpuGone; rocTake is of another family
    assert 1 == seen["probe.symbols.uncovered",]
    assert 1000 == seen["probe.hits", "gpuTake"]
    assert pytest.approx(1000 * 3e-6 + 100 * 1e-6) == seen["overhead",]


def test_a_dearer_library_does_not_change_the_past(loaded, library):
    """Calls count at the price of their time: one that is stepped, mapped later, makes later calls dearer only."""

    def stepped(library, symbols):
        found = find_places(library, symbols)
        return replace(found, found={it: replace(place, kind="stepped") for it, place in found.found.items()})

    def places(library, symbols):
        return stepped(library, symbols) if library.identity == (1, 3) else find_places(library, symbols)

    hits: dict[str, int] = {}
    costs = Costs(emulated=1e-6, stepped=2e-5, return_emulated=3e-6, return_stepped=4e-5)
    probe = probes(loaded, hits=lambda: hits, costs=costs, find=places)
    first = probe.attach(library)
    hits["gpuGive"] = 1000
    assert pytest.approx(1000 * 1e-6) == values(probe)["overhead",]
    hits["gpuGive"] = 1500
    second = probe.attach(replace(library, identity=(1, 3)))
    assert pytest.approx(1500 * 1e-6) == values(probe)["overhead",]
    hits["gpuGive"] = 1600
    assert pytest.approx(1500 * 1e-6 + 100 * 2e-5) == values(probe)["overhead",]
    second.close()
    first.close()


def test_two_files_of_one_path_are_one_series(loaded, library):
    """Two containers' copies of a library do not collide: the worse of both is shown."""
    probe = probes(loaded)
    links = [probe.attach(library), probe.attach(replace(library, identity=(1, 3)))]
    probe.process_started(7, library, True)  # the other has no return probes yet
    seen = [sample for sample in probe.collect() if sample.metric.name == "accel_exporter.probe.attached"]
    for link in links:
        link.close()

    assert {"gpuTake": 0, "gpuAlias": 0, "gpuGive": 1} == {sample.labels["symbol"]: sample.value for sample in seen}
    assert 3 == len(seen)
