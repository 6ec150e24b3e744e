"""Help texts of flags: one form for all of them, docs/style-of-words.md."""

from __future__ import annotations

import re

import pytest

from exporter import discover, settings
from exporter.options import Option

OPTIONS = [it for it in settings.all_options(discover.collectors().values()) if not it.moved_to]
SWITCHES = [it for it in OPTIONS if isinstance(it.default, bool)]
VALUES = [it for it in OPTIONS if not isinstance(it.default, bool)]
VERBS = {
    "Accept",
    "Add",
    "Compare",
    "Count",
    "Enable",
    "Enter",
    "Keep",
    "Leave",
    "Probe",
    "Read",
    "Run",
    "Serve",
    "Time",
}
NOUNS = {"Address", "Addresses", "Attribute", "Certificate", "Devices", "Field", "File", "Folder", "Format", "Headers"}
NOUNS |= {
    "Host",
    "Interval",
    "Label",
    "Labels",
    "Least",
    "Lowest",
    "Maximum",
    "Mount",
    "Name",
    "Names",
    "Number",
    "Path",
}
NOUNS |= {"Processes", "Protocol", "Python", "Set", "Socket", "Time", "URL", "YAML", "API", "FreeIPMI"}


def _name(option: Option) -> str:
    return option.name


@pytest.mark.parametrize("option", OPTIONS, ids=_name)
def test_a_help_text_is_sentences(option: Option) -> None:
    """Capital, full stop, and none of the words for a default, which --help adds."""
    assert re.match(r"[A-Z]", option.help) and option.help.endswith("."), option.help
    assert not re.search(r"\bdefaults? (?:is|to)\b|\(default|\bor more\b", option.help), option.help
    assert not re.search(r"[;,:] (?:[Ee]mpty|0): ", option.help), option.help


@pytest.mark.parametrize("option", SWITCHES, ids=_name)
def test_a_switch_is_an_order(option: Option) -> None:
    """A flag without a value begins with a verb, as those of Prometheus do."""
    assert option.help.split()[0] in VERBS, option.help


@pytest.mark.parametrize("option", VALUES, ids=_name)
def test_a_value_is_a_noun_phrase(option: Option) -> None:
    """A flag with a value begins with what the value is."""
    assert option.help.split()[0] in NOUNS, option.help


@pytest.mark.parametrize("option", VALUES, ids=_name)
def test_what_an_empty_text_or_a_zero_means_stands_last(option: Option) -> None:
    """A text that may be empty has `Empty: …` last, a number that stands for something else `0: …`."""
    if option.default == "" or option.default == ():
        assert re.search(r"\. Empty: [^.]+", option.help), option.help
    if found := re.search(r"(?:Empty|\b0): ", option.help):
        assert ". " not in option.help[found.end() :], option.help


@pytest.mark.parametrize("option", VALUES, ids=_name)
def test_a_number_has_its_unit(option: Option) -> None:
    """Seconds, cores and bytes are named where the value is a plain number; a duration has its unit itself."""
    if isinstance(option.default, float) and not option.duration and "ratio" not in option.name:
        assert f", in {'cores' if option.name.endswith('-cores') else 'seconds'}." in option.help, option.help
    if option.name.endswith("-bytes"):
        assert ", in bytes." in option.help, option.help
