"""Parts of a profile."""

from __future__ import annotations

import pytest

from exporter.stack_profiles.model import INUSE, Frame, StackProfile, StackSample

PERIOD = ("space", "bytes")


def test_a_frame_has_a_name() -> None:
    """The function's, else module and address, of which no path is shown; a question mark for nothing at all."""
    assert "load" == Frame("load", "/app/train.py", 23, "python").name
    assert "libc10.so+0x1f30" == Frame("", module="/opt/torch/libc10.so", address=0x1F30).name
    assert "0xffffffff81000000" == Frame("", kind="kernel", address=0xFFFFFFFF81000000).name
    assert "?" == Frame("", kind="python").name


def test_a_profile_adds_up() -> None:
    """Totals are sums over samples; a sample with too few or too many values is an error."""
    stack = (Frame("a"), Frame("b"))
    profile = StackProfile(INUSE, (StackSample(stack, {"pid": "1"}, (100, 2)), StackSample((), {}, (23, 1))), PERIOD)

    assert (123, 3) == (profile.total(), profile.total(1))
    for values in ((1,), (1, 2, 3)):
        with pytest.raises(ValueError, match="not 2 values"):
            StackProfile(INUSE, (StackSample(stack, {}, values),), PERIOD)
