"""Another exporter's page: compared with prometheus_client's parser, and hostile pages."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from exporter.compat.dcgm import exposition
from exporter.compat.dcgm.exposition import ParsedSeries, read
from exporter.model import Kind

PAGE = """\
# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-0",modelName="NVIDIA \\"A100\\" a\\\\b",pod=""} 41
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-1",} 42.5 1700000000000
# HELP DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION Energy.
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-0"} 9007199254740993
# TYPE dcgm_gpu_temp gauge
dcgm_gpu_temp 1e3
# TYPE go_goroutines gauge
go_goroutines 8
"""


def test_page() -> None:
    """Names, types, help, escaped labels and numbers are those of the page; series of others are left out."""
    assert (
        [
            ParsedSeries(
                "DCGM_FI_DEV_GPU_TEMP",
                Kind.GAUGE,
                "GPU temperature (in C).",
                {"gpu": "0", "UUID": "GPU-0", "modelName": 'NVIDIA "A100" a\\b', "pod": ""},
                41,
            ),
            ParsedSeries(
                "DCGM_FI_DEV_GPU_TEMP", Kind.GAUGE, "GPU temperature (in C).", {"gpu": "1", "UUID": "GPU-1"}, 42.5
            ),
            ParsedSeries(
                "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
                Kind.COUNTER,
                "Energy.",
                {"gpu": "0", "UUID": "GPU-0"},
                2**53 + 1,
            ),
            ParsedSeries("dcgm_gpu_temp", Kind.GAUGE, "", {}, 1000.0),
        ],
        0,
    ) == read(PAGE)


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine draws slowly
@given(st.dictionaries(st.from_regex(r"[a-z]{1,6}", fullmatch=True), st.text(max_size=20), max_size=4))
def test_labels_as_prometheus_reads_them(labels: dict[str, str]) -> None:
    """Any labels are those that prometheus_client reads from the same line."""
    escaped = {
        name: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, value in labels.items()
    }
    line = "DCGM_X{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "} 1\n"
    page = "# TYPE DCGM_X gauge\n" + line

    (found,), refused = read(page)

    assert 0 == refused
    assert labels == found.labels
    [family] = text_string_to_metric_families(page)
    assert family.samples[0].labels == found.labels


@pytest.mark.parametrize(
    "line",
    [
        "DCGM_X",
        "DCGM_X{",
        'DCGM_X{a="1} 1',
        'DCGM_X{a="1"',
        'DCGM_X{a="1",a="2"} 1',
        'DCGM_X{__name__="up"} 1',
        "DCGM_X{a=1} 1",
        "DCGM_X one",
        "DCGM_UNTYPED 1",
        "DCGM_X{" + 'a="' * 100_000,
        "DCGM_X{" + '""' * 8_000 + "x 1",
        "DCGM_X " + "9" * 20_000,
        'DCGM_X{a="\\',
    ],
)
def test_refused(line: str) -> None:
    """A line that is no sample of a gauge or counter is counted, quickly, and other lines are read."""
    began = time.process_time()

    series, refused = read(f"# TYPE DCGM_X gauge\n{line}\nDCGM_X 7\n")

    assert ([7], 1) == ([it.value for it in series], refused)
    assert time.process_time() - began < 1


@given(st.text(alphabet='DCGM_X{}a="\\,# 1\n', max_size=60))
def test_any_text(text: str) -> None:
    """Any page is read without an error."""
    series, refused = read("# TYPE DCGM_X gauge\nDCGM_" + text)

    assert len(series) + refused >= 0


def test_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Series beyond MOST_SERIES are counted as refused."""
    monkeypatch.setattr(exposition, "MOST_SERIES", 3)

    series, refused = read("# TYPE DCGM_X gauge\n" + 'DCGM_X{a="1"} 1\n' * 5)

    assert (3, 2) == (len(series), refused)
