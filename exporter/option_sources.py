"""Values of options, by dotted name, from flags, the environment and one YAML file, with one error for a wrong value.

A flag wins over the environment, the environment over the file, the file over the default.
"""

from __future__ import annotations

import argparse
import reprlib
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from exporter import regular_file
from exporter.options import Option, SettingsError, Value

if TYPE_CHECKING:
    import yaml

_FILE_LIMIT = 1_048_576


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises SettingsError in place of exiting; only -h and --version exit."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError(message.replace("argument ", "flag ", 1))

    def print_help(self, file: Any = None) -> None:
        """Write the help, without argparse's disregard for errors. Raises OSError."""
        (file or sys.stdout).write(self.format_help())


def parser(options: Iterable[Option], groups: Mapping[str, str], **words: Any) -> Parser:
    """Return a parser with a flag for each option, under the titles of `groups`, without defaults in its result."""
    made = Parser(
        allow_abbrev=False,
        add_help=False,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=110),
        **words,
    )
    sections = {group: made.add_argument_group(title) for group, title in groups.items()}
    for option in options:
        section = sections[option.group]
        described = argparse.SUPPRESS if option.moved_to else _help(option)
        words = {"dest": option.name, "default": argparse.SUPPRESS, "help": described}
        if isinstance(option.default, bool):
            section.add_argument(f"--{option.name}", action="store_true", **words)
            section.add_argument(f"--no-{option.name}", action="store_false", **words | {"help": argparse.SUPPRESS})
        else:
            action = "append" if isinstance(option.default, tuple) else "store"
            section.add_argument(f"--{option.name}", action=action, metavar=option.metavar or _metavar(option), **words)
    return made


def _help(option: Option) -> str:
    notes = "; ".join(filter(None, (option.range, option.shown and f"default: {option.shown}")))
    return (f"{option.help} ({notes})" if notes else option.help).replace("%", "%%")


def _metavar(option: Option) -> str:
    if option.choices:
        return "|".join(option.choices)
    return "DURATION" if option.duration else {int: "N", float: "X", str: "TEXT", tuple: "A,B"}[type(option.default)]


def from_flags(made: Parser, arguments: Sequence[str], options: Collection[Option]) -> dict[str, Any]:
    """Return the values in the command line by dotted name, with those of the parser's other flags.

    Raises SettingsError.
    """
    known, unknown = made.parse_known_args(arguments)
    if unknown:
        listed = [option for option in options if not option.moved_to]
        flags = [f"--{option.name}" for option in listed]
        flags += [f"--no-{option.name}" for option in listed if isinstance(option.default, bool)]
        flag = unknown[0].partition("=")[0]
        kind = "flag" if flag.startswith("-") else "argument"
        raise SettingsError(f"unknown {kind} {flag!r}{nearest(flag, flags)}")
    values = vars(known)
    for option in options:
        if option.name in values and not isinstance(option.default, bool):
            text = values[option.name]
            text = ",".join(text) if isinstance(text, list) else text
            values[option.name] = _convert(option, option.parse, text, f"flag --{option.name}")
    return values


def from_environment(environ: Mapping[str, str], options: Iterable[Option]) -> dict[str, Value]:
    """Return the values in variables. Unknown variables with the prefix are ignored: Kubernetes makes such variables.

    Raises SettingsError.
    """
    return {
        option.name: _convert(option, option.parse, environ[option.variable], f"variable {option.variable}")
        for option in options
        if option.variable in environ
    }


def from_file(path: Path, options: Iterable[Option]) -> dict[str, Value]:
    """Return the values in a YAML file. Raises SettingsError with file and line for unknown, repeated or wrong keys."""
    import yaml  # for those with a file only

    by_name = {option.name: option for option in options}
    text = read_text(path, _FILE_LIMIT, "is it the configuration?")
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        values: dict[str, Value] = {}
        for name, node in _leaves(root, "", path, by_name) if root else ():
            where = f"{path}:{node.start_mark.line + 1}: {name}"
            if name in values:
                raise SettingsError(f"{where} is given twice; remove one")
            try:
                content = loader.construct_object(node, deep=True)
            except ValueError as error:  # PyYAML's own, of a date or number that is none
                raise SettingsError(f"{where}: not valid YAML: {error}") from error
            values[name] = _convert(by_name[name], by_name[name].check, content, where)
        return values
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).replace("\n", " ")
        raise SettingsError(f"{path}{line}: not valid YAML: {problem}") from error
    except RecursionError as error:
        raise SettingsError(f"{path} is nested too deep") from error


def under_new_names(values: Mapping[str, Any], options: Iterable[Option]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of one source by the options' present names, and a sentence for each former name in use.

    Raises SettingsError when two names of an option have different values.
    """
    moved = {option.name: option.moved_to for option in options if option.moved_to and option.name in values}
    kept = {name: value for name, value in values.items() if name not in moved}
    for former, name in moved.items():
        if kept.setdefault(name, values[former]) != values[former]:
            raise SettingsError(f"{former} is now {name}, which has another value: give {name} alone")
    return kept, [
        f"{former} is now {name}: the former name counts in this release only" for former, name in moved.items()
    ]


def nearest(name: str, names: Iterable[str]) -> str:
    """Return `; did you mean …?` with the nearest of `names`, or a pointer to --help."""
    import difflib  # for this error only

    near = difflib.get_close_matches(name, list(names), 1)
    return f"; did you mean {near[0]}?" if near else "; see --help"


def read_text(path: Path, most_bytes: int, question: str) -> str:
    """Return the text of a chosen file. Raises SettingsError, with `question` where the file is too large.

    A pipe is refused: without a writer it would be waited for without end.
    """
    try:
        with regular_file.opened(path) as file:
            content = file.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise SettingsError(f"{path} is larger than {most_bytes} bytes; {question}")
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error


def _leaves(node: yaml.Node, prefix: str, path: Path, options: Mapping[str, Option]) -> Iterator[tuple[str, yaml.Node]]:
    """Yield the dotted name and the value's node of each option in a mapping and in nested mappings.

    A switch's name may be a prefix of other names (collector.cuda): the key `enabled` below it is the switch itself.
    """
    import yaml

    if not isinstance(node, yaml.MappingNode):
        what = prefix.rstrip(".") or "the file"
        raise SettingsError(f"{path}:{node.start_mark.line + 1}: {what} has to be a mapping of names to values")
    for key, value in node.value:
        name = prefix + str(key.value)
        if name.endswith(".enabled") and (switch := name.removesuffix(".enabled")) in options:
            name = switch
        nested = any(option.startswith(name + ".") for option in options)
        switch_itself = name in options and isinstance(options[name].default, bool)
        if (isinstance(value, yaml.MappingNode) and (nested or switch_itself)) or (nested and name not in options):
            yield from _leaves(value, name + ".", path, options)
        elif name in options:
            yield name, value
        else:
            listed = {name for name, option in options.items() if not option.moved_to}
            parents = {option.rpartition(".")[0] for option in listed}
            near = nearest(name, [*listed, *parents, *(f"{name}.enabled" for name in parents & listed)])
            raise SettingsError(f"{path}:{key.start_mark.line + 1}: unknown key {name!r}{near}")


def _convert(option: Option, convert: Callable[[Any], Value], given: object, where: str) -> Value:
    try:
        return convert(given)
    except (ValueError, KeyError, OverflowError):
        raise SettingsError(f"{where}: {_shown(given)} is not {option.expects}") from None


def _shown(given: object) -> str:
    short = reprlib.Repr()
    short.maxstring = 80
    return short.repr(given)
