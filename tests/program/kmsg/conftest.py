"""Fixtures of tests/unit/kmsg, for tests with threads."""

from tests.unit.kmsg.conftest import host

__all__ = ["host"]
