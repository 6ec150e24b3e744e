"""The page at /: its content, and that no other program's text becomes markup."""

from __future__ import annotations

import time
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.collector_state import CollectorState, Health
from exporter.model import Distribution, Kind, Metric, Sample
from exporter.views import landing_plots
from exporter.views.html import MOST_ROWS, duration, share, size
from exporter.views.landing import LandingPage

USAGE = Metric("gpu.cuda.memory.usage", "", Kind.GAUGE, "By", labels=("api_layer", "memory"), process=True)
LAUNCHES = Metric("gpu.cuda.kernel.launch.calls", "", Kind.COUNTER, labels=("api_layer",), process=True)
WAIT = Metric("gpu.cuda.sync_wait", "", Kind.HISTOGRAM, "s", labels=("api_layer", "api"), process=True)
ATTACHED = Metric("accel_exporter.probe.attached", "", Kind.GAUGE, labels=("probe", "symbol", "library", "placement"))
LOST = Metric("accel_exporter.events.lost", "", Kind.COUNTER, labels=("stream",))
CUDA = CollectorState("cuda", Health.OK, 0.012)
HEADS = ("pid", "GPU", "device/port", "communicator", "signal", "name", "library", "what")


class Reader(HTMLParser):
    """The texts of a page's table cells row by row, every tag, and whatever is outside of tables."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.text = ""
        self._in_cell = self._in_plot = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True
        self._in_plot = self._in_plot or tag == "svg"

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in ("td", "th")
        self._in_plot = self._in_plot and tag != "svg"

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"
        if self._in_cell and not self._in_plot:
            self.rows[-1][-1] += data


def process(pid: str, launches: int = 1000, **labels: str) -> list[Sample]:
    who = {"pid": pid, "comm": "python3", **labels}
    return [
        USAGE.sample(3 << 30, {**who, "api_layer": "driver", "memory": "device"}),
        USAGE.sample(1 << 30, {**who, "api_layer": "driver", "memory": "pool"}),
        USAGE.sample(9 << 30, {**who, "api_layer": "runtime", "memory": "device"}),
        LAUNCHES.sample(launches, {**who, "api_layer": "driver"}),
        WAIT.sample(Distribution((1.0,), (3, 1), 5.0), {**who, "api_layer": "driver", "api": "cuStreamSynchronize"}),
        WAIT.sample(Distribution((1.0,), (3, 1), 5.1), {**who, "api_layer": "runtime", "api": "cudaStreamSynchronize"}),
    ]


def row(page: str, first: str) -> dict[str, str]:
    """The only row that begins with this text: cells by the head of their column."""
    heads: list[str] = []
    found = []
    for cells in Reader(page).rows:
        heads = cells if cells[0] in HEADS else heads
        if cells[0] == first:
            found.append(dict(zip(heads, cells, strict=True)))
    [only] = found
    return only


def seen(page: LandingPage, samples: list[Sample]) -> str:
    """The page after a gathering, as Scraper has it."""
    assert page.history
    page.history.add(samples, None)
    return page.render(samples, [CUDA])


def test_process_row_counts_one_layer() -> None:
    """Bytes and waits of a process are the driver layer's: those of the runtime are the same ones again."""
    page = LandingPage().render(process("4711", pod="train-0", namespace="ml", container="main", gpu="3"), [CUDA])

    assert {
        "pid": "4711",
        "name": "python3",
        "where": "ml/train-0/main",
        "GPU": "3",
        "allocated": "4.0 GiB",
        "launches/s": "–",
        "launches": "1\u202f000",
        "last launch": "–",
        "waited": "5 s in 4",
        "errors": "0",
    } == row(page, "4711")


def test_runtime_layer_counts_where_the_driver_was_not_seen() -> None:
    """A process of which only runtime calls were seen shows those."""
    samples = [USAGE.sample(2048, {"pid": "7", "api_layer": "runtime", "memory": "device"})]

    assert "2.0 KiB" == row(LandingPage().render(samples, [CUDA]), "7")["allocated"]


def test_what_is_not_known_of_a_process_is_no_zero() -> None:
    """A process of which only a wait was seen has a dash for bytes, launches and the last launch."""
    samples = [WAIT.sample(Distribution((1.0,), (3, 1), 5.0), {"pid": "7", "api": "cuCtxSynchronize"})]

    found = row(LandingPage().render(samples, [CUDA]), "7")
    assert {"–"} == {found[head] for head in ("allocated", "launches/s", "launches", "last launch")}
    assert ("5 s in 4", "0") == (found["waited"], found["errors"])


def test_bytes_are_the_least_where_allocations_may_have_been_missed() -> None:
    """A process that was under way when it was first seen holds at least what the probes saw."""
    seen = Metric("gpu.cuda.seen_from_start", "", Kind.GAUGE, process=True)
    samples = [*process("4711"), seen.sample(0, {"pid": "4711"}), *process("12"), seen.sample(1, {"pid": "12"})]
    page = LandingPage().render(samples, [CUDA])

    assert ("≥ 4.0 GiB", "4.0 GiB") == (row(page, "4711")["allocated"], row(page, "12")["allocated"])


@pytest.mark.parametrize(
    ("labels", "where"),
    [
        ({"pod": "p", "namespace": "n"}, "n/p"),
        ({"slurm_job_id": "17", "container_id": "c" * 64}, "Slurm job 17"),
        ({"container_id": "c" * 64}, "container " + "c" * 12),
        ({}, "host"),
    ],
)
def test_where_a_process_runs(labels: dict[str, str], where: str) -> None:
    """A pod, a Slurm job, a container or the host, by what is known."""
    assert where == row(LandingPage().render(process("1", **labels), [CUDA]), "1")["where"]


def test_probes_in_each_profile() -> None:
    """Attached probes are counted alike whether each has its sample, or all of a library are one: here 3 of 4."""

    def probe(value: int, placement: str, **symbol: str) -> Sample:
        return ATTACHED.sample(value, {"probe": "cuda", "library": "libcuda.so.1", "placement": placement, **symbol})

    missing = probe(0, "", symbol="d")
    singly = [probe(1, "emulated", symbol="a"), probe(1, "emulated", symbol="b"), probe(1, "stepped", symbol="c")]
    for samples in ([*singly, missing], [probe(2, "emulated"), probe(1, "stepped"), missing]):
        page = LandingPage().render(samples, [CUDA])
        found = row(page, "libcuda.so.1")
        assert ("3 of 4", "2", "1") == (found["attached"], found["one trap"], found["two traps"])
        assert "3 of 4 probes attached" in Reader(page).text


def test_where_a_process_runs_in_profile_node() -> None:
    """The container is known from the one series that has it, by the pid."""
    info = Metric("job.process.info", "", Kind.GAUGE, process=True)
    page = LandingPage().render([*process("1"), info.sample(1, {"pid": "1", "container_id": "c" * 64})], [CUDA])
    assert "container " + "c" * 12 == row(page, "1")["where"]


def test_rates_and_plots_are_those_of_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches a second are those since the look before; of a process with no look before, nothing is known."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    page = LandingPage(history=landing_plots.history())
    first = seen(page, process("1", 1000))
    clock[0] += 10

    second = seen(page, process("1", 3000) + process("2"))

    assert "rates follow within seconds" in first
    assert "rates of the last 10 s" in second
    assert ("200", "–") == (row(second, "1")["launches/s"], row(second, "2")["launches/s"])
    assert "launches a second, last 10 minutes: highest 200, now 200" in second


def test_most_of_many_processes_are_left_to_metrics() -> None:
    """The page stays short however many processes there are, and has the number of those left out."""
    samples = [sample for pid in range(MOST_ROWS + 5) for sample in process(str(pid))]

    page = LandingPage().render(samples, [CUDA])

    assert MOST_ROWS == sum(cells[0].isdecimal() for cells in Reader(page).rows)
    assert "and 5 more processes on /metrics" in page


def test_what_does_not_work_is_shown_with_its_remedy() -> None:
    """Each collector has its state, reason and remedy; problems of a working one are listed."""
    states = [
        CollectorState("cuda", Health.OK, 0.012, problems=("cuMemAlloc_v2 in libcuda.so.1: seccomp",)),
        CollectorState("infiniband", Health.UNAVAILABLE, None, "no device", "load the driver"),
        CollectorState("nvml", Health.LATE, 9.5, "still running after 9.5 s"),
    ]
    samples = [
        ATTACHED.sample(value, {"probe": "cuda", "symbol": str(n), "library": "libcuda.so.1", "placement": kind})
        for n, (value, kind) in enumerate([(1, "emulated"), (1, "stepped"), (0, "")])
    ]

    page = LandingPage().render(samples, states)

    assert ["infiniband", "unavailable", "–", "–", "no device; load the driver"] == [*row(page, "infiniband").values()]
    assert ["nvml", "late", "10 s", "–", "still running after 9.5 s"] == [*row(page, "nvml").values()]
    assert ["libcuda.so.1", "cuda", "2 of 3", "1", "1", "0", "0"] == [*row(page, "libcuda.so.1").values()]
    assert "cuMemAlloc_v2 in libcuda.so.1: seccomp" in Reader(page).text


def test_losses_are_listed_and_their_absence_shown() -> None:
    """A counter of losses above 0 is a row; all at 0 is a sentence."""
    lost = LandingPage().render([LOST.sample(1234567, {"stream": "spans"}), LOST.sample(0, {"stream": "x"})], [CUDA])

    what = "events lost on their way from the kernel"
    assert [what, "stream=spans", "1\u202f234\u202f567"] == [*row(lost, what).values()]
    assert "stream=x" not in lost
    assert "No known losses." in LandingPage().render([LOST.sample(0, {"stream": "x"})], [CUDA])


def test_unknown_is_no_zero() -> None:
    """A node's card has a dash where the collector does not work, and 0 where it works and saw nobody."""
    success = Metric("accel_exporter.collector.success", "", Kind.GAUGE, labels=("collector",))

    def cards(value: int) -> str:
        page = LandingPage(history=landing_plots.history())
        return seen(page, [success.sample(value, {"collector": name}) for name in ("cuda", "nvml", "infiniband")])

    assert (6, 5) == (cards(0).count("<b>–</b>"), cards(1).count("<b>–</b>"))
    assert "CUDA memory</span><b>0 B</b>" in cards(1)


def test_nothing_seen_is_known_only_where_somebody_looked() -> None:
    """If the collectors of calls do not work, the page has no 0 and no "none" for their numbers."""
    success = Metric("accel_exporter.collector.success", "", Kind.GAUGE, labels=("collector",))
    search = Metric("accel_exporter.source.age", "", Kind.GAUGE, "s", labels=("source",))

    def texts(*working: str) -> str:
        names = ("cuda", "nccl", "verbs")
        samples = [success.sample(int(name in working), {"collector": name}) for name in names]
        samples += [search.sample(1.0, {"source": "processes"})] if working else []
        return Reader(LandingPage().render(samples, [CUDA])).text

    blind, half, all_of_them = texts(), texts("cuda"), texts("cuda", "nccl", "verbs")
    unknown = "Unknown: collector {} does not work or is disabled."
    for sentence, collector in (
        ("No communicator was seen.", "nccl"),
        ("No process was seen using RDMA verbs.", "verbs"),
    ):
        assert sentence in all_of_them
        assert sentence not in blind + half
        assert unknown.format(collector) in blind
        assert unknown.format(collector) in half
    assert "No calls of CUDA, NCCL or RDMA were seen." in all_of_them
    assert "No calls of CUDA were seen. Unknown: calls of NCCL or RDMA. " in half
    assert "No calls of" not in blind
    assert "Unknown: calls of CUDA, NCCL or RDMA. " in blind
    assert ("processes unknown" in blind, "probes unknown" in blind) == (True, True)
    assert ("0 processes" in half, "0 of 0 probes attached" in half) == (True, True)
    libraries = "No running process uses a library that has probes."
    assert (libraries in blind, libraries in half) == (False, True)


def everything(text: str) -> list[Sample]:
    """Samples of every table, with this text wherever others choose it; two looks' worth of counters."""
    who = {"pid": "1", "comm": text, "pod": text, "namespace": text, "container": text, "gpu": text}
    gpu = {"gpu": text, "gpu_uuid": text, "pci_bus_id": text}
    qp = {"device": text, "port": text, "qp": text, "peer_qp": text, "peer_gid": text, "peer_pod": text}
    rank = {"comm_hash": text, "rank": text, "nranks": text}
    fault = {"category": text, "component": text, "signal": text}
    own: list[tuple[str, dict[str, str], float | Distribution]] = [
        ("accel_exporter.collector.success", {"collector": "xid"}, 1),
        ("accel_exporter.events.lost", {"stream": text}, 1),
        ("accel_exporter.probe.attached", {"probe": text, "symbol": text, "library": text, "placement": text}, 0),
        ("hw.gpu.info", {**gpu, "name": text}, 1),
        ("hw.status", {**gpu, "state": text}, 1),
        ("hw.gpu.utilization", {**gpu, "task": "general"}, 0.5),
        ("gpu.xid.errors", {**gpu, "xid": text}, 2),
        ("rdma.qp.state", {**who, **qp, "peer_namespace": text, "peer_lid": text}, 3),
        ("rdma.send", {**who, **qp}, 5),
        ("rdma.link.state", {"device": text, "port": text}, 4),
        ("rdma.nack", {"device": text, "port": text, "kind": text}, 0.5),
        ("nccl.communicator.info", {**who, **rank}, 1),
        ("nccl.rank.arrival_lag", {**who, **rank}, Distribution((1.0,), (3, 1), 5.0)),
        ("nccl.collective.calls", {**who, "collective": text}, 9),
        ("accel.node.fault", fault, 1),
        ("accel.node.fault.source_available", {"source": text}, 0),
    ]
    names = tuple({key for _, labels, _ in own for key in labels})
    return process(**who) + [
        Metric(name, "", Kind.GAUGE, labels=names).sample(value, labels) for name, labels, value in own
    ]


@given(st.text(st.characters(), min_size=1, max_size=300))
def test_no_text_becomes_markup(text: str) -> None:
    """Whatever a process, pod, device, GPU, fault or error is called, the page has the same tags and no script."""

    def page(text: str) -> str:
        page, state = (
            LandingPage(history=landing_plots.history()),
            CollectorState(text, Health.FAILED, 1.0, text, text, (text,)),
        )
        page.history.add(everything(text), None)
        return page.render(everything(text), [state])

    plain, found = page("x"), page(text)

    assert Reader(plain).tags == Reader(found).tags
    assert found.count("<") == plain.count("<")
    assert Reader(plain).tags.isdisjoint({"script", "object", "iframe", "img", "form"})


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (200 << 30, "200 GiB"), (1 << 60, "1024 PiB")]
)
def test_sizes(number: int, text: str) -> None:
    """Bytes are in the binary unit that suits them."""
    assert text == size(number)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2e-5, "20 µs"),
        (0.25, "250 ms"),
        (90, "90 s"),
        (600, "10 min"),
        (90_000, "25 h"),
        (864_000, "10 days"),
        (-1, "0 µs"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    """Times are in the unit that suits them; a clock set back is no time."""
    assert text == duration(seconds)


@pytest.mark.parametrize(
    ("ratio", "text"), [(0, "0 %"), (1, "100 %"), (0.123, "12 %"), (0.000123, "0.012 %"), (2.3e-7, "2e-05 %")]
)
def test_shares(ratio: float, text: str) -> None:
    """Shares are in percent, small ones with the digits that distinguish them from none."""
    assert text == share(ratio)


def test_flame_graph_is_linked_where_it_is_served() -> None:
    """Only with profiles is there a link to them."""
    assert 'href="/flamegraph"' in LandingPage(profiles=True).render([], [])
    assert "flamegraph" not in LandingPage().render([], [])
