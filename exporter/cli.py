"""The command line: `accel-exporter` runs, `doctor` checks the node, `check-custom` tries a folder of probes."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from exporter import discover, log, option_sources, otlp, rlimits, settings, streams
from exporter.app import App
from exporter.bpf import libbpf, memory, multi, privileges, watch
from exporter.bpf.native import BpfError
from exporter.discover import Found
from exporter.log import uncaught
from exporter.model import Labels
from exporter.options import SettingsError
from exporter.settings import Settings
from exporter.systemd import Notifier
from exporter.web.listen import split

EXIT_SETTINGS = 2
logger = logging.getLogger("exporter")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code: 0 for success, 1 for a failure, 2 for wrong flags or settings."""
    streams.open_closed()
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = given.pop(0) if given[:1] in (["doctor"], ["check-custom"]) else "run"
    if command == "check-custom" and given and not given[0].startswith("-"):
        given[0] = f"--custom.dir={given[0]}"
    log.configure("info", "logfmt")
    found = discover.collectors()
    try:
        parser, declared = settings.make_parser(found.values()), settings.all_options(found.values())
        with streams.output("accel-exporter"):
            flags = option_sources.from_flags(parser, given, declared)
        if command != "doctor" and (flags["check"] or flags["json"]):
            raise SettingsError("--check and --json are for `accel-exporter doctor`")
        chosen = settings.load(flags, os.environ, list(found.values()))
        log.configure(chosen.log.level, chosen.log.format, queued=command == "run")
        chosen.warn()
        if command == "check-custom":
            return _check_custom(chosen)
        return _doctor(chosen, found, flags) if command == "doctor" else _run(chosen, found, flags)
    except SettingsError as error:
        log.flush()
        print(f"accel-exporter: {error}", file=sys.stderr)
        return EXIT_SETTINGS
    finally:
        log.flush()


def _run(chosen: Settings, found: Mapping[str, Found], flags: Mapping[str, Any]) -> int:
    uncaught.to_log()
    memory.give_back()
    plan = otlp.plan(chosen.otlp, os.environ)
    statistics = _statistics() if chosen.bpf_stats or "custom" in chosen.collectors else None
    rlimits.raise_to(resource.RLIMIT_MEMLOCK, watch.all_bytes())  # before the privilege for this is dropped
    if not chosen.privileges_keep:
        _drop_capabilities(chosen)
    log.start()
    missing = privileges.missing()
    if missing:
        logger.warning("probes will not work without %s; see accel-exporter doctor", ", ".join(missing))
    app = App(chosen, plan, found, lambda: settings.load(flags, os.environ, list(found.values())), Notifier(os.environ))
    try:
        return asyncio.run(app.run())
    finally:
        if statistics:
            statistics.close()


def _doctor(chosen: Settings, found: Mapping[str, Found], flags: Mapping[str, Any]) -> int:
    from exporter import checks, doctor

    log.configure("error", chosen.log.format)
    findings = list(checks.examine(chosen))
    probes: list[Labels] = []
    if flags["check"]:
        more, probes = doctor.check(chosen, found)
        findings += more
    with streams.output("accel-exporter"):
        doctor.write(findings, probes, sys.stdout, as_json=flags["json"])
    return int(doctor.failed(findings))


def _check_custom(chosen: Settings) -> int:
    if "custom" not in chosen.collectors:
        raise SettingsError("check-custom needs a folder: accel-exporter check-custom DIR")
    from exporter.custom import check

    log.configure("error", chosen.log.format)
    with streams.output("accel-exporter"):
        return check.run(chosen, sys.stdout)


def _statistics() -> libbpf.Link | None:
    try:
        return libbpf.run_time_statistics()
    except BpfError as error:
        logger.warning("the kernel does not time BPF programs: %s", error)
        return None


def _drop_capabilities(chosen: Settings) -> None:
    """Drop unneeded capabilities, before the first thread starts: capabilities are per thread."""
    keep = {*privileges.OBSERVING, privileges.READING_THE_LOG, *chosen.capabilities}
    if not multi.supported():
        keep.add(privileges.WITHOUT_MULTI_UPROBES)
    if any(0 < split(address)[1] < 1024 for address in chosen.web.listen_address):
        keep.add("CAP_NET_BIND_SERVICE")
    try:
        privileges.drop(keep)
    except OSError as error:
        logger.warning("%s; running with all of them", error)
