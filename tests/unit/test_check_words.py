"""The check of words in identifiers and texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import check_words


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("was_told = 1\n", [(1, "'told'")]),
        ("class NvmlAsked: ...\n", [(1, "'asked'")]),
        ("_GONE = 1\n", [(1, "'gone'")]),
        ('"""Line one.\n\nTells more.\n"""\n', [(3, "'tells'")]),
        ('x = f"{1} said so"\n', [(1, "'said'")]),
        ("x = 1  # as the driver says\n", [(1, "'says'")]),
        ("def f(it): ...\n", [(1, "'it'")]),
        ("f = lambda *it: 0\n", [(1, "'it'")]),
        ('def f():\n    """Its name."""\n', [(2, "'Its'")]),
        ('X = 1\n"""\nThis is what counts."""\n', [(2, "'This'")]),
        ('"""What a module has."""\n', [(1, "'What'")]),
        ('class C:\n    x = 1\n    """Whether x is 1."""\n', [(3, "'Whether'")]),
        ('def f():\n    r"""\n    How to call f."""\n', [(2, "'How'")]),
        ('def f():\n    """Whatever f returns, and when."""\n    return """What"""\n', []),
        ('def f():\n    """Itself."""\n    return """It"""\n', []),
        ('tasked = [it for it in ()]  # the "essay" is gone, retold by NVML\n', []),
    ],
)
def test_findings(source: str, expected: list[tuple[int, str]]) -> None:
    """Whole words of identifiers, strings and comments are found with their line; parts of words are not."""
    found = list(check_words.findings(source))
    assert [line for line, _ in expected] == [line for line, _ in found]
    assert all(word in text for (_, word), (_, text) in zip(expected, found, strict=True))


def test_findings_in_documents() -> None:
    """Words of prose are found; those of code and of addresses are not, nor an order to a person."""
    source = "Ask the owner.\nAs `told` by [it](whose.md), whose?\n```\ntold\n```\nUntold, it is told.\n"
    assert [2, 6] == [line for line, _ in check_words.findings_in_documents(source)]


def test_findings_in_rules() -> None:
    """Texts of alerts have no phrase that names neither the thing nor its state."""
    source = "summary: GPU is not well.\ndescription: The same for NICs.\nexpr: a  # as a rule\nexpr: is_of\n"
    assert [1, 2, 3] == sorted(line for line, _ in check_words.findings_in_rules(source))


def test_findings_in_pages_and_texts() -> None:
    """Phrases that are not plain are found in prose and in texts of code, not in code, docstrings and comments."""
    page = "It gives every handle\nback.\nIt gave it back; `for ever`\n```\nas a rule\n```\nWhoever it is.\n"
    assert [3, 7] == [line for line, _ in check_words.findings_in_pages(page)]
    source = '"""Waits for ever."""\n# as a rule\nx = f"{y} of ours"\nz = "forever"\n'
    assert [3] == [line for line, _ in check_words.findings_in_texts(source)]


def test_findings_in_c() -> None:
    """Words of names and comments are found with their line; parts of words are not."""
    source = "/* As it says,\n * essayed. */\nint is_told;\nint untold; /* dearth */\n"
    found = list(check_words.findings_in_c(source))
    assert [1, 3] == [line for line, _ in found]
    assert "'says'" in found[0][1]
    assert "'told'" in found[1][1]


def test_main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The folders are checked with their sub-folders, others are not; a finding makes the exit status 1."""
    for name in ("a/b/one.py", "other/two.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text("told = 1\n")
    monkeypatch.setattr(check_words, "FOLDERS", ("a",))
    assert 1 == check_words.main(tmp_path)
    assert capsys.readouterr().out.startswith("a/b/one.py:1: identifier 'told' ")
    (tmp_path / "a/b/one.py").write_text("known = 1\n")
    (tmp_path / "a/three.h").write_text("int told;\n")
    assert 1 == check_words.main(tmp_path)
    assert capsys.readouterr().out.startswith("a/three.h:1: C has 'told'")
    (tmp_path / "a/three.h").write_text("int known;\n")
    (tmp_path / "a/list.py").write_text("told = 1\n")
    monkeypatch.setattr(check_words, "LISTS", {"a/list.py"})
    assert 0 == check_words.main(tmp_path)


def test_folders_exist() -> None:
    """Every folder and file is there: a folder that moved would otherwise no longer be checked."""
    root = Path(check_words.__file__).parents[1]
    assert [] == [name for name in {*check_words.FOLDERS, *check_words.LISTS} if not (root / name).exists()]
