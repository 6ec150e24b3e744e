"""Gaps in which calls of a library are not seen, as programs know them."""

from __future__ import annotations

from exporter.bpf.gaps import GAP, Gaps


def test_times_of_gaps() -> None:
    """A process that gets probes of its own in a gap is whole from then on, before from when the others are."""
    rows, now = dict[int, int](), iter([100, 150, 200, 300])
    written: list[tuple[int, int]] = []

    class Rows:
        def set(self, key: int, value: int) -> None:
            rows[key] = value
            written.append((key, value))

    gaps = Gaps(Rows(), 7, lambda: next(now))
    assert 0 == gaps.of_link()
    gaps.begin()
    assert 100 == gaps.of_link()
    gaps.end()
    assert 150 == gaps.of_link() == gaps.since
    gaps.begin()
    gaps.end()
    gaps.forget()
    assert [(7, GAP), (7, 150), (7, GAP), (7, 200), (7, 0)] == written and rows == {7: 0}
