"""Graphs on the soft GPU: memory that they allocate and free, launches into captures, and updates."""

from __future__ import annotations

import pytest

from tests.softgpu.process import Start

INVALID_VALUE, OUT_OF_MEMORY, NOT_READY, UPDATE_FAILURE = 1, 2, 600, 910
TOPOLOGY_CHANGED, TYPE_CHANGED, NODE_UNSUPPORTED = 2, 3, 6
KERNEL, CHILD, ALLOCATION, FREE = 0, 4, 10, 11
SECOND = 10**9
MADE = """
context(); stream = new(vp, cu.cuStreamCreate, 0); function = C.create_string_buffer(8)
launch = lambda at: cu.cuLaunchKernel(function, *[1] * 6, 0, at, None, None)
def captured(work):
    ok(cu.cuStreamBeginCapture_v2(stream, 2)); work(); return new(vp, lambda to: cu.cuStreamEndCapture(stream, to))
def take(many): return new(u64, cu.cuMemAllocAsync, size(many), stream)
def executable(graph, flags=0): return new(vp, cu.cuGraphInstantiateWithFlags, graph, u64(flags))
def run(it): return cu.cuGraphLaunch(it, stream)
def kinds(graph):
    many, kind = size(64), C.c_int(); nodes = (vp * 64)(); ok(cu.cuGraphGetNodes(graph, nodes, C.byref(many)))
    found = []
    for node in nodes[:many.value]: ok(cu.cuGraphNodeGetType(vp(node), C.byref(kind))); found.append(kind.value)
    return sorted(found)
class Allocation(C.Structure):
    _fields_ = [("place", Place), ("access", vp), ("accesses", size), ("bytes", size), ("address", u64)]
def node(graph, many, at=1):
    it, made = Allocation(Place(1, 0, at, 0, None, 0), None, 0, many, 0), vp()
    ok(cu.cuGraphAddMemAllocNode(C.byref(made), graph, None, size(0), C.byref(it))); return it.address
def free_node(graph, address): return cu.cuGraphAddMemFreeNode(C.byref(vp()), graph, None, size(0), u64(address))
"""


def test_memory_in_use_is_not_taken_again(start: Start) -> None:
    """A second launch needs the memory of the first to be freed; its GPU has the memory until all of it ends."""
    process = start()
    process.run(f"{MADE}before = unused(); held = []; graph = captured(lambda: held.append(take(4 * MIB)))")
    process.run("it = executable(graph); assert before == unused()")
    frees = "cu.cuMemFreeAsync(held[0], stream)"
    assert [INVALID_VALUE, 0, INVALID_VALUE] == process.run(f"out = [{frees}, run(it), run(it)]")
    assert [0, INVALID_VALUE, 0, 0] == process.run(f"out = [{frees}, {frees}, run(it), cu.cuMemFree_v2(held[0])]")
    assert [4 << 20, 0, 0] == process.run("out = [before - unused(), run(it), cu.cuGraphDestroy(graph)]")
    assert [0, 4 << 20] == process.run("out = [cu.cuGraphExecDestroy(it), before - unused()]")
    assert [0, 0, INVALID_VALUE] == process.run(f"out = [{frees}, before - unused(), {frees}]")


def test_auto_free(start: Start) -> None:
    """With CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH each launch frees what the one before has left."""
    process = start()
    process.run(f"{MADE}before = unused(); it = executable(captured(lambda: take(4 * MIB)), 1)")
    assert [0, 0, 0, 4 << 20] == process.run("out = [run(it), run(it), run(it), before - unused()]")


def test_one_executable(start: Start) -> None:
    """A graph with memory has one at a time; one without has any number."""
    process = start()
    process.run(
        f"{MADE}graph, plain = captured(lambda: take(MIB)), captured(lambda: launch(stream)); it = executable(graph)"
    )
    again = "code(executable, graph)"
    codes = f"out = [{again}, code(executable, plain), code(executable, plain), cu.cuGraphExecDestroy(it), {again}]"
    assert [INVALID_VALUE, 0, 0, 0, 0] == process.run(codes)


def test_nodes(start: Start) -> None:
    """Nodes that a program adds: freed in the same graph the memory is never in use, in another by its launch."""
    process = start()
    process.run(f"{MADE}before = unused(); graph, other = new(vp, cu.cuGraphCreate, 0), new(vp, cu.cuGraphCreate, 0)")
    process.run("inside, outside = node(graph, MIB), node(graph, 7 * MIB); plain = allocate(MIB).value")
    frees = "free_node(graph, inside), free_node(graph, inside), free_node(other, outside), free_node(other, plain)"
    assert [0, INVALID_VALUE, 0, INVALID_VALUE] == process.run(f"out = [{frees}]")
    assert [[ALLOCATION, ALLOCATION, FREE], [FREE]] == process.run("out = [kinds(graph), kinds(other)]")
    process.run("one, two = executable(graph), executable(other)")
    launches = "out = [run(two), run(one), run(one), run(two), run(two), run(one), before - unused()]"
    assert [INVALID_VALUE, 0, INVALID_VALUE, 0, INVALID_VALUE, 0, 9 << 20] == process.run(launches)
    assert INVALID_VALUE == process.run("out = cu.cuMemFree_v2(u64(inside))")
    ends = (
        "[cu.cuGraphDestroy(graph), cu.cuGraphDestroy(other), cu.cuGraphExecDestroy(one), cu.cuGraphExecDestroy(two)]"
    )
    assert [[0] * 4, 0, 1 << 20] == process.run(f"out = [{ends}, cu.cuMemFree_v2(u64(outside)), before - unused()]")


def test_nodes_that_are_refused(start: Start) -> None:
    """Memory of a node lies on a GPU that there is, and has a size; at a launch there has to be room."""
    process = start(SOFTGPU_BYTES=1 << 30)
    process.run(f"{MADE}graph = new(vp, cu.cuGraphCreate, 0)")
    assert [INVALID_VALUE, INVALID_VALUE, 0] == process.run(
        "out = [code(node, graph, 0), code(node, graph, MIB, 0), code(node, graph, 2 * GIB)]"
    )
    assert OUT_OF_MEMORY == process.run("out = run(executable(graph))")


def test_frees_in_a_capture(start: Start) -> None:
    """A capture frees memory of graphs only."""
    process = start()
    process.run(f"{MADE}held, codes = take(MIB), []\ndef free(it): codes.append(cu.cuMemFreeAsync(it, stream))")
    assert [INVALID_VALUE, 0, INVALID_VALUE] == process.run(
        "def work():\n    free(held); it = take(MIB); free(it); free(it)\ngraph = captured(work); out = codes"
    )
    assert [ALLOCATION, FREE] == process.run("out = kinds(graph)")
    assert {"pool": 1 << 20} == process.counts.memory


def test_launch_in_a_capture(start: Start) -> None:
    """A launch into a captured stream is a node with the graph's kernels; one with memory cannot be."""
    process = start(SOFTGPU_KERNEL_NS=3600 * SECOND)
    process.run(f"{MADE}inner = executable(captured(lambda: (launch(stream), launch(stream)))); codes = []")
    process.run("with_memory = executable(captured(lambda: take(MIB)))")
    process.run("outer = captured(lambda: codes.extend([run(inner), run(with_memory)]))")
    assert [[0, INVALID_VALUE], [CHILD], 0] == process.run("out = [codes, kinds(outer), cu.cuStreamQuery(stream)]")
    assert [0, NOT_READY] == process.run("out = [run(executable(outer)), cu.cuStreamQuery(stream)]")


@pytest.mark.parametrize(
    ("work", "code", "result"),
    [
        ("launch(stream), launch(stream), take(MIB)", UPDATE_FAILURE, TOPOLOGY_CHANGED),
        ("launch(stream), take(MIB)", UPDATE_FAILURE, TYPE_CHANGED),
        ("launch(stream), launch(stream)", 0, 0),
    ],
)
def test_update(start: Start, work: str, code: int, result: int) -> None:
    """An executable is updated from a graph of the same nodes."""
    process = start()
    process.run(
        f"{MADE}class Update(C.Structure): _fields_ = [('result', C.c_int), ('at', vp), ('came', vp)]\n"
        "it, to = executable(captured(lambda: (launch(stream), launch(stream)))), Update()\n"
        f"graph = captured(lambda: ({work}))"
    )
    call = "out = [cu.cuGraphExecUpdate_v2(it, graph, C.byref(to)), to.result, run(it)]"
    assert [code, result, 0] == process.run(call)


def test_update_of_memory(start: Start) -> None:
    """The memory of one graph does not become another's; a graph's own executable is updated from it."""
    process = start()
    process.run(
        f"{MADE}class Update(C.Structure): _fields_ = [('result', C.c_int), ('at', vp), ('came', vp)]\n"
        "graph, other = captured(lambda: take(MIB)), captured(lambda: take(MIB))\n"
        "it, to = executable(graph), Update()\n"
        "def update(graph): return [cu.cuGraphExecUpdate_v2(it, graph, C.byref(to)), to.result]"
    )
    codes = [[0, 0], [UPDATE_FAILURE, NODE_UNSUPPORTED], [INVALID_VALUE, 1]]
    assert codes == process.run("out = [update(graph), update(other), update(None)]")
