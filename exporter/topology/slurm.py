"""The place of a node by Slurm's topology.conf, or topology.yaml of Slurm 25.05 and later.

https://slurm.schedmd.com/topology.conf.html and topology.yaml.html. Of topology/tree the switch that has the node is
its leaf, that one's parent the spine, and the parent of that the core; of topology/block there is the block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.topology.hostlist import matches
from exporter.topology.place import OF_A_DEVICE, Place, is_text, read_text

MOST_ENTRIES = 65_536
_MOST_YAML = 1 << 18
"""PyYAML reads that in seconds. libyaml is quicker, and crashes on deep nesting."""
_FIELD = re.compile(r'(?<![A-Za-z])([A-Za-z]+)[ \t]*=[ \t]*(?:"([^"]*)"|(\S+))', re.ASCII)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A switch or block with what is directly below it, as hostlists; empty without."""

    kind: str
    name: str
    nodes: str = ""
    children: str = ""


def place(path: Path, node: str) -> Place:
    """Return the place of a node, by its name in Slurm. Raises OSError, and ValueError for no valid topology."""
    text = read_text(path)
    entries = list(_of_yaml(text) if path.suffix in (".yaml", ".yml") else _of_conf(text))
    if len(entries) > MOST_ENTRIES:
        raise ValueError(f"more than {MOST_ENTRIES} switches and blocks")
    labels: dict[str, str] = {}
    blocks = [entry.name for entry in entries if entry.kind == "block" and _has(entry.nodes, node)]
    if blocks:
        labels["block"] = blocks[0]
    switches = [entry for entry in entries if entry.kind == "switch"]
    below = next((entry.name for entry in switches if _has(entry.nodes, node)), "")
    for level in OF_A_DEVICE:
        if not below:
            break
        labels[level] = below
        below = next((entry.name for entry in switches if _has(entry.children, below)), "")
    if not all(map(is_text, labels.values())):
        raise ValueError("a name of a switch or block is not printable, or longer than 128 characters")
    return Place(labels)


def _has(hostlist: str, name: str) -> bool:
    return bool(hostlist) and matches(hostlist, name)


def _of_conf(text: str) -> Iterator[_Entry]:
    """Yield the entries of lines of NAME=VALUE; names have no case, # begins a comment, \\ continues a line.

    As in all files of Slurm there may be spaces around =, and a value may be in double quotes.
    """
    for line in text.replace("\r\n", "\n").replace("\\\n", " ").splitlines():
        found = _FIELD.findall(line.partition("#")[0])
        fields = {key.lower(): quoted or value for key, quoted, value in found}
        if name := fields.get("switchname"):
            yield _Entry("switch", name, fields.get("nodes", ""), fields.get("switches", ""))
        elif name := fields.get("blockname"):
            yield _Entry("block", name, fields.get("nodes", ""))


def _of_yaml(text: str) -> Iterator[_Entry]:
    """Yield the entries of the default topology of the cluster, or the first one, and those of a block topology."""
    if len(text) > _MOST_YAML:
        raise ValueError(f"larger than {_MOST_YAML >> 10} KiB")
    import yaml  # for those with such a file only

    try:
        topologies = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError) as error:
        raise ValueError("no valid YAML") from error  # a value that its tag does not permit raises any of these
    if not isinstance(topologies, list) or not all(isinstance(one, dict) for one in topologies):
        raise ValueError("no list of topologies")
    default = sorted(topologies, key=lambda one: one.get("cluster_default") is not True)
    for kind, group, name, below in (
        ("switch", "tree", "switch", "switches"),
        ("block", "block", "block", "blocks"),
    ):
        found: Mapping[Any, Any] = next((one[group] for one in default if isinstance(one.get(group), dict)), {})
        entries = found.get(below)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict):
                yield _Entry(kind, _text(entry, name), _text(entry, "nodes"), _text(entry, "children"))


def _text(entry: Mapping[Any, Any], key: str) -> str:
    value = entry.get(key, "")
    return str(value) if isinstance(value, str | int) else ""
