"""The name of the model in a response, of which clients choose parts: it may repeat the metadata of the request."""

from __future__ import annotations

import json
import re
from contextlib import suppress

LONGEST_MODEL = 96
_MODEL = re.compile(rb'(?<=[{,\s])"model"\s*:\s*"((?:[^"\\\x00-\x1f]|\\.){1,256})"')
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NAME_OR_BRACE = re.compile(rb'"((?:[^"\\]|\\.)*)"(\s*:)?|([{}])', re.DOTALL)
_AROUND = (b"response", b"message")
"""Objects with the name in events of OpenAI's Responses and Anthropic's Messages."""


def model_name(begin: bytes, end: bytes) -> str:
    """Return the model that the beginning or the end of a response names; empty where none does."""
    found = _MODEL.search(begin)
    if found and _depth(begin[: found.start()]) == 1:
        return _printable(found[1])
    name = (found and _named(begin, 0)) or b""
    if not name and _MODEL.search(end):
        name = _named(end, None) or _named(b'"' + end, None)  # it may begin within a text
    return _printable(name)


def _depth(text: bytes) -> int:
    """Return how many objects of JSON are open at the end of a text."""
    text = _TEXT.sub(b"", text)
    return text.count(b"{") - text.count(b"}")


def _named(text: bytes, before: int | None) -> bytes:
    """Return the model of an outermost object, or of one in _AROUND.

    `before`: the objects that are open where the text begins; None: it ends where none is.
    """
    models: list[tuple[int, bytes, bytes]] = []
    names: list[bytes] = []
    depth, name = 0, b""
    for found in _NAME_OR_BRACE.finditer(text):
        if found[3] == b"{":
            names.append(name)
            depth += 1
        elif found[3]:
            names[-1:] = []
            depth -= 1
        elif found[2]:
            name = found[1]
            model = _MODEL.match(text, found.start()) if name == b"model" else None
            if model:
                models.append((depth, names[-1] if names else b"", model[1]))
        else:
            name = b""
    outside = -depth if before is None else before
    for level, around in ((1, None), (2, _AROUND)):
        for at, inside, model_ in models:
            if at + outside == level and (around is None or inside in around):
                return model_
    return b""


def _printable(name: bytes) -> str:
    text = name.decode("utf-8", "replace")
    if "\\" in text:
        with suppress(ValueError):  # no text of JSON
            text = json.loads(f'"{text}"', strict=False)
    return "".join(char if char.isprintable() else "?" for char in text)[:LONGEST_MODEL]
