"""Access of contexts to the memory of others on the soft GPU."""

from __future__ import annotations

from tests.softgpu.process import Start

INVALID_VALUE, INVALID_DEVICE, INVALID_CONTEXT, UNSUPPORTED, ENABLED, NOT_ENABLED = 1, 101, 201, 217, 704, 705


def test_contexts(start: Start) -> None:
    """Access is given once in each direction, to a context of another GPU, and taken away once."""
    process = start()
    codes = process.run(
        "other, beside, held = context(1), context(), context(); enable = cu.cuCtxEnablePeerAccess\n"
        "calls = (other, 1), (other, 0), (other, 0), (held, 0), (None, 0), (beside, 0)\n"
        "out = [enable(*it) for it in calls]"
    )
    assert [INVALID_VALUE, 0, ENABLED, INVALID_CONTEXT, INVALID_CONTEXT, UNSUPPORTED] == codes
    assert [0, ENABLED] == process.run("ok(cu.cuCtxSetCurrent(other)); out = [enable(held, 0), enable(held, 0)]")
    ends = "disable = cu.cuCtxDisablePeerAccess; out = [disable(held), disable(held), disable(None)]"
    assert [0, NOT_ENABLED, INVALID_CONTEXT] == process.run(ends)
    assert [0, NOT_ENABLED] == process.run("ok(cu.cuCtxSetCurrent(held)); out = [disable(other), disable(other)]")


def test_ended_contexts(start: Start) -> None:
    """Access ends with each of its two contexts."""
    process = start()
    process.run(
        "held, retained = context(), new(vp, cu.cuDevicePrimaryCtxRetain, 1); enable = cu.cuCtxEnablePeerAccess\n"
        "ok(enable(retained, 0))"
    )
    ends = "ok(cu.cuDevicePrimaryCtxReset_v2(1)); out = [enable(retained, 0), enable(retained, 0)]"
    assert [0, ENABLED] == process.run(ends)


def test_runtime(start: Start) -> None:
    """The runtime names devices: its own needs no access, and another gives it once."""
    process = start()
    process.run("rt = runtime()")
    on, off = "rt.cudaDeviceEnablePeerAccess({}, 0)", "rt.cudaDeviceDisablePeerAccess({})"
    calls = ", ".join([*map(on.format, (0, 2, -1, 1, 1)), *map(off.format, (0, 1, 1))])
    assert [*[INVALID_DEVICE] * 3, 0, ENABLED, INVALID_DEVICE, 0, NOT_ENABLED] == process.run(f"out = [{calls}]")
