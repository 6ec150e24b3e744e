"""MkDocs hooks for docs/: folders in the nav, and links to files of the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

_LINK = re.compile(r"\[(?P<text>[^]]+)\]\((?P<target>\.\./[^)#]+)\)")
_log = get_plugin_logger("site")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the pages of a folder in the place of a nav entry that ends in "/"."""
    config.nav = [_expanded(entry, Path(config.docs_dir)) for entry in config.nav or []]
    return config


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns a link that leaves docs/ into the path: the site has no such page. Warns of a path that is not there."""
    docs = Path(config.docs_dir).resolve()
    folder = (docs / page.file.src_uri).parent

    def named(link: re.Match[str]) -> str:
        target = (folder / link["target"]).resolve()
        if target.is_relative_to(docs):
            return link[0]
        if not target.exists():
            _log.warning("%s links to %s, which is not there", page.file.src_uri, link["target"])
        path = f"`{target.relative_to(docs.parent)}`"
        return path if link["text"].rstrip("/") in path else f"{link['text']} ({path})"

    return _LINK.sub(named, markdown)


def _expanded(entry: Any, docs: Path) -> Any:
    if not isinstance(entry, dict):
        return entry
    [(title, value)] = entry.items()
    if isinstance(value, list):
        return {title: [_expanded(each, docs) for each in value]}
    if value.endswith("/"):
        pages = sorted((docs / value).glob("*.md"), key=lambda page: (page.stem != "README", page.name))
        return {title: [f"{value}{page.name}" for page in pages]}
    return entry
