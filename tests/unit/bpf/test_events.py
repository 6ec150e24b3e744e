"""Readers of ring buffers, without any."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from exporter.bpf import events
from exporter.bpf.events import Events, _Stream
from exporter.bpf.native import BpfError


def test_a_slow_reader_delays_no_scrape() -> None:
    """Losses are yielded while a record is received, which may take the time of an attachment."""
    try:
        events = Events()
    except BpfError as error:
        pytest.skip(str(error))
    events._streams[7] = _Stream(SimpleNamespace(name="records", lost=lambda: 23), print, 8)  # type: ignore[arg-type]
    found: list[int] = []
    with events._lock:  # as while a callback runs
        thread = threading.Thread(
            target=lambda: found.extend(int(str(it.value)) for it in events.collect()), daemon=True
        )
        thread.start()
        thread.join(2)
        assert [23] == found
    events._streams.clear()
    events.close()


def test_records_gather_where_they_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that may let records gather waits after few of them, and after many reads on."""
    try:
        reader = Events()
    except BpfError as error:
        pytest.skip(str(error))
    paused = list[float]()
    counts = iter([1, events._FEW, 2])

    def poll(_: int) -> int:
        if (count := next(counts, None)) is None:
            raise BpfError(0, "closed")
        return count

    monkeypatch.setattr(reader, "poll", poll)
    monkeypatch.setattr(events.time, "sleep", paused.append)
    reader._run(0.5)
    assert [0.5, 0.5] == paused
    reader.close()
