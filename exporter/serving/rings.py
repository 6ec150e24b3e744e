"""Follows servers that use io_uring, once one does: on other nodes no system call of io_uring costs more."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from exporter.bpf.libbpf import BpfError, Link, Object

PROGRAMS = ("on_ring_call", "on_ring_wait", "on_ring_worker")
"""The programs of the object that are attached only for this."""
_KEPT = "keeps_ring_bytes"

log = logging.getLogger(__name__)


class Rings:
    """The tracepoints of io_uring (bpf/serving/rings.h), from the first call of a followed process on."""

    def __init__(self, loaded: Object) -> None:
        self._object = loaded
        self._links: list[Link] = []
        self._problem = ""

    def update(self, calls_unread: int) -> None:
        """Follow requests if calls by io_uring have moved bytes that were not read."""
        if not calls_unread or self._links or self._problem:
            return
        if not self._object.programs[_KEPT].run():
            self._fail("Linux 6.10 and newer keep where the bytes of a request are")
            return
        try:
            for name in PROGRAMS:
                self._links.append(self._object.programs[name].attach())
            self._object.maps["ring_used"].set(0, 1)
        except BpfError as error:
            self.close()
            self._fail(str(error))
            return
        log.info("a followed process uses io_uring: requests that begin from now on are followed there too")

    def problems(self) -> Iterator[str]:
        """Yield why calls by io_uring are not read, if a followed process uses it."""
        if self._problem:
            yield self._problem

    def close(self) -> None:
        links, self._links = self._links, []
        for link in links:
            link.close()

    def _fail(self, reason: str) -> None:
        self._problem = f"a followed process uses io_uring, and its requests there are not seen: {reason}"
        log.warning("%s", self._problem)
