"""A /sys to put devices into, and collectors that read it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.collectors import infiniband
from exporter.collectors.infiniband import Infiniband
from tests.nodes import make_node
from tests.unit.infiniband.trees import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


class Made:
    """Collectors of a tree, closed at the end. Settings are given by the ends of their names, such as exclude."""

    def __init__(self, sys: Path) -> None:
        self._sys, self._made = sys, []
        self.shared: dict[str, Any] = {}
        """State that the next collector finds."""

    def __call__(self, **settings: Any) -> Infiniband:
        values = {option.name: option.default for option in infiniband.OPTIONS}
        for name, value in settings.items():
            [full] = [it for it in values if it.endswith("." + name.replace("_", "-"))]
            values[full] = value
        chosen = infiniband.configure(values)
        assert chosen is not None
        self.node = make_node(settings=chosen, sys=self._sys, **self.shared)
        made = infiniband.create(self.node)
        made.start()
        self._made.append(made)
        return made

    def close(self) -> None:
        for made in self._made:
            made.close()


@pytest.fixture
def collector(tree: Tree) -> Iterator[Made]:
    made = Made(tree.sys)
    yield made
    made.close()
