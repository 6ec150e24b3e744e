"""Options: name, type, default and range of each, and error messages about values."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from decimal import Decimal

Value = bool | int | float | str | tuple[str, ...]

ENVIRONMENT_PREFIX = "ACCEL_EXPORTER_"
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)?", re.ASCII)
_WHOLE, _NUMBER = (re.compile(it, re.ASCII) for it in (r"[0-9]{1,19}", r"[0-9]*\.?[0-9]+(?:e[+-]?[0-9]{1,3})?"))
_SECONDS = {"ms": 0.001, None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


class SettingsError(ValueError):
    """A wrong setting: its name, its place, and the expected value."""


@dataclass(frozen=True)
class Option:
    """One setting: the flag --NAME, the variable ACCEL_EXPORTER_NAME and the YAML key NAME, nested at its dots.

    The type is that of `default`. With `duration` a float is a number of seconds or a duration such as 500ms. A number
    is at least `least`, by default 0, and at most `most`. `metavar` names the value in the help text. `capability` is
    needed while the option is on, and dropped at start while it is not. A `path` is a text that is not empty. An option
    with `moved_to` is the former name of that option: accepted everywhere, and listed nowhere.
    """

    name: str
    default: Value
    help: str
    group: str
    choices: tuple[str, ...] = ()
    duration: bool = False
    metavar: str = ""
    least: float | None = None
    most: float | None = None
    capability: str = ""
    path: bool = False
    moved_to: str = ""

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + re.sub(r"[.-]", "_", self.name).upper()

    @property
    def expects(self) -> str:
        """A description of valid values, for error messages."""
        if self.choices:
            return "one of " + ", ".join(filter(None, self.choices))
        if self.duration:
            return " ".join(filter(None, ("a duration such as 15s or 500ms", self.range and f"({self.range})")))
        return {
            bool: "true or false",
            int: f"a whole number, {self.range or '0 or more'}",
            float: f"a number, {self.range or '0 or more'}",
            str: "a path" if self.path else "text",
            tuple: "a list of texts",
        }[type(self.default)]

    @property
    def range(self) -> str:
        """The range of valid numbers as text; empty without a limit."""
        unit = "s" if self.duration else ""
        least = f"{_plain(self.least or 0)}{unit}"
        if self.most is not None:
            return f"{least} to {_plain(self.most)}{unit}"
        return f"{least} or more" if self.least is not None else ""

    @property
    def shown(self) -> str:
        """The default as shown in help and documentation; empty for false, empty and zero defaults."""
        match self.default:
            case bool():
                return "enabled" if self.default else ""
            case tuple():
                return ",".join(self.default)
            case float() if self.duration:
                return f"{self.default:g}s" if self.default else ""
            case float():
                return f"{Decimal(repr(self.default)):f}"  # never 1e-05
        return str(self.default)

    def parse(self, text: str) -> Value:
        """Return the value of a flag's or variable's text. Raises ValueError."""
        match self.default:
            case bool():
                return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
            case int():
                return self.check(int(_plainly(_WHOLE, text)))
            case float():
                return self.check(text if self.duration else number(text))
            case tuple():
                return tuple(part.strip() for part in text.split(",") if part.strip())
        return self.check(text)

    def check(self, value: object) -> Value:
        """Return a value from YAML in this option's type. Raises ValueError for a wrong type or range."""
        checked = self._typed(value)
        if isinstance(checked, int | float) and not isinstance(checked, bool):
            least, most = self.least or 0, math.inf if self.most is None else self.most
            if not least <= checked <= most:
                raise ValueError
        return checked

    def _typed(self, value: object) -> Value:
        match self.default, value:
            case bool(), bool():
                return value
            case bool(), _:
                raise ValueError
            case int(), int() if not isinstance(value, bool) and value < 2**63:
                return value
            case float(), int() | float() if not isinstance(value, bool) and value < math.inf:
                return float(value)
            case float(), str() if self.duration and (found := _DURATION.fullmatch(value)):
                return float(found[1]) * _SECONDS[found[2]]
            case str(), "" if self.path:
                raise ValueError
            case str(), str() if "\0" not in value and (not self.choices or value in self.choices):
                return value
            case tuple(), str():
                return self.parse(value)
            case tuple(), list() if all(isinstance(item, str) for item in value):
                return tuple(value)
        raise ValueError


@dataclass(frozen=True)
class Flag:
    """One setting of a collector, declared in its module's FLAGS; it becomes --collector.<stem>.<name> and a YAML key.

    The type of `default` is the type of the setting: bool, int, float, str or a tuple of str (comma-separated).
    Numbers outside of `least` (by default 0) to `most`, and texts that are not in `choices`, are errors before the
    collector is created. `capability` is that of an Option.
    """

    name: str
    default: Value
    help: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    capability: str = ""


def formerly(option: Option, *names: str) -> tuple[Option, ...]:
    """Return an option, and its former names as options that stand for it."""
    return (option, *(replace(option, name=name, moved_to=option.name) for name in names))


def number(text: str) -> float:
    """Return a number's text as a number. Raises ValueError, also for what Python alone takes for one."""
    return float(_plainly(_NUMBER, text))


def _plainly(form: re.Pattern[str], text: str) -> str:
    """Return a number's text if it has the form: Python's own also has 1_000 and digits of other scripts."""
    if not form.fullmatch(text.strip().lower()):
        raise ValueError
    return text


def _plain(number: float) -> str:
    """Return a number without the zero that a whole float has behind its point."""
    return str(int(number)) if float(number).is_integer() else str(number)
