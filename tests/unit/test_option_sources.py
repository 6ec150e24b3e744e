"""Values of options from flags, variables and a file, and the one sentence for each mistake."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter import discover, option_sources, settings
from exporter.options import SettingsError
from tests.unit.settings_cases import FOUND, error, load


def test_lists() -> None:
    """A list is given with commas, by repetition, or both."""
    cuda = load("--collector.cuda.skip=x, y", "--collector.cuda.skip", "z").collectors["cuda"]

    assert ("x", "y", "z") == cuda["skip"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--collector.cudda"], "unknown flag '--collector.cudda'; did you mean --collector.cuda?"),
        (["--no-colector.cuda"], "unknown flag '--no-colector.cuda'; did you mean --no-collector.cuda?"),
        (["--log.levle=debug"], "unknown flag '--log.levle'; did you mean --log.level?"),
        (["--zzz"], "unknown flag '--zzz'; see --help"),
        (["strange"], "unknown argument 'strange'; see --help"),
        (["--log.level"], "flag --log.level: expected one argument"),
        (["--log.level=loud"], "flag --log.level: 'loud' is not one of debug, info, warn, error"),
        (
            ["--collector.cuda.live-allocations=many"],
            "flag --collector.cuda.live-allocations: 'many' is not a whole number, 0 or more",
        ),
        (
            ["--collector.cuda.live-allocations=-1"],
            "flag --collector.cuda.live-allocations: '-1' is not a whole number, 0 or more",
        ),
        (["--collector.cuda.wait=nan"], "flag --collector.cuda.wait: 'nan' is not a number, 0 or more"),
        (["--collector.cuda.rate=0"], "flag --collector.cuda.rate: '0' is not a whole number, 1 to 1000"),
        (["--collector.cuda.rate=1001"], "flag --collector.cuda.rate: '1001' is not a whole number, 1 to 1000"),
        (["--collector.cuda.every=0.1"], "flag --collector.cuda.every: '0.1' is not a number, 0.2 to 60"),
        (["--collector.cuda.kind=c"], "flag --collector.cuda.kind: 'c' is not one of a, b"),
        (["--path.procfs="], "flag --path.procfs: '' is not a path"),
        (["--path.sysfs="], "flag --path.sysfs: '' is not a path"),
        (["--path.logs="], "flag --path.logs: '' is not a path"),
        (["--kmsg.path="], "flag --kmsg.path: '' is not a path"),
        (["--path.procfs=/nowhere"], "path.procfs: /nowhere is not a folder"),
        (["--config.file=/nowhere.yaml"], "/nowhere.yaml cannot be read: No such file or directory"),
    ],
)
def test_wrong_flag(arguments: Sequence[str], expected: str) -> None:
    """A wrong flag is named, with the nearest known one or what its value should be."""
    assert expected == error(*arguments)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("LOG_LEVEL", "loud", "'loud' is not one of debug, info, warn, error"),
        ("PATH_SYSFS", "", "'' is not a path"),
        ("BPF_STATS", "maybe", "'maybe' is not true or false"),
        ("COLLECTOR_CUDA_DEEP", "", "'' is not true or false"),
        ("COLLECTOR_CUDA_RATE", "1e9", "'1e9' is not a whole number, 1 to 1000"),
        ("COLLECTOR_CUDA_RATE", "1001", "'1001' is not a whole number, 1 to 1000"),
    ],
)
def test_wrong_variable(name: str, value: str, expected: str) -> None:
    """A wrong variable is named."""
    assert f"variable ACCEL_EXPORTER_{name}: {expected}" == error(environ={f"ACCEL_EXPORTER_{name}": value})


def test_variables_of_kubernetes() -> None:
    """The variables that Kubernetes makes for a service named like us are not taken for settings."""
    load(environ={"ACCEL_EXPORTER_PORT": "tcp://10.0.0.1:19445", "ACCEL_EXPORTER_SERVICE_HOST": "10.0.0.1"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("log:\n  levl: info", "2: unknown key 'log.levl'; did you mean log.level?"),
        ("colector: {}", "1: unknown key 'colector'; did you mean collector?"),
        ("\n\nzzz: 1", "3: unknown key 'zzz'; see --help"),
        (
            "collector: {cuda: {enabeld: true}}",
            "1: unknown key 'collector.cuda.enabeld'; did you mean collector.cuda.enabled?",
        ),
        ("log: debug", "1: log has to be a mapping of names to values"),
        ("- log", "1: the file has to be a mapping of names to values"),
        ("log: {level: [info]}", "1: log.level: ['info'] is not one of debug, info, warn, error"),
        ("log: {level:}", "1: log.level: None is not one of debug, info, warn, error"),
        ("path: {procfs: ''}", "1: path.procfs: '' is not a path"),
        ("collector: {cuda: 1}", "1: collector.cuda: 1 is not true or false"),
        (
            "collector:\n  cuda:\n    live-allocations: true",
            "3: collector.cuda.live-allocations: True is not a whole number, 0 or more",
        ),
        ("collector: {cuda: {wait: .nan}}", "1: collector.cuda.wait: nan is not a number, 0 or more"),
        ("collector:\n  cuda: {rate: 1001}", "2: collector.cuda.rate: 1001 is not a whole number, 1 to 1000"),
        ("collector:\n  cuda: {every: 61}", "2: collector.cuda.every: 61 is not a number, 0.2 to 60"),
        ("collector: {cuda: {skip: [1]}}", "1: collector.cuda.skip: [1] is not a list of texts"),
        ("collector: {cuda: {mode: 3}}", "1: collector.cuda.mode: 3 is not text"),
        ("log: {level: info}\nlog.level: warn", "2: log.level is given twice; remove one"),
        ("collector: {cuda: {enabled: yes}}\ncollector.cuda: no", "2: collector.cuda is given twice; remove one"),
        ("a: [", "1: not valid YAML: expected the node content, but found '<stream end>'"),
        ("web:\n  max-requests: 0b_", "2: web.max-requests: not valid YAML: invalid literal for int() with base 2: ''"),
        ("log: {level: 9999-99-99}", "1: log.level: not valid YAML: month must be in 1..12"),
        ("log: &a {level: *a}", "1: not valid YAML: found unconstructable recursive node"),
    ],
)
def test_wrong_file(tmp_path: Path, text: str, expected: str) -> None:
    """A wrong key of the file is named with file, line and what would be right."""
    file = tmp_path / "c.yaml"
    file.write_text(text)

    assert f"{file}:{expected}" == error(f"--config.file={file}")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xff", " is not UTF-8 text (byte 0)"),
        (b"a: " + b"[" * 20_000, " is nested too deep"),
        (b"#" * 1_048_577, " is larger than 1048576 bytes; is it the configuration?"),
    ],
)
def test_unreadable_file(tmp_path: Path, content: bytes, expected: str) -> None:
    """A file that is no configuration at all is refused in one sentence."""
    file = tmp_path / "c.yaml"
    file.write_bytes(content)

    assert f"{file}{expected}" == error(f"--config.file={file}")


def test_pipe(tmp_path: Path) -> None:
    """A pipe that nobody writes to is an error at once; a link to a file, as Kubernetes mounts them, is none."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingsError, match="pipe cannot be read: it is not a regular file"):
        option_sources.from_file(tmp_path / "pipe", ())
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("file")
    assert {} == option_sources.from_file(tmp_path / "link", ())


def test_entity_bomb(tmp_path: Path) -> None:
    """A file that unfolds to a billion items is refused without unfolding it."""
    levels = "".join(f"- &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))
    file = tmp_path / "c.yaml"
    file.write_text("collector:\n  cuda:\n    skip:\n" + "    - &a0 [x]\n" + levels.replace("- ", "    - "))

    assert "is not a list of texts" in error(f"--config.file={file}")


@given(st.one_of(st.text(max_size=40), st.recursive(st.none() | st.text(max_size=5), st.lists, max_leaves=5).map(str)))
def test_any_file(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Whatever stands in the file, it is read or refused with one line."""
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        option_sources.from_file(file, settings.all_options(FOUND))
    except SettingsError as refused:
        assert "\n" not in str(refused)


def test_every_range() -> None:
    """Of each setting of the real collectors its default is in range; the next number beyond either end is refused."""
    found = list(discover.collectors().values())
    numbers = [
        it
        for it in settings.all_options(found)
        if isinstance(it.default, int | float) and not isinstance(it.default, bool)
    ]
    limited = [it for it in numbers if it.least is not None or it.most is not None]
    assert len(limited) >= 30
    for option in numbers:
        assert option.default == option.check(option.default)
    for option in limited:
        kind = type(option.default)
        step = 1 if kind is int else 0.001
        beyond = [kind((option.least or 0) - step)]
        if option.most is not None:
            assert kind(option.most) == option.check(kind(option.most))
            beyond.append(kind(option.most) + step)
        for wrong in beyond:
            with pytest.raises(SettingsError, match=f"flag --{option.name}: '{wrong}' is not .*{option.range}"):
                option_sources.from_flags(settings.make_parser(found), [f"--{option.name}={wrong}"], (option,))


def test_former_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A former name of an option counts wherever the present name does, with one warning that has both names."""
    file = tmp_path / "config.yaml"
    file.write_text("collector:\n  faults:\n    kmsg: /run/file\n    from-processes: true\n")
    found = [
        load("--collector.xid.kmsg=/run/flag", "--collector.xid.from-processes"),
        load(environ={"ACCEL_EXPORTER_COLLECTOR_FAULTS_KMSG": "/run/variable"}),
        load(f"--config.file={file}"),
    ]
    assert [("/run/flag", True), ("/run/variable", False), ("/run/file", True)] == [
        (it.kmsg.path, it.kmsg.from_processes) for it in found
    ]
    found[0].warn()
    assert [f"collector.xid.{old} is now kmsg.{new}: " for old, new in (("kmsg", "path"), ("from-processes",) * 2)] == [
        it[: it.index(": ") + 2] for it in caplog.messages
    ]
    assert () == load("--kmsg.path=/run/flag").moved


def test_former_names_beside_present_ones(tmp_path: Path) -> None:
    """A flag wins over the file by whichever name; two values of one source are one error."""
    file = tmp_path / "config.yaml"
    file.write_text("kmsg: {path: /run/file}\n")
    assert "/run/flag" == load("--collector.faults.kmsg=/run/flag", f"--config.file={file}").kmsg.path
    file.write_text("collector: {xid: {kmsg: /run/file}}\n")
    assert "/run/flag" == load("--kmsg.path=/run/flag", f"--config.file={file}").kmsg.path
    same = ("--collector.faults.kmsg=/a", "--collector.xid.kmsg=/a")
    assert ("/a", 2) == (load(*same).kmsg.path, len(load(*same).moved))
    assert "give kmsg.path alone" in error("--collector.faults.kmsg=/a", "--collector.xid.kmsg=/b")
    assert "give kmsg.path alone" in error("--kmsg.path=/a", "--collector.xid.kmsg=/b")
    assert "did you mean --collector.xid" not in error("--collector.xid.kmsgs=/a")
