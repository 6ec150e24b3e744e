"""Programs of custom probes get a tail call, which keeps them on the thread's kernel stack."""

from __future__ import annotations

import pytest

from exporter.custom.compiler import on_kernel_stack


@pytest.mark.parametrize(
    "head",
    [
        "int on_call(struct pt_regs *ctx) {",
        "int on_call(struct pt_regs *ctx)\n{",
        "int on_call(void * ctx, int size, char *name)\n{",
        "static int other(void) { return 0; }\nint on_call(struct pt_regs *ctx) {",
    ],
)
def test_programs(head: str) -> None:
    source = f"{head} return 0; }}\nint off(struct pt_regs *ctx) {{ return on_call(ctx); }}"
    found = on_kernel_stack(source, ["on_call"])
    assert found.startswith(f"{head} {{ volatile int")
    assert 1 == found.count("accel_none.call(ctx, 0)")
    assert source.count("\n") == found.count("\n")


def test_no_such_function() -> None:
    """A call is no definition, and a macro is left as it is."""
    source = "PROGRAM(on_call)\nint other(struct pt_regs *ctx) { if (on_call(ctx)) { return 1; } return 0; }"
    assert source == on_kernel_stack(source, ["on_call"])
