"""Counts of the soft driver in a process that runs another program, or that has the pid of one that has ended."""

from __future__ import annotations

import pytest

from tests.softgpu.counts import Count, Counts
from tests.softgpu.process import Start
from tests.softgpu.story import CONTEXT

AGAIN = (
    "os.environ['PROGRAM'] = {program!r}\n"
    "os.execv(sys.executable, [sys.executable, '-c', open('/proc/self/cmdline').read().split('\\0')[2]])"
)


@pytest.mark.parametrize("fails", [False, True])
def test_another_program(start: Start, fails: bool) -> None:
    """Memory and calls are the new program's from its first call on; Xids stay, as NVML has reported them."""
    process = start(SOFTGPU_FAIL="cuCtxSynchronize=719" if fails else "")
    process.run("context(); allocate(MIB); allocate(MIB); out = cu.cuCtxSynchronize()")
    process.begin(AGAIN.format(program=""))
    process.run("os.environ['SOFTGPU_FAIL'] = ''; context(); allocate(1000)")
    counts = process.counts
    assert ({"device": 1000}, {0: 1000}) == (counts.memory, counts.gpus)
    assert Count(1, 0, 0) == counts.functions["cuMemAlloc_v2"]
    assert {"cuInit", "cuCtxCreate_v2", "cuMemAlloc_v2"} == set(counts.functions)
    assert CONTEXT + 1000 == process.run("free = unused(); out = (80 << 30) - free")


def test_a_pid_again(start: Start) -> None:
    """A child that has the file of a process which had ended counts from 0."""
    process = start()
    child = process.run(
        "context(); allocate(MIB); folder = os.environ['SOFTGPU_COUNTS']\n"
        "rows = open(f'{folder}/{os.getpid()}.libcuda', 'rb').read()\n"
        "last = int(open('/proc/sys/kernel/ns_last_pid').read())\n"
        "for pid in range(last + 1, last + 1000):\n"
        "    if pid != os.getpid(): open(f'{folder}/{pid}.libcuda', 'wb').write(rows)\n"
        "read, write = os.pipe(); out = os.fork()\n"
        "if not out: cu.cuMemAlloc_v2(C.byref(u64()), size(1)); os.write(write, b'x'); time.sleep(600)\n"
        "os.read(read, 1)"
    )
    assert process.folder
    counts = Counts(process.folder, child)
    called = {name: it.calls for name, it in counts.functions.items() if it.calls}
    assert ({}, {"cuMemAlloc_v2": 1}) == (counts.memory, called)
    process.run(f"os.kill({child}, 9); os.waitpid({child}, 0)")
