"""The settings made of options: which collectors run, with what, and which source wins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from exporter import discover, option_sources, settings
from exporter.options import SettingsError
from tests.unit.settings_cases import FOUND, error, load


def test_defaults() -> None:
    """Without a flag the collectors on by default run with their own defaults."""
    expected = {"live-allocations": 1000, "skip": ("a", "b"), "wait": 0.5, "deep": False, "mode": "fast"}
    expected |= {"rate": 10, "every": 5.0, "kind": "a"}
    assert {"cuda": expected} == load().collectors


def test_options_in_place_of_flags(tmp_path: Path) -> None:
    """A collector with options of its own is on when their values enable it, and has no --collector.NAME."""
    file = tmp_path / "c.yaml"
    file.write_text("old: {names: {enabled: true, file: a.csv}}\n")

    assert "foreign" not in load("--old.names.file=a.csv").collectors
    assert {"file": "a.csv"} == load(f"--config.file={file}").collectors["foreign"]
    assert "unknown flag '--collector.foreign'" in error("--collector.foreign")


def test_flag_over_variable_over_file(tmp_path: Path) -> None:
    """Of a setting given thrice the flag counts, of one given twice the variable."""
    file = tmp_path / "c.yaml"
    file.write_text("collector: {cuda: {live-allocations: 1, wait: 2, mode: file}}")
    environ = {"ACCEL_EXPORTER_COLLECTOR_CUDA_LIVE_ALLOCATIONS": "3", "ACCEL_EXPORTER_COLLECTOR_CUDA_WAIT": "4"}

    cuda = load(f"--config.file={file}", "--collector.cuda.live-allocations=5", environ=environ).collectors["cuda"]

    assert (5, 4.0, "file") == (cuda["live-allocations"], cuda["wait"], cuda["mode"])


def test_file_named_by_variable(tmp_path: Path) -> None:
    """The file itself may be named by its variable."""
    file = tmp_path / "c.yaml"
    file.write_text("log:\n  level: debug\n")

    assert "debug" == load(environ={"ACCEL_EXPORTER_CONFIG_FILE": str(file)}).log.level


@pytest.mark.parametrize(
    ("arguments", "running"),
    [
        ([], ["cuda"]),
        (["--no-collector.cuda"], []),
        (["--collector.rare"], ["cuda", "rare"]),
        (["--collector.disable-defaults"], []),
        (["--collector.disable-defaults", "--collector.rare"], ["rare"]),
        (["--collector.disable-defaults", "--collector.cuda"], ["cuda"]),
        (["--no-collector.cuda", "--collector.cuda"], ["cuda"]),
    ],
)
def test_collectors_switched(arguments: Sequence[str], running: list[str]) -> None:
    """Collectors are switched one by one, or all off but those named; the last word counts."""
    assert running == list(load(*arguments).collectors)


@pytest.mark.parametrize(
    ("text", "running"),
    [
        ("collector: {cuda: false}", []),
        ("collector: {cuda: {enabled: false, wait: 3}, rare: true}", ["rare"]),
        ("collector.rare: yes", ["cuda", "rare"]),
        ("collector: {disable-defaults: true, rare: {enabled: true}}", ["rare"]),
        ("", ["cuda"]),
    ],
)
def test_collectors_switched_in_file(tmp_path: Path, text: str, running: list[str]) -> None:
    """In the file a collector is a switch, or a mapping of its flags with `enabled`."""
    (tmp_path / "c.yaml").write_text(text)

    assert running == list(load(f"--config.file={tmp_path}/c.yaml").collectors)


def test_a_collector_refuses_what_does_not_fit_together() -> None:
    """A collector's own `configure` sees values that are in range, and what it refuses is a wrong setting too."""
    found = list(discover.collectors().values())
    declared = settings.all_options(found)
    flags = ["--collector.verbs.poll-window-seconds=5", "--collector.verbs.poll-interval-seconds=4"]
    with pytest.raises(SettingsError, match=r"poll-interval-seconds is shorter than .*poll-window-seconds"):
        settings.load(option_sources.from_flags(settings.make_parser(found), flags, declared), {}, found)


def test_capabilities_are_those_of_what_is_on() -> None:
    """A capability is kept while a collector runs with the setting that needs it."""
    found = list(discover.collectors().values())
    declared = settings.all_options(found)

    def kept(*flags: str) -> frozenset[str]:
        given = option_sources.from_flags(settings.make_parser(found), flags, declared)
        return settings.load(given, {}, found).capabilities

    assert frozenset() == kept() == kept("--no-collector.ras", "--collector.ras.namespaces")
    assert {"CAP_SYS_ADMIN"} == kept("--collector.ras.namespaces") == kept("--collector.faults.nvme-smart")
    both = kept("--collector.infiniband.qp-counters=pid", "--collector.ras.namespaces")
    assert {"CAP_NET_ADMIN", "CAP_SYS_ADMIN"} == both


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:99999", "::1:80", ":-1", ":٣", "[::1:80"])
def test_an_address_of_no_form_is_a_wrong_setting(address: str) -> None:
    """An address that cannot be listened on anywhere is refused before the start, as any other wrong value."""
    assert f"web.listen-address: {address!r} is no address" in error(f"--web.listen-address={address}")
    assert (":9090", "[::1]:80") == load("--web.listen-address=:9090,[::1]:80").web.listen_address


def test_a_file_does_not_name_another(tmp_path: Path) -> None:
    """A file of settings that names a file is refused: it would not be read."""
    file = tmp_path / "c.yaml"
    file.write_text("config: {file: other.yaml}\n")
    assert f"{file}: config.file cannot be set" in error(f"--config.file={file}")


def test_help_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Help names every option once, how to switch it off and where else to set it."""
    text = settings.make_parser(FOUND).format_help()

    assert [] == [
        option.name
        for option in settings.all_options(FOUND)
        if text.count(f"  --{option.name} ") + text.count(f"  --{option.name}\n") != (not option.moved_to)
    ]
