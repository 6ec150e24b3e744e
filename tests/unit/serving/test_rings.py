"""Following of io_uring: begins once it is used, and not on kernels that cannot."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.bpf.libbpf import BpfError
from exporter.serving.rings import PROGRAMS, Rings


class Kernel:
    """The part of a loaded object that is used, on a kernel that keeps where bytes are, or has these programs only."""

    def __init__(self, keeps: bool = True, attachable: int = len(PROGRAMS)) -> None:
        self.attached: list[str] = []
        self.used: dict[int, int] = {}
        self._attachable = attachable
        self.programs = {name: SimpleNamespace(attach=self._attach(name)) for name in PROGRAMS}
        self.programs["keeps_ring_bytes"] = SimpleNamespace(run=lambda: int(keeps))
        self.maps = {"ring_used": SimpleNamespace(set=self.used.__setitem__)}

    def _attach(self, name: str) -> Any:
        def attach() -> SimpleNamespace:
            if len(self.attached) == self._attachable:
                raise BpfError(errno.ENOENT, f"attach {name}")
            self.attached.append(name)
            return SimpleNamespace(close=lambda: self.attached.remove(name))

        return attach


def test_only_once_it_is_used() -> None:
    kernel: Any = Kernel()
    rings = Rings(kernel)
    rings.update(0)
    assert ([], {}) == (kernel.attached, kernel.used)
    rings.update(1)
    rings.update(23)
    assert (list(PROGRAMS), {0: 1}, []) == (kernel.attached, kernel.used, list(rings.problems()))
    rings.close()
    assert [] == kernel.attached


@pytest.mark.parametrize(
    ("kernel", "reason"), [(Kernel(keeps=False), "Linux 6.10"), (Kernel(attachable=1), "attach on_ring_wait")]
)
def test_kernels_that_cannot(kernel: Any, reason: str) -> None:
    """The reason is a problem of the collector, nothing stays attached, and it is not tried again."""
    rings = Rings(kernel)
    for _ in range(2):
        rings.update(1)
        [problem] = rings.problems()
        assert reason in problem and ([], {}) == (kernel.attached, kernel.used)
