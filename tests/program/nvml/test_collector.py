"""The collector: settings, behaviour without NVML, and labels of pids."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from exporter.collectors import nvml
from exporter.model import Labels, Sample, Unavailable
from exporter.node import Node
from exporter.nvml.gpus import Gpus
from exporter.nvml.snapshot import Event
from exporter.options import SettingsError
from exporter.series import FOLDED
from tests.nodes import make_node
from tests.standins.nvml import Scenario
from tests.support import until

DEFAULTS = {flag.name: flag.default for flag in nvml.FLAGS}
QUICK = DEFAULTS | {"fast-interval": 0.25, "processes-interval": 0.25, "slow-interval": 0.5}


class Names:
    def labels(self, pid: int) -> Labels:
        return {"pid": str(pid), "comm": "train"}

    def forget(self, pid: int) -> None: ...


def node(settings: Mapping[str, Any] = QUICK, proc: Path = Path("/proc")) -> Node:
    return make_node(settings, Names(), None, lambda _: None, proc=proc)


def test_wrong_peaks(tmp_path: Path) -> None:
    """A table of peaks that cannot be read is a wrong setting."""
    with pytest.raises(SettingsError, match=f"collector.nvml.peaks: {tmp_path} cannot be read as a table"):
        nvml.configure(DEFAULTS | {"peaks": str(tmp_path)})
    assert DEFAULTS == nvml.configure(DEFAULTS)


def test_without_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library a scrape fails at once as unavailable; the landing page shows no problem."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    collector = nvml.create(node())
    collector.start()
    try:

        def refusal() -> str:
            try:
                list(collector.collect())
            except Unavailable as error:
                return error.reason
            return ""

        reason = until(refusal)
    finally:
        collector.close()

    assert reason.startswith("NVML cannot be used: nvmlInit")
    assert [] == list(collector.problems())


def test_process_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML reports the host's pids: where /proc is a container's, the pid is the only label of a process."""
    for name, value in Scenario(tmp_path, **{"gpu0.process.0": "4242 compute 4096"}).environment().items():
        monkeypatch.setenv(name, value)

    assert [{"pid": "4242"}] == _processes(node(proc=tmp_path))
    assert [{"pid": "4242", "comm": "train"}] == _processes(_host())


def _host() -> Node:
    if Path("/proc/self/ns/pid").stat().st_ino != 0xEFFFFFFC:
        pytest.skip("this is not the host's pid namespace")
    return node()


def _processes(of: Node) -> list[dict[str, str]]:
    collector = nvml.create(of)
    collector.start()
    try:
        found = until(lambda: [it for it in collector.collect() if it.metric.name == "gpu.process.memory.usage"])
    finally:
        collector.close()
    own = ("gpu", "gpu_uuid", "kind")
    return [{name: value for name, value in it.labels.items() if name not in own} for it in found]


def test_series_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more series than allowed are shown for many processes; the others are folded, and counted."""
    lines = {f"gpu0.process.{place}": f"{100 + place} compute 4096" for place in range(300)}
    for name, value in Scenario(tmp_path, **lines).environment().items():
        monkeypatch.setenv(name, value)
    collector = nvml.create(node(QUICK | {"series-limit": 400}))
    collector.start()
    try:

        def folded() -> list[Sample]:
            samples = list(collector.collect())
            return samples if any(it.value for it in samples if it.metric is FOLDED) else []

        found = [it for it in until(folded) if it.metric.name.startswith(("hw.", "gpu."))]
    finally:
        collector.close()

    assert 300 < len(found) <= 400
    assert {"true"} == {it.labels["overflow"] for it in found if "overflow" in it.labels}


def test_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other collectors see the GPUs while the nvml collector runs, and no GPUs before and after."""
    for name, value in Scenario(tmp_path, gpus=2).environment().items():
        monkeypatch.setenv(name, value)
    shared = dataclasses.replace(node())
    before = shared.gpus.snapshot()
    with pytest.raises(LookupError, match="no GPU is held"):
        shared.gpus.release(1.0)
    collector = nvml.create(shared)
    collector.start()
    try:
        during = until(lambda: it if len((it := shared.gpus.snapshot()).gpus) == 2 and it.state == "running" else None)
    finally:
        collector.close()

    assert ("absent", 0) == (before.state, len(before.gpus))
    assert ("running", 2) == (during.state, len(during.gpus))
    assert "absent" == shared.gpus.snapshot().state


def test_a_listener_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """A listener that fails does not keep an event from the others."""
    received: list[Event] = []
    gpus = Gpus()
    gpus.listen(lambda _: 1 / 0)  # type: ignore[arg-type, return-value]
    gpus.listen(received.append)
    event = Event("GPU-a", 1.0, "xid", 79)
    gpus.publish(event)
    gpus.unlisten(received.append)
    gpus.publish(event)

    assert [event] == received
    assert "a listener failed on an event of GPU GPU-a" in caplog.text
