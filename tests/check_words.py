"""Checks the words of code, documents and alerts: `python -m tests.check_words [ROOT]`.

Covers identifiers, docstrings, comments and messages, pages and rules (docs/style-of-words.md). Prints one line
for each word, and exits with 1 if there is one.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDERS = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "alerts",
    "docs",
    "bench",
    "bpf",
    "dashboards",
    "deploy",
    "exporter",
    "setup.py",
    "tests",
    "tools",
)
LISTS = {"docs/style-of-words.md", "tests/check_words.py", "tests/unit/test_check_words.py"}
"""Files that have the words themselves."""
PUBLISHED = re.compile(r"gpu_recovery_asked|\"says\"")
"""Label values and keys of JSON that users rely on."""
_SPEECH = {"tell", "tells", "telling", "told", "say", "says", "saying", "said", "ask", "asks", "asking", "asked"}
IN_TEXT = _SPEECH | {"whose", "whom", "anew", "dear", "well", "unwell"}
IN_DOCUMENTS = {
    "tell",
    "tells",
    "telling",
    "told",
    "said",
    "asked",
    "whose",
    "whom",
    "anew",
    "dear",
    "dearest",
    "unwell",
}
"""Words that no document has; as orders ("ask the owner") some of the others are right there."""
PHRASES = re.compile(r"\b(?:not well|wants nothing|as it comes)\b|\bThe same (?:by|for|as|of|in)\b", re.IGNORECASE)
"""Phrases that no help text and no text of an alert has."""
UNPLAIN = re.compile(
    r"\b(?:as a rule|for want of|of ours|beside us|in vain|by turns|who(?:m)?ever|somebody|for ever|and its kin|"
    r"g(?:ive|ives|iven|ave|iving) (?:\w+ ){0,3}back|given away|is wanted|what exceeds|mend(?:s|ed|ing)?|"
    r"st(?:ands?|anding|ood) still|left alone|the like|go(?:es)? on|went on|(?:gets?|got|is) woken)\b",
    re.IGNORECASE,
)
"""Phrases that no text for users has: pages, alerts, and texts in code that are not docstrings."""
RECORDS = {"CHANGELOG.md", "CONTRIBUTING.md", "docs/decisions", "docs/architecture.md", "docs/real-software.md"}
"""Pages for developers, and of what was, where UNPLAIN is not looked for."""
IN_NAMES = _SPEECH | {"gone"}
PRONOUNS = {"it", "its", "they", "their", "we", "our", "you", "your", "he", "she", "this", "that", "these", "those"}
PRONOUNS |= {"such", "none"}
"""Words that no docstring begins with: their meaning is not known yet at the beginning."""
QUESTIONS = {"what", "which", "where", "when", "who", "whose", "how", "whether"}
"""Interrogative words that no docstring begins with."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_FIRST = re.compile(r"\s*(\w+)")
_TEXTS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def findings(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and a sentence for each forbidden word in Python source."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            for word in _words(token.string) & IN_NAMES:
                yield token.start[0], f"identifier {token.string!r} has {word!r}: name the thing in the field's words"
        elif token.type in _TEXTS:
            for offset, line in enumerate(token.string.splitlines()):
                for word in sorted(_words(PUBLISHED.sub("", line)) & IN_TEXT):
                    yield token.start[0] + offset, f"text has {word!r}: programs and devices report, request, return"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg) and node.arg == "it":
            yield node.lineno, "parameter 'it': name the thing"
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            first = _FIRST.match(node.value.value)
            if first and first[1].lower() in PRONOUNS | QUESTIONS:
                yield node.lineno, f"docstring begins with {first[1]!r}: begin with a verb or with the thing's name"


def findings_in_c(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and a sentence for each forbidden word in C, names and comments alike."""
    for number, line in enumerate(source.splitlines(), 1):
        for word in sorted(_words(line) & IN_TEXT):
            yield number, f"C has {word!r}: name the thing in the field's words"


def findings_in_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and a sentence for each phrase of Python source, docstrings aside, that is not plain."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in _TEXTS - {tokenize.COMMENT} and not token.string.startswith(('"""', 'r"""')):
            yield from ((token.start[0], _unplain(it)) for it in UNPLAIN.findall(token.string))


def findings_in_pages(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and a sentence for each phrase of a page for users that is not plain, outside of code."""
    code = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        for phrase in () if code else UNPLAIN.findall(_CODE.sub("", line)):
            yield number, _unplain(phrase)


def _unplain(phrase: str) -> str:
    return f"text has {phrase!r}: docs/style-of-words.md"


def findings_in_documents(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and a sentence for each forbidden word of a document, outside of code."""
    code = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        for word in () if code else sorted(_words(_CODE.sub("", line)) & IN_DOCUMENTS):
            yield number, f"document has {word!r}: report, request, allocate; docs/style-of-words.md"


def findings_in_rules(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and a sentence for each forbidden word or phrase of a file of rules."""
    yield from findings_in_documents(source)
    yield from findings_in_pages(source)
    for number, line in enumerate(source.splitlines(), 1):
        for phrase in PHRASES.findall(line):
            yield number, f"rule has {phrase!r}: name the thing and its state"


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORDS.findall(text)}


_CODE = re.compile(r"`[^`]*`|\]\([^)]*\)")
_CHECKS = {".py": findings, ".c": findings_in_c, ".h": findings_in_c, ".md": findings_in_documents} | {
    ".yaml": findings_in_rules
}


def _sources(path: Path) -> Iterable[Path]:
    """Yields the files under a path that are checked; YAML is that of alerts alone."""
    found = path.rglob("*") if path.is_dir() else (path,) if path.exists() else ()
    return (it for it in found if it.suffix in _CHECKS and (it.suffix != ".yaml" or it.parent.name == "alerts"))


def main(root: Path) -> int:
    """Prints the findings under `root`; returns the exit status."""
    lists = {root / name for name in LISTS}
    paths = [path for name in FOLDERS for path in sorted(_sources(root / name)) if path not in lists]
    found = [(path, *finding) for path in paths for finding in _CHECKS[path.suffix](path.read_text())]
    records = [root / name for name in RECORDS]
    for path in paths:
        if path.suffix == ".md" and not any(path.is_relative_to(record) for record in records):
            found += [(path, *finding) for finding in findings_in_pages(path.read_text())]
        elif path.suffix == ".py" and path.relative_to(root).parts[0] in {"exporter", "dashboards", "deploy", "tools"}:
            found += [(path, *finding) for finding in findings_in_texts(path.read_text())]
    for path, line, text in found:
        print(f"{path.relative_to(root)}:{line}: {text}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1])))
