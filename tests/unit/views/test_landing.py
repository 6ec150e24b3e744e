"""The page at /: what it says, and that nobody else's text becomes markup."""

from __future__ import annotations

import time
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.model import Distribution, Kind, Metric, Sample
from exporter.scrape import Health, State
from exporter.views.html import duration, size
from exporter.views.landing import MOST_ROWS, Page

USAGE = Metric("gpu.cuda.memory.usage", "", Kind.GAUGE, "By", labels=("api_layer", "memory"), process=True)
LAUNCHES = Metric("gpu.cuda.kernel.launch.calls", "", Kind.COUNTER, labels=("api_layer",), process=True)
WAIT = Metric("gpu.cuda.sync_wait", "", Kind.HISTOGRAM, "s", labels=("api",), process=True)
ATTACHED = Metric("accel_exporter.probe.attached", "", Kind.GAUGE, labels=("probe", "symbol", "library", "placement"))
LOST = Metric("accel_exporter.events.lost", "", Kind.COUNTER, labels=("stream",))
CUDA = State("cuda", Health.OK, 0.012)


class Reader(HTMLParser):
    """The texts of a page's table cells row by row, every tag, and whatever is outside of tables."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.text = ""
        self._in_cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"
        if self._in_cell:
            self.rows[-1][-1] += data


def process(pid: str, launches: int = 1000, **labels: str) -> list[Sample]:
    who = {"pid": pid, "comm": "python3", **labels}
    return [
        USAGE.sample(3 << 30, {**who, "api_layer": "driver", "memory": "device"}),
        USAGE.sample(1 << 30, {**who, "api_layer": "driver", "memory": "pool"}),
        USAGE.sample(9 << 30, {**who, "api_layer": "runtime", "memory": "device"}),
        LAUNCHES.sample(launches, {**who, "api_layer": "driver"}),
        WAIT.sample(Distribution((1.0,), (3, 1), 5.0), {**who, "api": "cuStreamSynchronize"}),
        WAIT.sample(Distribution((1.0,), (3, 1), 5.1), {**who, "api": "cudaStreamSynchronize"}),
    ]


def row(page: str, first: str) -> list[str]:
    [found] = [cells for cells in Reader(page).rows if cells[:1] == [first]]
    return found


def test_process_row_counts_one_layer() -> None:
    """Bytes and waits of a process are the driver layer's: those of the runtime are the same ones again."""
    page = Page().render(process("4711", pod="train-0", namespace="ml", container="main", gpu="3"), [CUDA])

    assert ["4711", "python3", "ml/train-0/main", "3", "4.0 GiB", "–", "1\u202f000", "–", "5 s in 4", "0"] == row(
        page, "4711"
    )


def test_runtime_layer_counts_where_the_driver_was_not_seen() -> None:
    """A process of which only runtime calls were seen shows those."""
    samples = [USAGE.sample(2048, {"pid": "7", "api_layer": "runtime", "memory": "device"})]

    assert "2.0 KiB" == row(Page().render(samples, [CUDA]), "7")[4]


def test_what_is_not_known_of_a_process_is_no_zero() -> None:
    """A process of which only a wait was seen has a dash for bytes, launches and the last launch."""
    samples = [WAIT.sample(Distribution((1.0,), (3, 1), 5.0), {"pid": "7", "api": "cuCtxSynchronize"})]

    assert ["–", "–", "–", "–", "5 s in 4"] == row(Page().render(samples, [CUDA]), "7")[4:9]


def test_bytes_are_the_least_where_allocations_may_have_been_missed() -> None:
    """A process that was under way when it was first seen holds at least what the probes saw."""
    seen = Metric("gpu.cuda.seen_from_start", "", Kind.GAUGE, process=True)
    samples = [*process("4711"), seen.sample(0, {"pid": "4711"}), *process("12"), seen.sample(1, {"pid": "12"})]
    page = Page().render(samples, [CUDA])

    assert ("≥ 4.0 GiB", "4.0 GiB") == (row(page, "4711")[4], row(page, "12")[4])


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
    assert where == row(Page().render(process("1", **labels), [CUDA]), "1")[2]


def test_rate_is_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches a second are those between two looks at the page; a process new since then has none yet."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    page = Page()
    page.render(process("1", 1000), [CUDA])
    clock[0] += 10

    second = page.render(process("1", 3000) + process("2"), [CUDA])

    assert ("200", "–") == (row(second, "1")[5], row(second, "2")[5])
    assert "launches/s over 10 s" in Reader(second).text


def test_most_of_many_processes_are_left_to_metrics() -> None:
    """The page stays short however many processes there are, and says how many it leaves out."""
    samples = [sample for pid in range(MOST_ROWS + 5) for sample in process(str(pid))]

    page = Page().render(samples, [CUDA])

    assert MOST_ROWS == sum(len(cells) == 10 and cells[0].isdecimal() for cells in Reader(page).rows)
    assert "and 5 more on /metrics" in page


def test_what_does_not_work_is_said_with_its_remedy() -> None:
    """Each collector has its state, reason and remedy; problems of a working one are listed."""
    states = [
        State("cuda", Health.OK, 0.012, problems=("cuMemAlloc_v2 in libcuda.so.1: seccomp",)),
        State("infiniband", Health.UNAVAILABLE, None, "no device", "load the driver"),
        State("nvml", Health.LATE, 9.5, "still running after 9.5 s"),
    ]
    samples = [
        ATTACHED.sample(value, {"probe": "cuda", "symbol": str(n), "library": "libcuda.so.1", "placement": kind})
        for n, (value, kind) in enumerate([(1, "emulated"), (1, "stepped"), (0, "")])
    ]

    page = Page().render(samples, states)

    assert ["infiniband", "unavailable", "–", "no device; load the driver"] == row(page, "infiniband")
    assert ["nvml", "late", "10 s", "still running after 9.5 s"] == row(page, "nvml")
    assert ["libcuda.so.1", "cuda", "2 of 3", "1", "1", "0", "0"] == row(page, "libcuda.so.1")
    assert "cuMemAlloc_v2 in libcuda.so.1: seccomp" in Reader(page).text


def test_losses_are_listed_and_their_absence_said() -> None:
    """A counter of losses above 0 is a row; all at 0 is said."""
    lost = Page().render([LOST.sample(1234567, {"stream": "spans"}), LOST.sample(0, {"stream": "x"})], [CUDA])

    assert ["events lost on their way from the kernel", "stream=spans", "1\u202f234\u202f567"] == row(
        lost, "events lost on their way from the kernel"
    )
    assert "stream=x" not in lost
    assert "None that is known." in Page().render([LOST.sample(0, {"stream": "x"})], [CUDA])


def test_unknown_is_no_zero() -> None:
    """Where the CUDA collector does not work, the page claims no number of processes, bytes or launches."""
    assert 3 == Page().render([], [State("cuda", Health.FAILED, None, "no BPF")]).count("<b>–</b>")
    assert 0 == Page().render([], [CUDA]).count("<b>–</b>")


@given(st.text(st.characters(), min_size=1, max_size=300))
def test_no_text_becomes_markup(text: str) -> None:
    """Whatever a process, pod, library or error is called, the page has the same tags and no script."""
    samples = process("1", comm=text, pod=text) + [
        LOST.sample(1, {"stream": text}),
        ATTACHED.sample(0, {"probe": text, "symbol": text, "library": text, "placement": text}),
    ]
    states = [State(text, Health.FAILED, 1.0, text, text, (text,))]
    plain = Page().render(
        process("1", comm="x", pod="x")
        + [
            LOST.sample(1, {"stream": "x"}),
            ATTACHED.sample(0, {"probe": "x", "symbol": "x", "library": "x", "placement": "x"}),
        ],
        [State("x", Health.FAILED, 1.0, "x", "x", ("x",))],
    )

    page = Page(telemetry_path="/metrics").render(samples, states)

    assert Reader(plain).tags == Reader(page).tags
    assert page.count("<") == plain.count("<")
    assert "script" not in Reader(page).tags


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
