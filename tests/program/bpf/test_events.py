"""Readers of ring buffers, without any."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from exporter.bpf import events
from exporter.bpf.events import Events, _Stream
from exporter.bpf.native import BpfError
from tests.support import PATIENCE


def test_a_slow_reader_delays_no_scrape() -> None:
    """Losses are yielded while a record is received, which may take the time of an attachment."""
    try:
        events = Events()
    except BpfError as error:
        pytest.skip(str(error))
    events.streams[7] = _Stream(SimpleNamespace(name="records", lost=lambda: 23), print, 8)  # type: ignore[arg-type]
    found: list[int] = []
    with events._lock:  # as while a callback runs
        thread = threading.Thread(
            target=lambda: found.extend(int(str(it.value)) for it in events.collect()), daemon=True
        )
        thread.start()
        thread.join(PATIENCE)
        assert [23] == found
    events.streams.clear()
    events.close()


def test_records_gather_where_they_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that may let records gather waits after few of them, and after many reads on."""
    try:
        reader = Events()
    except BpfError as error:
        pytest.skip(str(error))
    paused = list[float]()
    counts = iter([1, events.FEW, 2])

    def poll(_: int) -> int:
        if (count := next(counts, None)) is None:
            raise BpfError(0, "closed")
        return count

    monkeypatch.setattr(reader, "poll", poll)
    monkeypatch.setattr(events.time, "sleep", paused.append)
    reader.run(0.5, 0.0)
    assert [0.5, 0.5] == paused
    reader.close()


def test_records_that_are_seldom_announced_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a record all buffers are read every 10 ms, for longer than programs may leave further ones unannounced; a
    record that is found then begins that time again. Without any the reader looks once in a second.
    """
    try:
        reader = Events()
    except BpfError as error:
        pytest.skip(str(error))
    now, waited = 0.0, list[int]()
    announced, unannounced = [1, 0, 0], {0.25: 1}

    def poll(milliseconds: int) -> int:
        nonlocal now
        waited.append(milliseconds)
        if len(waited) > 100:
            raise BpfError(0, "closed")
        if announced and announced.pop(0):
            return 1
        now += milliseconds / 1000
        return 0

    monkeypatch.setattr(reader, "poll", poll)
    monkeypatch.setattr(reader, "_drain_all", lambda: unannounced.pop(round(now, 3), 0))
    monkeypatch.setattr(events.time, "monotonic", lambda: now)
    reader.run(0.0, 0.01)
    looked = next(i for i, it in enumerate(waited[1:]) if it == 1000)
    assert 1000 == waited[0]
    assert 0.25 + events.LOOK_SECONDS == pytest.approx(looked * 0.01, abs=0.011)
    assert {1000} == set(waited[1 + looked :])
    reader.close()


def test_records_are_looked_for_longer_than_they_are_unannounced() -> None:
    """The time is that of bpf/probe.h, and some of it for the reader to get its turn."""
    declared = re.search(r"#define LOOKS_NS (\d+)", (Path(__file__).parents[3] / "bpf" / "probe.h").read_text())
    assert declared
    assert events.LOOK_SECONDS >= 1.2 * int(declared[1]) / 1e9
