"""Fixtures of tests/unit/infiniband, for tests with sockets."""

from tests.unit.infiniband.conftest import collector, tree

__all__ = ["collector", "tree"]
