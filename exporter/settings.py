"""The exporter's settings: made of the options in program_options and the collectors' FLAGS, and checked, once."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from exporter import option_sources, version
from exporter.discover import Found
from exporter.kmsg.kernel_log import KmsgSettings
from exporter.option_sources import Parser, under_new_names
from exporter.options import Option, SettingsError, Value
from exporter.otlp import OtlpSettings
from exporter.profile import Profile
from exporter.program_options import GROUPS, OPTIONS
from exporter.server import WebSettings
from exporter.web import listen

Section = TypeVar("Section")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LogSettings:
    level: str
    format: str


@dataclass(frozen=True)
class OverheadSettings:
    max_ratio: float
    max_cores: float


@dataclass(frozen=True)
class Settings:
    """The exporter's settings.

    `collectors` holds the enabled collectors, each with its settings by flag name; `capabilities` those that their
    settings need, besides what observing needs. `moved` has a sentence for each former name of an option in use.
    """

    web: WebSettings
    otlp: OtlpSettings
    log: LogSettings
    overhead: OverheadSettings
    kmsg: KmsgSettings
    profile: Profile
    collectors: Mapping[str, Mapping[str, Any]]
    capabilities: frozenset[str]
    procfs: Path
    sysfs: Path
    logs: Path
    bpf_return_probes: bool
    bpf_stats: bool
    privileges_keep: bool
    moved: tuple[str, ...]

    def warn(self) -> None:
        """Log a warning for each former name of an option in use."""
        for sentence in self.moved:
            logger.warning("%s", sentence)


def all_options(found: Iterable[Found]) -> tuple[Option, ...]:
    """Return the exporter's and the collectors' options: --collector.NAME and --collector.NAME.FLAG, or own names."""
    return OPTIONS + tuple(option for collector in found for option in _options_of(collector))


def make_parser(found: Iterable[Found]) -> Parser:
    """Return the parser of `accel-exporter`'s command line."""
    made = option_sources.parser(
        all_options(found),
        GROUPS,
        prog="accel-exporter",
        usage="accel-exporter [doctor [--check] [--json] | check-custom DIR] [flags]",
        description="Metrics of this node's accelerator jobs and hardware, for Prometheus and OTLP.",
        epilog=(
            "--no-NAME disables what --NAME enables. Every flag is also a variable (ACCEL_EXPORTER_LOG_LEVEL)\n"
            "and a key of --config.file (log: {level: debug}). A flag has priority over a variable, and a variable\n"
            "over the file.\n\n"
            "accel-exporter doctor checks what can be observed on this node; accel-exporter check-custom DIR\n"
            "compiles, attaches and reads a folder of custom probes once."
        ),
    )
    general = made.add_argument_group("Instead of running")
    general.add_argument("-h", "--help", action="help", help="Show this and exit.")
    general.add_argument("--version", action="version", version=str(version.build()), help="Show the build and exit.")
    general.add_argument("--check", action="store_true", help="Load and attach everything in doctor, then detach.")
    general.add_argument("--json", action="store_true", help="Print the answer of doctor as JSON.")
    return made


def load(flags: Mapping[str, Any], environ: Mapping[str, str], found: Sequence[Found]) -> Settings:
    """Return the settings in parsed flags, the environment and the file that either names. Raises SettingsError."""
    declared = all_options(found)
    given, moved = _given(flags, environ, declared)
    values = {option.name: option.default for option in declared} | given
    enabled = _collectors(found, values, given)
    return Settings(
        web=_web(values),
        otlp=_section(OtlpSettings, "otlp.", values),
        log=_section(LogSettings, "log.", values),
        overhead=_section(OverheadSettings, "overhead.", values),
        kmsg=_section(KmsgSettings, "kmsg.", values),
        profile=Profile.of(str(values["profile"])),
        collectors=enabled,
        capabilities=frozenset(
            option.capability
            for collector in found
            if collector.name in enabled
            for option in _options_of(collector)
            if option.capability and values[option.name]
        ),
        procfs=_folder("path.procfs", values),
        sysfs=_folder("path.sysfs", values),
        logs=Path(str(values["path.logs"])),
        bpf_return_probes=bool(values["bpf.return-probes"]),
        bpf_stats=bool(values["bpf.stats"]),
        privileges_keep=bool(values["privileges.keep"]),
        moved=moved,
    )


def _given(
    flags: Mapping[str, Any], environ: Mapping[str, str], declared: Sequence[Option]
) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Return the values given anywhere, and a sentence for each former name in use. Raises SettingsError."""
    sources = [
        {option.name: flags[option.name] for option in declared if option.name in flags},
        option_sources.from_environment(environ, declared),
    ]
    if file := next((str(source["config.file"]) for source in sources if "config.file" in source), ""):
        sources.append(option_sources.from_file(Path(file), declared))
        if "config.file" in sources[-1]:
            raise SettingsError(f"{file}: config.file cannot be set in the file itself; remove it")
    given: dict[str, Value] = {}
    moved: list[str] = []
    for source in sources:
        values, sentences = under_new_names(source, declared)
        given = values | given
        moved += sentences
    return given, tuple(dict.fromkeys(moved))


def _collectors(
    found: Iterable[Found], values: Mapping[str, Value], given: Mapping[str, Value]
) -> dict[str, Mapping[str, Any]]:
    """Return the settings of the enabled collectors."""
    enabled: dict[str, Mapping[str, Any]] = {}
    for collector in found:
        if collector.options:
            chosen = {option.name: values[option.name] for option in collector.options}
            if f"collector.{collector.name}" in chosen:
                chosen[f"collector.{collector.name}"] = _enabled(collector, given)
            own = collector.configure(chosen)
            if own is not None:
                enabled[collector.name] = own
        elif _enabled(collector, given):
            prefix = f"collector.{collector.name}."
            own = collector.configure({flag.name: values[prefix + flag.name] for flag in collector.flags})
            if own is not None:
                enabled[collector.name] = own
    return enabled


def _options_of(collector: Found) -> Iterator[Option]:
    if collector.options:
        yield from collector.options
        return
    name = f"collector.{collector.name}"
    yield Option(name, collector.default, _switch_help(collector), "collectors")
    for flag in collector.flags:
        yield Option(
            f"{name}.{flag.name}",
            flag.default,
            flag.help,
            "collectors",
            flag.choices,
            least=flag.least,
            most=flag.most,
            capability=flag.capability,
        )


def _enabled(collector: Found, given: Mapping[str, Value]) -> bool:
    default = collector.default and not given.get("collector.disable-defaults", False)
    return bool(given.get(f"collector.{collector.name}", default))


def _section(kind: type[Section], prefix: str, values: Mapping[str, Value]) -> Section:
    """Return a dataclass of the options with a prefix: web.config.file is its field config_file."""
    named = {name.removeprefix(prefix).replace("-", "_").replace(".", "_"): name for name in values}
    return kind(**{item.name: values[named[item.name]] for item in fields(kind)})  # type: ignore[arg-type]


def _web(values: Mapping[str, Value]) -> WebSettings:
    web = _section(WebSettings, "web.", values)
    for address in web.listen_address:
        try:
            listen.split(address)
        except listen.ListenError as error:
            raise SettingsError(f"web.listen-address: {error}") from None
    return web


def _folder(name: str, values: Mapping[str, Value]) -> Path:
    path = Path(str(values[name]))
    if not path.is_dir():
        raise SettingsError(f"{name}: {path} is not a folder")
    return path


def _switch_help(collector: Found) -> str:
    return f"Enable the {collector.name} collector. {collector.help}"
